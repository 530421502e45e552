# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE_DIR= -DBUILD_DIR= -DGENERATOR= -DCUDA_COMPILER= -P: builds the CUDA emulator, unless another
# build has done so.
cmake_minimum_required(VERSION 3.25)
file(MAKE_DIRECTORY "${BUILD_DIR}")
file(LOCK "${BUILD_DIR}.lock" GUARD PROCESS TIMEOUT 900)
if(EXISTS "${BUILD_DIR}/built")
  return()
endif()
cmake_path(GET CUDA_COMPILER PARENT_PATH cuda_bin)
cmake_path(GET cuda_bin PARENT_PATH cuda_root)
execute_process(COMMAND "${CMAKE_COMMAND}" -S "${SOURCE_DIR}" -B "${BUILD_DIR}" -G "${GENERATOR}"
  "-DCUDAToolkit_ROOT=${cuda_root}" COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${BUILD_DIR}" --parallel 2
  COMMAND_ERROR_IS_FATAL ANY OUTPUT_QUIET)
file(TOUCH "${BUILD_DIR}/built" "${BUILD_DIR}/cudasim-run")
