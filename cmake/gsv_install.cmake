# SPDX-License-Identifier: Apache-2.0
# What find_package(gradsieve) needs. Included last, and only by the top-level project.
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/gradsieve")

install(TARGETS gradsieve EXPORT gradsieve-targets
  ARCHIVE COMPONENT development FILE_SET HEADERS COMPONENT development)
install(EXPORT gradsieve-targets NAMESPACE gradsieve:: DESTINATION "${package_dir}" COMPONENT development)
set(GSV_NEEDS_CUDA ${GRADSIEVE_WITH_CUDA})
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/gradsieve-config.cmake.in"
  "${PROJECT_BINARY_DIR}/gradsieve-config.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/gradsieve-config-version.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/gradsieve-config.cmake"
  "${PROJECT_BINARY_DIR}/gradsieve-config-version.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/gsv_find_zstd.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/gsv_find_xxhash.cmake"
  DESTINATION "${package_dir}" COMPONENT development)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT development)

# Relative, so that the files may be moved as a whole.
file(RELATIVE_PATH GSV_PC_INCLUDE "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig"
  "/prefix/${CMAKE_INSTALL_INCLUDEDIR}")
set(GSV_PC_CUDA "")
if(GRADSIEVE_WITH_CUDA)
  string(REPLACE "CUDA::" "" runtime "${GSV_CUDART}")
  set(GSV_PC_CUDA " -L${CUDAToolkit_LIBRARY_DIR} -l${runtime} -lrt")
endif()
foreach(name IN ITEMS gradsieve gsv)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in" "${PROJECT_BINARY_DIR}/${name}.pc" @ONLY)
endforeach()
install(FILES "${PROJECT_BINARY_DIR}/gradsieve.pc"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)
if(TARGET gsv)
  install(FILES "${PROJECT_BINARY_DIR}/gsv.pc"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)
endif()
if(TARGET conformance_test)
  install(PROGRAMS "$<TARGET_FILE:conformance_test>" RENAME gradsieve-conform
    DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT programs)
endif()
include(gsv_packages)
