# SPDX-License-Identifier: Apache-2.0
# Makes the .deb files of this build, unpacks them into an empty root and uses each from there:
# libgsv0 and libgradsieve-dev by pkg-config and by CMake, gradsieve-tools by running it.
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/run_command.cmake")

file(REMOVE_RECURSE "${scratch}")
file(MAKE_DIRECTORY "${scratch}/root")
file(WRITE "${scratch}/CPackConfig.cmake" "include(\"${build}/CPackConfig.cmake\")\n")
if(cuda_dir)  # dpkg-shlibdeps has to find a CUDA runtime that is shared, though no package holds it
  file(APPEND "${scratch}/CPackConfig.cmake"
    "list(APPEND CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS \"${cuda_dir}\")\n")
endif()
run("${CMAKE_CPACK_COMMAND}" -G DEB --config "${scratch}/CPackConfig.cmake" -B "${scratch}/packages")
set(expected libgsv0 libgradsieve-dev)
if(mpi)
  list(APPEND expected libgsv0-mpi)
endif()
if(tools)
  list(APPEND expected gradsieve-tools)
endif()
foreach(package IN LISTS expected)
  file(GLOB file "${scratch}/packages/${package}_${version}_*.deb")
  if(NOT file)
    message(FATAL_ERROR "no package ${package}_${version} was made")
  endif()
  run(dpkg-deb -x "${file}" "${scratch}/root")
  run(dpkg-deb -f "${file}" Depends)
  set(depends_${package} "${output}")
endforeach()

# --- what they ask for ---
if(cuda_dir)  # where the toolkit came in packages, its runtime is one
  string(REGEX REPLACE "[^,]*cudart[^,]*(, )?" "" depends_libgsv0 "${depends_libgsv0}")
endif()
if(NOT depends_libgsv0 MATCHES "libc6" OR NOT depends_libgsv0 MATCHES "libzstd1"
   OR depends_libgsv0 MATCHES "mpi|torch|json|cud|nccl")
  message(FATAL_ERROR "libgsv0 depends on: ${depends_libgsv0}")
endif()
if(NOT depends_libgradsieve-dev MATCHES "libgsv0 \\(= ${version}\\)")
  message(FATAL_ERROR "libgradsieve-dev depends on: ${depends_libgradsieve-dev}")
endif()
if(mpi AND NOT depends_libgsv0-mpi MATCHES "libopenmpi|libmpich")
  message(FATAL_ERROR "libgsv0-mpi depends on: ${depends_libgsv0-mpi}")
endif()

# --- pkg-config ---
file(GLOB_RECURSE pc "${scratch}/root/usr/lib/*/gsv.pc" "${scratch}/root/usr/lib/gsv.pc")
cmake_path(GET pc PARENT_PATH pc_dir)
cmake_path(GET pc_dir PARENT_PATH lib_dir)
set(ENV{PKG_CONFIG_PATH} "${pc_dir}")
run(pkg-config --modversion gsv)
if(NOT output MATCHES "^${version}")
  message(FATAL_ERROR "gsv.pc has version ${output}")
endif()
run(pkg-config --cflags --libs gsv)
separate_arguments(flags UNIX_COMMAND "${output}")
set(ENV{LD_LIBRARY_PATH} "${lib_dir}:${cuda_dir}")
run(cc -std=c11 -Wall -Wextra -pedantic -Werror "${source}/tests/package/c_consumer.c" ${flags}
  -o "${scratch}/by_pkg_config")
run("${scratch}/by_pkg_config")
run(pkg-config --cflags --libs gradsieve)
separate_arguments(flags UNIX_COMMAND "${output}")
run("${compiler}" -std=c++20 "${source}/tests/consumer/main.cpp" ${flags} -o "${scratch}/static")
run("${scratch}/static")

# --- CMake ---
run("${CMAKE_COMMAND}" -G "${generator}" -S "${source}/tests/package" -B "${scratch}/by_cmake"
  "-DCMAKE_PREFIX_PATH=${scratch}/root/usr")
run("${CMAKE_COMMAND}" --build "${scratch}/by_cmake")
run("${scratch}/by_cmake/c_consumer")
message(STATUS "the consumer says: ${output}")

# --- programs ---
if(tools)
  run("${scratch}/root/usr/bin/gradsieve" --version)
  if(NOT output MATCHES "${version}")
    message(FATAL_ERROR "gradsieve --version says ${output}")
  endif()
  if(NOT EXISTS "${scratch}/root/usr/bin/gradsieve-conform")
    message(FATAL_ERROR "gradsieve-tools has no conformance suite")
  endif()
endif()
