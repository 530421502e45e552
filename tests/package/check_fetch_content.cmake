# SPDX-License-Identifier: Apache-2.0
# A project that takes gradsieve by FetchContent, from these sources: it configures, none of our tests
# and programs come along, and its own source compiles. The library's are compiled elsewhere.
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/run_command.cmake")

file(REMOVE_RECURSE "${scratch}")
file(WRITE "${scratch}/project/CMakeLists.txt" [=[
cmake_minimum_required(VERSION 3.25)
project(fetching LANGUAGES CXX)
include(FetchContent)
FetchContent_Declare(gradsieve GIT_REPOSITORY unused GIT_TAG unused)
FetchContent_MakeAvailable(gradsieve)
add_library(consumer_object OBJECT "${gradsieve_SOURCE_DIR}/tests/consumer/main.cpp")
add_executable(consumer $<TARGET_OBJECTS:consumer_object>)
foreach(target IN ITEMS consumer_object consumer)
  target_link_libraries(${target} PRIVATE gradsieve::gradsieve)
endforeach()
]=])
run("${CMAKE_COMMAND}" -G "${generator}" -S "${scratch}/project" -B "${scratch}/build"
  "-DFETCHCONTENT_SOURCE_DIR_GRADSIEVE=${source}" "-DCMAKE_CXX_COMPILER=${compiler}"
  "-DCMAKE_CXX_COMPILER_LAUNCHER=${launcher}" -DGRADSIEVE_CUDA=OFF)
run("${CMAKE_COMMAND}" --build "${scratch}/build" --target help)
if(output MATCHES "[^\n]*(_test|gtest|gradsieve-study|gradsieve-bench)[^\n]*")
  message(FATAL_ERROR "a project that fetches ours would also build '${CMAKE_MATCH_0}'")
endif()
run("${CMAKE_COMMAND}" --build "${scratch}/build" --target consumer_object)
