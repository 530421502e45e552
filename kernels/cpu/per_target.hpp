// SPDX-License-Identifier: Apache-2.0
// For NAME.simd.hpp, the only headers a NAME.simd.cpp may share with ordinary code. A .simd.cpp is
// compiled once for each instruction set, so an inline function or template of external linkage in
// it could be the copy that the linker keeps for the whole program, and would then fault on older
// machines: these headers declare plain functions on raw pointers, and include no standard header
// but <cstddef> and <cstdint>.
#pragma once

/// Declares a function in the namespace of each instruction set.
#if defined(__x86_64__)
#define GRADSIEVE_PER_TARGET(declaration) \
  namespace portable {                    \
  declaration;                            \
  }                                       \
  namespace avx2 {                        \
  declaration;                            \
  }                                       \
  namespace avx512 {                      \
  declaration;                            \
  }
#else
#define GRADSIEVE_PER_TARGET(declaration) \
  namespace portable {                    \
  declaration;                            \
  }
#endif
