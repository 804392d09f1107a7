# Everything the project links, as imported targets.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PNG REQUIRED)
find_package(JPEG REQUIRED) # libjpeg-turbo
find_package(OpenMP REQUIRED COMPONENTS C)
find_package(MPI REQUIRED COMPONENTS C)
pkg_check_modules(yaml REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc>=2.1)
pkg_check_modules(protobuf-c REQUIRED IMPORTED_TARGET libprotobuf-c>=1.3)
find_program(PROTOC_C NAMES protoc-c REQUIRED)
find_path(ONNX_PROTO_DIR onnx.proto PATH_SUFFIXES onnx REQUIRED) # libonnx-dev's, with the types of onnx-ml.proto left out
set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 REQUIRED COMPONENTS C)
add_library(trireme_hdf5 INTERFACE)
target_include_directories(trireme_hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
target_link_libraries(trireme_hdf5 INTERFACE ${HDF5_C_LIBRARIES})

# oneDNN 2.6 and 3.x: found by hand, because Debian's package ships no usable CMake target for C.
find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.h HINTS ${TRIREME_ONEDNN_ROOT} PATH_SUFFIXES include)
find_library(ONEDNN_LIBRARY NAMES dnnl HINTS ${TRIREME_ONEDNN_ROOT} PATH_SUFFIXES lib lib64)
if(NOT ONEDNN_INCLUDE_DIR OR NOT ONEDNN_LIBRARY)
  message(FATAL_ERROR "oneDNN not found: install libdnnl-dev or set TRIREME_ONEDNN_ROOT")
endif()
add_library(trireme_onednn INTERFACE)
target_include_directories(trireme_onednn SYSTEM INTERFACE ${ONEDNN_INCLUDE_DIR})
target_link_libraries(trireme_onednn INTERFACE ${ONEDNN_LIBRARY})
