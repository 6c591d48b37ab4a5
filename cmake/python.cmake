# The extension modules. A new one is an onnx_light_module() call and its install directory.
execute_process(
  COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
  OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

# onnx_light_module(NAME FOLDER SOURCE...): the extension module onnx_light.FOLDER.NAME, or
# onnx_light.NAME if FOLDER is ".". It sees the internal headers, but links only what the core exports.
function(onnx_light_module name folder)
  nanobind_add_module(${name} NB_STATIC NB_DOMAIN onnx_light NOMINSIZE ${ARGN})
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src
                                             ${CMAKE_CURRENT_SOURCE_DIR}/bindings)
  target_compile_options(${name} PRIVATE -Wall -Wextra)
  target_link_libraries(${name} PRIVATE onnx_light_core)
  target_link_options(${name} PRIVATE -Wl,-z,nodelete)
  file(RELATIVE_PATH lib_dir /${folder} /lib)
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/${lib_dir}")
  install(TARGETS ${name} LIBRARY DESTINATION ${folder})
endfunction()

file(GLOB messages_module CONFIGURE_DEPENDS bindings/*.cc)
onnx_light_module(_onnxpyprotoop onnx_py ${messages_module} ${generated_stub})
install(FILES ${generated_stub} DESTINATION onnx_py)

file(GLOB core_module CONFIGURE_DEPENDS bindings/core/*.cc)
onnx_light_module(_core . ${core_module} bindings/python.cc)
set(core_stub ${generated_dir}/stub/_core.pyi)
# The stub generator looks for packages that types name; it must not find an onnx_light that is
# installed already, whose modules fit another _core.
set(no_package ${generated_dir}/no_package)
foreach(module __init__ onnx_py/__init__ onnx_py/_onnxpyprotoop)
  file(WRITE ${no_package}/onnx_light/${module}.py "")
endforeach()
nanobind_add_stub(_core_stub MODULE _core OUTPUT ${core_stub}
                  PYTHON_PATH ${no_package} $<TARGET_FILE_DIR:_core>
                  PATTERN_FILE ${CMAKE_CURRENT_SOURCE_DIR}/bindings/core/stub.pat DEPENDS _core)
install(FILES ${core_stub} DESTINATION .)
