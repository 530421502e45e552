# SPDX-License-Identifier: Apache-2.0
# Everything about the CUDA toolkit and the emulator that its tests run on where no GPU is.

# gsv_find_cuda(out): sets CMAKE_CUDA_COMPILER and the architectures; out is a sentence where the
# toolkit is missing or too old.
macro(gsv_find_cuda out)
  find_program(GSV_NVCC nvcc HINTS "$ENV{CUDA_PATH}/bin" "$ENV{CUDACXX}" PATHS /usr/local/cuda/bin
    DOC "compiler of the CUDA kernels")
  mark_as_advanced(GSV_NVCC)
  set(GSV_CUDA_EMULATOR_DIR)
  if(NOT CMAKE_CUDA_COMPILER AND GSV_NVCC)
    set(CMAKE_CUDA_COMPILER "${GSV_NVCC}")
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    set(${out} "no nvcc was found; NVIDIA's package is cuda-toolkit-13-0.")
  else()
    execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --version OUTPUT_VARIABLE gsv_nvcc_version)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" _ "${gsv_nvcc_version}")
    if(NOT CMAKE_MATCH_1 OR CMAKE_MATCH_1 VERSION_LESS 13.0)
      set(${out} "nvcc 13.0 or newer is needed; ${CMAKE_CUDA_COMPILER} is '${CMAKE_MATCH_1}'.")
    endif()
  endif()
  gsv_locate_cuda_emulator()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    if(GSV_CUDA_EMULATOR_DIR)
      set(CMAKE_CUDA_ARCHITECTURES "80;90")  # the emulator takes the PTX
    else()
      set(CMAKE_CUDA_ARCHITECTURES "80-real;90")
    endif()
  endif()
endmacro()

# gsv_find_nccl(out): sets GSV_NCCL_INCLUDE_DIR and GSV_NCCL_VERSION; out is a sentence where the
# header is missing or too old. The library itself is looked for when a program runs.
macro(gsv_find_nccl out)
  find_path(GSV_NCCL_INCLUDE_DIR nccl.h HINTS "$ENV{NCCL_HOME}/include" ${CUDAToolkit_INCLUDE_DIRS}
    DOC "folder of nccl.h")
  mark_as_advanced(GSV_NCCL_INCLUDE_DIR)
  set(GSV_NCCL_VERSION)
  if(NOT GRADSIEVE_WITH_CUDA)
    set(${out} "the transport over NCCL needs CUDA, which is off.")
  elseif(NOT GSV_NCCL_INCLUDE_DIR)
    set(${out} "no nccl.h was found (NVIDIA's package is libnccl-dev).")
  else()
    file(STRINGS "${GSV_NCCL_INCLUDE_DIR}/nccl.h" gsv_nccl_lines
      REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) [0-9]+")
    list(TRANSFORM gsv_nccl_lines REPLACE "^#define NCCL_[A-Z]+ ([0-9]+).*" "\\1")
    list(JOIN gsv_nccl_lines "." GSV_NCCL_VERSION)
    if(GSV_NCCL_VERSION VERSION_LESS 2.18)
      set(${out} "nccl.h of NCCL 2.18 or newer is needed, ${GSV_NCCL_INCLUDE_DIR} has '${GSV_NCCL_VERSION}'.")
    endif()
  endif()
endmacro()

# The sources of the emulator, by GRADSIEVE_CUDA_EMULATOR: GSV_CUDA_EMULATOR_DIR, or empty.
macro(gsv_locate_cuda_emulator)
  string(TOUPPER "${GRADSIEVE_CUDA_EMULATOR}" gsv_emulator)
  if(gsv_emulator STREQUAL "AUTO")
    cmake_path(SET gsv_emulator NORMALIZE "${PROJECT_SOURCE_DIR}/../shared/cudasim")
    if(EXISTS "${gsv_emulator}/CMakeLists.txt")
      set(GSV_CUDA_EMULATOR_DIR "${gsv_emulator}")
    endif()
  elseif(GRADSIEVE_CUDA_EMULATOR)
    if(NOT EXISTS "${GRADSIEVE_CUDA_EMULATOR}/CMakeLists.txt")
      message(FATAL_ERROR "GRADSIEVE_CUDA_EMULATOR is '${GRADSIEVE_CUDA_EMULATOR}'; expected AUTO, OFF or a "
        "folder with the CMakeLists.txt of cudasim.")
    endif()
    set(GSV_CUDA_EMULATOR_DIR "${GRADSIEVE_CUDA_EMULATOR}")
  endif()
  if(NOT PROJECT_IS_TOP_LEVEL OR GRADSIEVE_SANITIZE)
    set(GSV_CUDA_EMULATOR_DIR)
  endif()
