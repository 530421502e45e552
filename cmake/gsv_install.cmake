# SPDX-License-Identifier: Apache-2.0
# What find_package(gradsieve) needs. Included last, and only by the top-level project.
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/gradsieve")

install(TARGETS gradsieve EXPORT gradsieve-targets
  ARCHIVE COMPONENT library FILE_SET HEADERS COMPONENT library)
install(EXPORT gradsieve-targets NAMESPACE gradsieve:: DESTINATION "${package_dir}" COMPONENT library)
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
  DESTINATION "${package_dir}" COMPONENT library)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT library)
