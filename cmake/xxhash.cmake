# onnx_light_xxhash: the header xxhash.h, from the system (Debian: libxxhash-dev) or, where there is
# none, from the project's release. Sources define XXH_INLINE_ALL first, so nothing is linked.
add_library(onnx_light_xxhash INTERFACE)
find_path(XXHASH_INCLUDE_DIR xxhash.h)
if(NOT XXHASH_INCLUDE_DIR)
  message(STATUS "xxhash.h not found (Debian: apt-get install libxxhash-dev): downloading it")
  include(FetchContent)
  FetchContent_Declare(
    xxhash
    URL https://github.com/Cyan4973/xxHash/archive/refs/tags/v0.8.3.tar.gz
    URL_HASH SHA256=aae608dfe8213dfd05d909a57718ef82f30722c392344583d3f39050c7f29a80
    SOURCE_SUBDIR none)
  FetchContent_MakeAvailable(xxhash)
  set(XXHASH_INCLUDE_DIR ${xxhash_SOURCE_DIR})
endif()
target_include_directories(onnx_light_xxhash SYSTEM INTERFACE ${XXHASH_INCLUDE_DIR})