endmacro()

# The emulator replaces a shared CUDA runtime, so with it that is what we link. It is built once for
# all builds of this user, in a folder named after the hash of its sources.
macro(gsv_find_cuda_emulator)
  list(JOIN CMAKE_CUDA_ARCHITECTURES ", " gsv_architectures)
  set(GSV_CUDART CUDA::cudart_static)
  set(GSV_CUDA_SUMMARY "architectures ${gsv_architectures}, runtime linked statically")
  set(GSV_CUDA_RUN)
  if(GSV_CUDA_EMULATOR_DIR)
    gsv_content_hash("${GSV_CUDA_EMULATOR_DIR}" gsv_hash)
    set(gsv_cache "$ENV{XDG_CACHE_HOME}")
    if(NOT gsv_cache)
      set(gsv_cache "$ENV{HOME}/.cache")
    endif()
    set(GSV_CUDA_EMULATOR_BUILD "${gsv_cache}/gradsieve/cudasim-${gsv_hash}")
    set(GSV_CUDA_RUN "${GSV_CUDA_EMULATOR_BUILD}/cudasim-run")
    set(GSV_CUDART CUDA::cudart)
    set(GSV_CUDA_SUMMARY "architectures ${gsv_architectures}, tests on the emulator in ${GSV_CUDA_EMULATOR_DIR}")
    add_custom_command(OUTPUT "${GSV_CUDA_RUN}" VERBATIM
      COMMAND "${CMAKE_COMMAND}" "-DSOURCE_DIR=${GSV_CUDA_EMULATOR_DIR}"
        "-DBUILD_DIR=${GSV_CUDA_EMULATOR_BUILD}" "-DGENERATOR=${CMAKE_GENERATOR}"
        "-DCUDA_COMPILER=${CMAKE_CUDA_COMPILER}" -P "${PROJECT_SOURCE_DIR}/cmake/gsv_build_emulator.cmake"
      COMMENT "Building the CUDA emulator in ${GSV_CUDA_EMULATOR_BUILD}")
    add_custom_target(gsv_cuda_emulator DEPENDS "${GSV_CUDA_RUN}")
  endif()
endmacro()

function(gsv_content_hash folder out)
  file(GLOB_RECURSE files LIST_DIRECTORIES FALSE RELATIVE "${folder}" CONFIGURE_DEPENDS "${folder}/*")
  list(SORT files)
  set(text "")
  foreach(file IN LISTS files)
    file(SHA256 "${folder}/${file}" hash)
    string(APPEND text "${file} ${hash}\n")
  endforeach()
  string(SHA256 hash "${text}")
  string(SUBSTRING "${hash}" 0 16 hash)
  set(${out} "${hash}" PARENT_SCOPE)
endfunction()

set(GRADSIEVE_CCCL "" CACHE PATH "folder with the headers of a newer CCCL (cub/, thrust/, cuda/)")

