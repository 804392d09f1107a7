# cmake --install BUILD --prefix P: the program, the module where the program looks for it (trainer/gpu/load.c), configs with
# their data, documents. The tree may be moved as a whole.
install(TARGETS trainer RUNTIME DESTINATION bin)
set_target_properties(trainer PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
if(TRIREME_HAVE_CUDA)
  install(TARGETS trireme_cuda LIBRARY DESTINATION lib/trireme)
  set_target_properties(trireme_cuda PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
endif()
install(DIRECTORY configs DESTINATION share/trireme)
install(FILES README.md CHANGELOG.md LICENSE configs/ATTRIBUTION.md DESTINATION share/doc/trireme)
install(DIRECTORY docs DESTINATION share/doc/trireme FILES_MATCHING PATTERN "*.md")
