# SPDX-License-Identifier: Apache-2.0
# The vocabulary of our CMakeLists.txt files. A folder lists what it has and says nothing else.
include(GNUInstallDirs)

# gsv_target_options(target): the compiler flags of everything that is ours, on that target alone.
function(gsv_target_options target)
  set_target_properties(${target} PROPERTIES
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)
  # A fused multiply-add rounds once where the specification rounds twice: never contract.
  set(warnings -Wall -Wextra -Wconversion -Wshadow)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;${warnings}>)
  if(GRADSIEVE_WITH_CUDA)
    gsv_cuda_options(${target} ${warnings})
  endif()
  if(GRADSIEVE_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  if(GRADSIEVE_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=${GRADSIEVE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_compile_definitions(${target} PRIVATE _GLIBCXX_ASSERTIONS)
  endif()
  gsv_link_sanitizer(${target})
endfunction()

# gsv_link_sanitizer(target): the run-time library of the sanitizers, which has to come with the
# program. A program whose own code is plain needs it too if it links or loads libraries of ours.
function(gsv_link_sanitizer target)
  if(GRADSIEVE_SANITIZE)
    target_link_options(${target} PRIVATE -fsanitize=${GRADSIEVE_SANITIZE})
  endif()
endfunction()

# gsv_add_sources(file.cpp ...): files of the current folder, into the library.
function(gsv_add_sources)
  target_sources(gradsieve PRIVATE ${ARGN})
endfunction()

# gsv_add_component(name SOURCES ... [LIBS ...] [HEADERS ...]): a static library of its own,
# gradsieve_NAME, used as gradsieve::NAME, for what needs a third-party library to link.
# HEADERS are public, below include/.
function(gsv_add_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS;HEADERS")
  set(target gradsieve_${name})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(gradsieve::${name} ALIAS ${target})
  gsv_target_options(${target})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PUBLIC gradsieve ${arg_LIBS})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_sources(${target} PUBLIC FILE_SET HEADERS
    BASE_DIRS "${PROJECT_SOURCE_DIR}/include" FILES ${arg_HEADERS})
  gsv_install_component(${target} ${name})
endfunction()

# gsv_install_component(target name): an export file of its own, read only when asked for.
function(gsv_install_component target name)
  if(NOT PROJECT_IS_TOP_LEVEL)
    return()
  endif()
  install(TARGETS ${target} EXPORT gradsieve-${name}-targets
    ARCHIVE COMPONENT development FILE_SET HEADERS COMPONENT development)
  install(EXPORT gradsieve-${name}-targets NAMESPACE gradsieve:: COMPONENT development
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/gradsieve")
endfunction()

# gsv_add_kernel(name), in kernels/CMakeLists.txt:
#   ref/NAME.cpp       the specification, compiled once
#   cpu/NAME.cpp       dispatch and threads, compiled once
#   cpu/NAME.simd.cpp  compiled once for each instruction set, with GRADSIEVE_TARGET its name
#   cuda/NAME.cu       where there is a CUDA toolkit
# Each of them may be left out, but not all.
function(gsv_add_kernel name)
  set(found FALSE)
  foreach(file IN ITEMS ref/${name}.cpp cpu/${name}.cpp)
    if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
      target_sources(gradsieve PRIVATE ${file})
      set(found TRUE)
    endif()
  endforeach()
  if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/cpu/${name}.simd.cpp")
    gsv_simd_targets(simd_targets)
    foreach(simd IN LISTS simd_targets)
      gsv_simd_library(${simd})
      target_sources(gsv_kernels_${simd} PRIVATE cpu/${name}.simd.cpp)
    endforeach()
    set(found TRUE)
  endif()
  if(GRADSIEVE_WITH_CUDA AND EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/cuda/${name}.cu")
    target_sources(gradsieve PRIVATE cuda/${name}.cu)
    set(found TRUE)
  endif()
  if(NOT found)
    message(FATAL_ERROR "gsv_add_kernel(${name}): expected ref/${name}.cpp, cpu/${name}.cpp or "
      "cpu/${name}.simd.cpp in ${CMAKE_CURRENT_SOURCE_DIR}; found none of them.")
  endif()
endfunction()

function(gsv_simd_targets out)
  set(names portable)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    list(APPEND names avx2 avx512)
  endif()
  set(${out} ${names} PARENT_SCOPE)
endfunction()

# gsv_simd_library(portable|avx2|avx512): the objects of one instruction set, part of gradsieve.
function(gsv_simd_library simd)
  set(target gsv_kernels_${simd})
  if(TARGET ${target})
    return()
  endif()
  set(flags_portable)
  set(flags_avx2 -mavx2 -mf16c -mbmi -mbmi2 -mlzcnt -mpopcnt)
  set(flags_avx512 ${flags_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vbmi
    -mavx512vbmi2)
  string(TOUPPER ${simd} upper)
  add_library(${target} OBJECT)
  gsv_target_options(${target})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
  target_compile_definitions(${target} PRIVATE GRADSIEVE_TARGET=${simd} GRADSIEVE_TARGET_${upper}=1)
  target_compile_options(${target} PRIVATE ${flags_${simd}} -fno-math-errno -fno-trapping-math)
  if(NOT GRADSIEVE_SANITIZE)
    target_compile_options(${target} PRIVATE -O3)  # comes after the build type's level, and wins
  endif()
  target_sources(gradsieve PRIVATE $<TARGET_OBJECTS:${target}>)
  target_compile_definitions(gradsieve PRIVATE GRADSIEVE_HAVE_TARGET_${upper}=1)
endfunction()

# gsv_add_plugin(name KIND compressor|sparsifier|index_codec|byte_codec|feedback):
# NAME.cpp of the current folder, and a call of register_NAME among the built-in plug-ins.
function(gsv_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "KIND" "SOURCES")
  set(kinds compressor sparsifier index_codec byte_codec feedback)
  if(NOT arg_KIND IN_LIST kinds)
    list(JOIN kinds ", " kinds)
    message(FATAL_ERROR "gsv_add_plugin(${name}): KIND is '${arg_KIND}'; expected one of ${kinds}.")
  endif()
  get_property(plugins GLOBAL PROPERTY GSV_PLUGINS)
  if(name IN_LIST plugins)
    message(FATAL_ERROR "gsv_add_plugin(${name}): a plug-in of this name is already registered.")
  endif()
  target_sources(gradsieve PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/${name}.cpp" ${arg_SOURCES})
  set_property(GLOBAL APPEND PROPERTY GSV_PLUGINS ${name})
endfunction()

# Folders of plug-ins outside the tree, built into the library as if they were inside.
function(gsv_add_extra_plugins)
  set(index 0)
  foreach(folder IN LISTS GRADSIEVE_EXTRA_PLUGIN_DIRS)
    if(NOT EXISTS "${folder}/CMakeLists.txt")
      message(FATAL_ERROR "GRADSIEVE_EXTRA_PLUGIN_DIRS names '${folder}', which has no CMakeLists.txt.")
    endif()
    add_subdirectory("${folder}" "${PROJECT_BINARY_DIR}/extra_plugins/${index}")
    math(EXPR index "${index} + 1")
  endforeach()
endfunction()

# Registration is an ordinary function call: a static library keeps it, and nothing runs before main.
function(gsv_write_builtin_plugins)
  get_property(plugins GLOBAL PROPERTY GSV_PLUGINS)
  set(declarations "")
  set(calls "")
  foreach(name IN LISTS plugins)
    string(APPEND declarations "void register_${name}(Registry& registry);\n")
    string(APPEND calls "  register_${name}(registry);\n")
  endforeach()
  set(file "${CMAKE_BINARY_DIR}/generated/builtin_plugins.cpp")
  file(CONFIGURE OUTPUT "${file}" @ONLY CONTENT [=[
// Generated from the gsv_add_plugin calls. Do not edit.
#include "gradsieve/registry.hpp"

namespace gradsieve {

@declarations@
void register_builtin_plugins(Registry& registry);

void register_builtin_plugins([[maybe_unused]] Registry& registry) {
@calls@}

}  // namespace gradsieve
]=])
  target_sources(gradsieve PRIVATE "${file}")
endfunction()

# gsv_add_program(name SOURCES ... [LIBS ...] [COMPONENT programs]): a program in <build>/bin;
# those whose name begins with gradsieve are installed.
function(gsv_add_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "COMPONENT" "SOURCES;LIBS")
  add_executable(${name} ${arg_SOURCES})
  gsv_target_options(${name})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE gradsieve ${arg_LIBS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
  if(PROJECT_IS_TOP_LEVEL AND name MATCHES "^gradsieve")
    if(NOT arg_COMPONENT)
      set(arg_COMPONENT programs)
    endif()
    install(TARGETS ${name} COMPONENT ${arg_COMPONENT})
  endif()
endfunction()

# gsv_add_test(name SOURCES ... LABELS ... [MPI n ...] [LIBS ...] [ARGS ...] [TIMEOUT seconds]):
# one GoogleTest executable and one ctest; with MPI, one ctest NAME.mpiN for each rank count, and
# nothing at all where MPI is left out. A source may bring its own main().
function(gsv_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "TIMEOUT" "SOURCES;LABELS;MPI;LIBS;ARGS")
  if(arg_MPI AND NOT GRADSIEVE_WITH_MPI)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(GRADSIEVE_SANITIZE)
    math(EXPR arg_TIMEOUT "5 * ${arg_TIMEOUT}")  # slower by that much and more
  endif()
  add_executable(${name} ${arg_SOURCES})
  gsv_target_options(${name})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE gradsieve ${arg_LIBS}
    $<TARGET_NAME_IF_EXISTS:gsv_test_support> GTest::gmock GTest::gtest GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  if(NOT arg_MPI)
    add_test(NAME ${name} COMMAND ${name} ${arg_ARGS})
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
    return()
  endif()
  target_link_libraries(${name} PRIVATE gradsieve::mpi)
  foreach(num_ranks IN LISTS arg_MPI)
    gsv_add_mpi_run(${name}.mpi${num_ranks} ${num_ranks} LABELS ${arg_LABELS} TIMEOUT ${arg_TIMEOUT}
      COMMAND ${name} ${arg_ARGS})
  endforeach()
endfunction()

# gsv_add_mpi_run(test_name num_ranks LABELS ... [TIMEOUT seconds] [UNDER wrapper ...]
#   [ENVIRONMENT ...] COMMAND target args ...):
# a ctest that starts a program of ours, in a wrapper if there is one, under the launcher of the MPI
# that was found.
function(gsv_add_mpi_run test_name num_ranks)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "TIMEOUT" "LABELS;COMMAND;UNDER;ENVIRONMENT")
  if(NOT GRADSIEVE_WITH_MPI)
    return()
  endif()
  list(POP_FRONT arg_COMMAND program)
  add_test(NAME ${test_name} COMMAND "${MPIEXEC_EXECUTABLE}" ${MPIEXEC_NUMPROC_FLAG} ${num_ranks}
    ${MPIEXEC_PREFLAGS} ${arg_UNDER} $<TARGET_FILE:${program}> ${MPIEXEC_POSTFLAGS} ${arg_COMMAND})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  gsv_set_mpi_properties(${test_name} ${num_ranks} ${arg_TIMEOUT} "${arg_LABELS}" "${arg_ENVIRONMENT}")
endfunction()

# gsv_set_mpi_properties(test_name num_ranks timeout labels [environment]): of a ctest that starts ranks.
function(gsv_set_mpi_properties test_name num_ranks timeout labels)
  # Open MPI refuses root and more ranks than cores unless told; ranks that wait must not spin.
  set_tests_properties(${test_name} PROPERTIES LABELS "mpi;${labels}" TIMEOUT ${timeout}
    PROCESSORS ${num_ranks} RESOURCE_LOCK mpi ENVIRONMENT
    "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMPI_MCA_rmaps_base_oversubscribe=1;OMPI_MCA_mpi_yield_when_idle=1;${ARGN}")
endfunction()

# The demo trains on libtorch; where that is missing, asking for it gives a sentence.
function(gsv_add_demo_without_torch)
  if(PROJECT_IS_TOP_LEVEL AND NOT TARGET demo)
    add_custom_target(demo VERBATIM
      COMMAND "${CMAKE_COMMAND}" -E echo "The demo needs what packages/debian-study.txt and packages/debian.txt name."
      COMMAND "${CMAKE_COMMAND}" -E false)
  endif()
endfunction()