# Kernels give the bits of `ref`: no contraction, no flush to zero, exact division and root.
function(gsv_cuda_options target)
  string(REPLACE ";" "," host_warnings "${ARGN}")
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:
    -Xptxas=--warn-on-spills,--warn-on-local-memory-usage,--warning-as-error
    --fmad=false;-ftz=false;-prec-div=true;-prec-sqrt=true;--expt-relaxed-constexpr;-lineinfo
    -Xcompiler=-ffp-contract=off,${host_warnings}
    $<$<BOOL:${GRADSIEVE_WERROR}>:-Werror=all-warnings;-Xcompiler=-Werror>>)
  if(GRADSIEVE_CCCL)
    target_include_directories(${target} SYSTEM BEFORE PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:${GRADSIEVE_CCCL}>")
  endif()
  set_target_properties(${target} PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
    CUDA_EXTENSIONS OFF CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY None)
endfunction()

# gsv_add_cuda_test(name SOURCES ... LABELS ... [TIMEOUT seconds] [VARIANTS ...] [ENVIRONMENT ...]):
# one executable; ctest NAME runs all of it and NAME.VARIANT its quick subset under other orders,
# streams and architectures of the emulator, or those that VARIANTS names. Without the emulator only
# NAME is there; without a GPU as well it is skipped (77). Suites run where what their names say is
# given: InLazyStreams not where the emulator's streams are eager, Planted (a mistake that only lazy
# streams show for certain) nowhere else, KeepGoing only in runs of their own.
function(gsv_add_cuda_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;LABELS;LIBS;VARIANTS;ENVIRONMENT")
  if(NOT GRADSIEVE_WITH_CUDA)
    return()
  endif()
  if(NOT arg_VARIANTS)
    set(arg_VARIANTS ORDER=reverse ORDER=random:1 ORDER=random:2 ORDER=random:3 QUANTUM=97
      STREAMS=lazy SM=80)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${name} ${arg_SOURCES} "${PROJECT_SOURCE_DIR}/tests/support/cuda_main.cpp")
  gsv_target_options(${name})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE gradsieve ${arg_LIBS} GTest::gmock GTest::gtest ${GSV_CUDART})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  set(except_if_eager "--gtest_filter=-*Planted*:*KeepGoing*")
  if(GSV_CUDA_RUN)
    string(APPEND except_if_eager ":*InLazyStreams*")
  endif()
  gsv_add_cuda_run(${name} LABELS ${arg_LABELS} TIMEOUT ${arg_TIMEOUT} COMMAND ${name} ${except_if_eager}
    ENVIRONMENT ${arg_ENVIRONMENT})
  if(NOT GSV_CUDA_RUN)
    return()
  endif()
  add_dependencies(${name} gsv_cuda_emulator)
  foreach(variant IN LISTS arg_VARIANTS)
    string(REGEX REPLACE "[=:]" "_" suffix "${variant}")
    string(TOLOWER "${suffix}" suffix)
    set(filter "${except_if_eager}")
    if(variant STREQUAL "STREAMS=lazy")
      set(filter --gtest_filter=-*KeepGoing*)
    endif()
    gsv_add_cuda_run(${name}.${suffix} LABELS ${arg_LABELS} TIMEOUT ${arg_TIMEOUT} COMMAND ${name} ${filter}
      ENVIRONMENT ${arg_ENVIRONMENT} "CUDASIM_${variant}" GRADSIEVE_CUDA_SUBSET=quick)
  endforeach()
endfunction()

# gsv_add_cuda_run(test_name LABELS ... COMMAND target args ... [ENVIRONMENT ...] [TIMEOUT seconds]
#   [EXPECT exit_status])
function(gsv_add_cuda_run test_name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT;EXPECT" "LABELS;COMMAND;ENVIRONMENT")
  list(POP_FRONT arg_COMMAND program)
  if(DEFINED arg_EXPECT)
    # No semicolons: this is a list.
    set(expect sh -c "\"$@\"\n[ $? -eq ${arg_EXPECT} ]" expect_status)
  endif()
  add_test(NAME ${test_name} COMMAND ${expect} ${GSV_CUDA_RUN} $<TARGET_FILE:${program}> ${arg_COMMAND})
  set_tests_properties(${test_name} PROPERTIES LABELS "cuda;${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "${arg_ENVIRONMENT}")
  if(NOT GSV_CUDA_RUN)  # with the emulator there is a device: no test may find none
    set_tests_properties(${test_name} PROPERTIES SKIP_RETURN_CODE 77)
  endif()
  set_property(GLOBAL APPEND PROPERTY GSV_CUDA_TESTS ${test_name})
endfunction()

# An emulator and a compiler, and nothing to run on them: then something is wrong with the build.
function(gsv_check_cuda_tests)
  get_property(tests GLOBAL PROPERTY GSV_CUDA_TESTS)
  if(GSV_CUDA_RUN AND NOT tests)
    message(FATAL_ERROR "nvcc and the CUDA emulator were found, but no CUDA test is registered.")
  endif()
endfunction()
