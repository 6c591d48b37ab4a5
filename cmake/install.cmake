# The library, its headers and a CMake package. The layout below the prefix is the same for a plain
# install and for the Python package, whose folder is the prefix there.
include(CMakePackageConfigHelpers)
if(SKBUILD)
  set(CMAKE_INSTALL_LIBDIR lib)
endif()
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/onnx_light)

install(TARGETS onnx_light_core EXPORT onnx_light LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/onnx_light DESTINATION include FILES_MATCHING PATTERN "*.h")
install(FILES ${generated_header} DESTINATION include/onnx_light)
install(EXPORT onnx_light NAMESPACE onnx_light:: DESTINATION ${config_dir}
        FILE onnx_lightConfig.cmake)
write_basic_package_version_file(
  ${CMAKE_CURRENT_BINARY_DIR}/onnx_lightConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/onnx_lightConfigVersion.cmake DESTINATION ${config_dir})
