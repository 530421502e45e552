# SPDX-License-Identifier: Apache-2.0
# Defines gsv::xxhash where the library is installed; absent, it is simply not defined.
# Installed beside gradsieve-config.cmake, which includes it.
if(NOT TARGET gsv::xxhash)
  find_path(GSV_XXHASH_INCLUDE_DIR xxhash.h)
  find_library(GSV_XXHASH_LIBRARY xxhash)
  mark_as_advanced(GSV_XXHASH_INCLUDE_DIR GSV_XXHASH_LIBRARY)
  if(GSV_XXHASH_INCLUDE_DIR AND GSV_XXHASH_LIBRARY)
    add_library(gsv::xxhash INTERFACE IMPORTED)
    target_include_directories(gsv::xxhash INTERFACE "${GSV_XXHASH_INCLUDE_DIR}")
    target_link_libraries(gsv::xxhash INTERFACE "${GSV_XXHASH_LIBRARY}")
  endif()
endif()
