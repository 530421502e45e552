# SPDX-License-Identifier: Apache-2.0
# A new compressor is one header, one source and one CMake line: builds the conformance suite over
# the sources plus a folder outside of them, and sees that the suite now asks all of that plug-in.

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "'${command}' ended with ${result}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${scratch}")
file(COPY "${source}/tests/consumer/scratch_plugin" DESTINATION "${scratch}")
file(GLOB files RELATIVE "${scratch}/scratch_plugin" "${scratch}/scratch_plugin/*")
if(NOT files STREQUAL "CMakeLists.txt;truncate16.cpp;truncate16.hpp")
  message(FATAL_ERROR "expected one header, one source and a CMakeLists.txt; found ${files}")
endif()
file(STRINGS "${scratch}/scratch_plugin/CMakeLists.txt" lines REGEX "^[^#]")
list(LENGTH lines num_lines)
if(NOT num_lines EQUAL 1)
  message(FATAL_ERROR "expected one CMake line; found ${num_lines}")
endif()

# Optimisation would cost more than it gives: few of the tests are run.
run("${CMAKE_COMMAND}" -G "${generator}" -S "${source}" -B "${scratch}/build"
  "-DCMAKE_CXX_COMPILER=${compiler}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${launcher}"
  -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -g0 -DNDEBUG"
  "-DGRADSIEVE_EXTRA_PLUGIN_DIRS=${scratch}/scratch_plugin" -DGRADSIEVE_TESTS=ON -DGRADSIEVE_MPI=OFF -DGRADSIEVE_CUDA=OFF
  -DGRADSIEVE_TORCH=OFF -DGRADSIEVE_BENCH=OFF -DGRADSIEVE_TOOLS=OFF)
run("${CMAKE_COMMAND}" --build "${scratch}/build" --target conformance_test --parallel 2)
run("${scratch}/build/tests/conformance_test" "--gtest_filter=*truncate16*")
if(NOT output MATCHES "\\[  PASSED  \\] ([0-9]+) tests" OR CMAKE_MATCH_1 LESS 500)
  message(FATAL_ERROR "expected hundreds of cases of truncate16; got:\n${output}")
endif()
message(STATUS "the suite asked ${CMAKE_MATCH_1} questions of a plug-in it had never heard of")
foreach(suite IN ITEMS EveryPlugin EncodeTest FixedRateClaim ElementwiseClaim DamageTest TrainingTest)
  if(NOT output MATCHES "Registry/${suite}[.]")
    message(FATAL_ERROR "no case of ${suite} was run")
  endif()
endforeach()
if(output MATCHES "Registry/(LosslessClaim|UnbiasedClaim|ContractionClaim)[.]")
  message(FATAL_ERROR "${CMAKE_MATCH_1} was asked of a plug-in that does not make that claim")
endif()
