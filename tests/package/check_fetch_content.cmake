# SPDX-License-Identifier: Apache-2.0
# A project that takes gradsieve by FetchContent, from these sources: builds and runs a rank.
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/run_command.cmake")

file(REMOVE_RECURSE "${scratch}")
file(WRITE "${scratch}/project/CMakeLists.txt" [=[
cmake_minimum_required(VERSION 3.25)
project(fetching LANGUAGES CXX)
include(FetchContent)
FetchContent_Declare(gradsieve GIT_REPOSITORY unused GIT_TAG unused)
FetchContent_MakeAvailable(gradsieve)
add_executable(consumer "${gradsieve_SOURCE_DIR}/tests/consumer/main.cpp")
target_link_libraries(consumer PRIVATE gradsieve::gradsieve)
]=])
# Without optimisation: what is asked is whether it builds.
run("${CMAKE_COMMAND}" -G "${generator}" -S "${scratch}/project" -B "${scratch}/build"
  "-DFETCHCONTENT_SOURCE_DIR_GRADSIEVE=${source}" "-DCMAKE_CXX_COMPILER=${compiler}"
  "-DCMAKE_CXX_COMPILER_LAUNCHER=${launcher}" -DCMAKE_BUILD_TYPE=Release -DGRADSIEVE_CUDA=OFF
  "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -g0 -DNDEBUG")
run("${CMAKE_COMMAND}" --build "${scratch}/build" --target consumer --parallel 2)
run("${scratch}/build/consumer")
message(STATUS "the consumer says: ${output}")
