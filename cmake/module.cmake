# The GPU side as a module: libtrireme_cuda.so, that the program loads when a job wants GPUs (trainer/device/gpu/load.c). Its
# parts (kernels/cuda, collectives/nccl, trainer/device/gpu/module.c) add their sources to the object library trireme_gpu, so
# that each file is compiled once, for the module and for the tests that link the real libraries.

# Program and module know each other by a hash of all sources: two small files are compiled again when one changes.
file(GLOB_RECURSE all CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/runtime/*.[ch] ${PROJECT_SOURCE_DIR}/kernels/*.[ch]
  ${PROJECT_SOURCE_DIR}/kernels/*.cu ${PROJECT_SOURCE_DIR}/kernels/*.cuh ${PROJECT_SOURCE_DIR}/collectives/*.[ch]
  ${PROJECT_SOURCE_DIR}/optimize/*.[ch] ${PROJECT_SOURCE_DIR}/trainer/*.[ch])
set(build_id ${PROJECT_BINARY_DIR}/generated/build_id.h)
set(build_options "${PROJECT_VERSION} ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION} ${CMAKE_BUILD_TYPE} ${CMAKE_C_FLAGS}"
  " ${TRIREME_SANITIZE} ${MPI_C_VERSION} ${MPI_C_LIBRARIES}")
list(JOIN build_options "" build_options)
add_custom_command(OUTPUT ${build_id} DEPENDS ${all} ${PROJECT_SOURCE_DIR}/cmake/build_id.cmake
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} "-DOPTIONS=${build_options}" -DOUT=${build_id}
    -P ${PROJECT_SOURCE_DIR}/cmake/build_id.cmake
  COMMENT "build id" VERBATIM)
add_custom_target(build_id DEPENDS ${build_id})
add_library(trireme_build_id INTERFACE)
add_dependencies(trireme_build_id build_id)
target_include_directories(trireme_build_id INTERFACE ${PROJECT_BINARY_DIR}/generated)

add_library(trireme_gpu OBJECT)
set_target_properties(trireme_gpu PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden
  CUDA_VISIBILITY_PRESET hidden)
target_link_libraries(trireme_gpu PUBLIC trireme_options trireme_plan trireme_collectives trireme_cuda_libraries m
  PRIVATE trireme_build_id)

# trireme_module(NAME OBJECTS PROGRAM): libNAME.so beside PROGRAM, of the object library OBJECTS, without the program's own
# libraries: what it needs of those PROGRAM exports, and nothing else.
function(trireme_module name objects program)
  add_library(${name} MODULE $<TARGET_OBJECTS:${objects}>)
  target_link_libraries(${name} PRIVATE trireme_cuda_libraries MPI::MPI_C Threads::Threads m)
  set(only ${PROJECT_SOURCE_DIR}/cmake/module.map)
  target_link_options(${name} PRIVATE -Wl,--version-script=${only})
  if(TRIREME_SANITIZE)
    target_link_options(${name} PRIVATE -fsanitize=${TRIREME_SANITIZE})
  endif()
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX LINK_DEPENDS ${only}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

  set(exports ${PROJECT_BINARY_DIR}/generated/exports.list)
  add_custom_command(OUTPUT ${exports} ${exports}.rsp DEPENDS ${name} ${PROJECT_SOURCE_DIR}/cmake/exports.cmake
    COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DMODULE=$<TARGET_FILE:${name}> -DOUT=${exports}
      -P ${PROJECT_SOURCE_DIR}/cmake/exports.cmake
    COMMENT "what ${program} exports for lib${name}.so" VERBATIM)
  target_sources(${program} PRIVATE ${exports}.rsp)
  target_link_options(${program} PRIVATE "@${exports}.rsp")
  set_target_properties(${program} PROPERTIES LINK_DEPENDS ${exports}.rsp)
endfunction()
