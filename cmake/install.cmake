# cmake --install BUILD --prefix P: the program, the module where the program looks for it (trainer/device/gpu/load.c), configs with
# their data, documents, manual page and completion, and for other programs the library and its headers. The tree may be moved
# as a whole. Components, which cpack makes packages of (cmake/package.cmake): trireme, cuda, dev.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME trireme)
install(TARGETS trainer RUNTIME DESTINATION bin)
set_target_properties(trainer PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
if(TRIREME_HAVE_CUDA)
  install(TARGETS trireme_cuda LIBRARY DESTINATION lib/trireme COMPONENT cuda)
  set_target_properties(trireme_cuda PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
endif()
install(DIRECTORY configs DESTINATION share/trireme)
install(FILES python/trireme.py python/tokenize_text.py DESTINATION share/trireme/python) # files to copy, for any Python
install(FILES README.md CHANGELOG.md LICENSE configs/ATTRIBUTION.md DESTINATION share/doc/trireme)
install(DIRECTORY docs DESTINATION share/doc/trireme FILES_MATCHING PATTERN "*.md")

# What the program says of itself. A program for another machine cannot be asked.
if(NOT CMAKE_CROSSCOMPILING)
  set(told ${PROJECT_BINARY_DIR}/generated)
  add_custom_command(OUTPUT ${told}/trainer.1 ${told}/trainer ${told}/_trainer ${told}/trainer.fish DEPENDS trainer
    COMMAND trainer help --man > ${told}/trainer.1
    COMMAND trainer help --completion bash > ${told}/trainer
    COMMAND trainer help --completion zsh > ${told}/_trainer
    COMMAND trainer help --completion fish > ${told}/trainer.fish
    COMMENT "manual page, completion" VERBATIM)
  add_custom_target(trireme_told ALL DEPENDS ${told}/trainer.1)
  install(FILES ${told}/trainer.1 DESTINATION share/man/man1)
  install(FILES ${told}/trainer DESTINATION share/bash-completion/completions)
  install(FILES ${told}/_trainer DESTINATION share/zsh/vendor-completions)
  install(FILES ${told}/trainer.fish DESTINATION share/fish/vendor_completions.d)
endif()

# The library: what answers, without MPI (docs/embedding.md).
set(rooms base config graph device params plan h5 store cpu network inference)
list(TRANSFORM rooms PREPEND trireme_)
foreach(level base avx2 avx512)
  if(TARGET trireme_loops_${level})
    list(APPEND rooms trireme_loops_${level})
  endif()
endforeach()
list(TRANSFORM rooms REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
add_library(trireme STATIC ${objects})
set_target_properties(trireme PROPERTIES LINKER_LANGUAGE C)
install(TARGETS trireme ARCHIVE DESTINATION lib COMPONENT dev)
set(headers kernels/cpu/cpu.h optimize/inference/inference.h optimize/network/network.h runtime/base/base.h
  runtime/config/choices.h runtime/config/config.h runtime/config/distill.h runtime/config/fields.h
  runtime/config/sections.h runtime/config/tree.h runtime/params/params.h runtime/plan/plan.h)
file(GLOB more RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/runtime/device/*.h)
foreach(header ${headers} ${more} runtime/graph/graph.h runtime/graph/model.h
    runtime/graph/kinds.h)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION include/trireme/${folder} COMPONENT dev)
endforeach()
set(libraries ${HDF5_C_LIBRARIES} ${ONEDNN_LIBRARY}) # what HDF5 itself links comes with it
list(FILTER libraries INCLUDE REGEX "hdf5|dnnl")
list(JOIN libraries " " libraries)
configure_file(cmake/trireme.pc.in ${PROJECT_BINARY_DIR}/generated/trireme.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/generated/trireme.pc DESTINATION lib/pkgconfig COMPONENT dev)

include(cmake/package.cmake)
