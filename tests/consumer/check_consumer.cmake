# SPDX-License-Identifier: Apache-2.0
# find_package: installs this build into a scratch prefix, then configures, builds and runs a
# project that finds it there. add_subdirectory: configures the same project over the sources, and
# sees that none of our tests and programs come along.

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "'${command}' ended with ${result}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${scratch}")
set(flags "")
if(sanitize)
  set(flags "-fsanitize=${sanitize}")
endif()
set(configure "${CMAKE_COMMAND}" -G "${generator}" -S "${source}/tests/consumer" -B "${scratch}/build"
  "-DCMAKE_CXX_COMPILER=${compiler}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${launcher}"
  "-DCMAKE_CXX_FLAGS=${flags}" "-DMPI_CXX_COMPILER=${mpi_compiler}")

if(way STREQUAL "find_package")
  run("${CMAKE_COMMAND}" --install "${build}" --prefix "${scratch}/prefix" --component development)
  run(${configure} "-DCMAKE_PREFIX_PATH=${scratch}/prefix" "-DCONSUMER_COMPONENTS=${components}")
  run("${CMAKE_COMMAND}" --build "${scratch}/build")
  run("${scratch}/build/consumer")
  message(STATUS "the consumer says: ${output}")
else()
  run(${configure} "-DCONSUMER_SUBDIRECTORY=${source}")
  run("${CMAKE_COMMAND}" --build "${scratch}/build" --target help)
  if(output MATCHES "[^\n]*(_test|gtest|gradsieve-study|gradsieve-bench)[^\n]*")
    message(FATAL_ERROR "a project that adds ours as a folder would also build '${CMAKE_MATCH_0}'")
  endif()
endif()
