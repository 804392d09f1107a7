# trireme_library(NAME DIR...): a static library of every .c file under the given folders.
function(trireme_library name)
  set(sources)
  foreach(dir IN LISTS ARGN)
    get_filename_component(folder ${dir} ABSOLUTE) # whole paths without `.`: who removes some of them compares names
    file(GLOB_RECURSE found CONFIGURE_DEPENDS ${folder}/*.c)
    list(APPEND sources ${found})
  endforeach()
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC trireme_options)
endfunction()
