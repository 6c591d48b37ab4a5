# Programs that link the core's objects: the tests, the benchmarks and the fuzz targets.
function(onnx_light_program name)
  add_executable(${name} ${ARGN})
  target_compile_options(${name} PRIVATE -Wall -Wextra)
  target_link_libraries(${name} PRIVATE onnx_light_objects onnx_light_xxhash)
endfunction()

if(ONNX_LIGHT_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
  include(GoogleTest)
  onnx_light_program(onnx_light_test ${test_sources})
  target_link_libraries(onnx_light_test PRIVATE GTest::gtest_main)
  # The folder of onnxruntime_c_api.h, for the test that compares our declarations with it.
  if(DEFINED ENV{ONNX_LIGHT_ORT_INCLUDE})
    set_source_files_properties(src/runtime/ort_abi_test.cc PROPERTIES INCLUDE_DIRECTORIES
                                                                       $ENV{ONNX_LIGHT_ORT_INCLUDE})
  endif()
  # In the build tree of a Python package tests and benchmarks are built when asked for.
  if(SKBUILD)
    set_target_properties(onnx_light_test PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  gtest_discover_tests(onnx_light_test DISCOVERY_MODE PRE_TEST
                       DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
  # Sanitizers bring weak symbols of their own.
  if(NOT ONNX_LIGHT_SANITIZE)
    set(kernels $<FILTER:$<TARGET_OBJECTS:onnx_light_objects>,INCLUDE,kernels_[a-z0-9]+[.]cc>)
    add_test(NAME Kernels.NoWeakSymbols
             COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} "-DOBJECTS=$<JOIN:${kernels},$<COMMA>>" -P
                     ${CMAKE_CURRENT_SOURCE_DIR}/cmake/check_kernel_symbols.cmake)
  endif()
endif()

if(ONNX_LIGHT_BENCHMARKS)
  find_package(benchmark REQUIRED)
  add_custom_target(benchmarks)
  file(GLOB bench_sources CONFIGURE_DEPENDS benchmarks/*.cc)
  foreach(source IN LISTS bench_sources)
    cmake_path(GET source STEM name)
    onnx_light_program(bench_${name} ${source})
    target_link_libraries(bench_${name} PRIVATE benchmark::benchmark_main)
    add_dependencies(benchmarks bench_${name})
    if(SKBUILD)
      set_target_properties(bench_${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  endforeach()
endif()

if(ONNX_LIGHT_FUZZERS)
  # Every object is instrumented; only the fuzz targets take libFuzzer's main.
  target_compile_options(onnx_light_objects PRIVATE -fsanitize=fuzzer-no-link)
  file(GLOB fuzz_sources CONFIGURE_DEPENDS fuzz/*.cc)
  foreach(source IN LISTS fuzz_sources)
    cmake_path(GET source STEM name)
    onnx_light_program(fuzz_${name} ${source})
    target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  endforeach()
endif()
