# The levels of int8 products that the compiler has code for; all else of the room is compiled once.
include(CheckCCompilerFlag)
target_sources(trireme_cpu PRIVATE ${CMAKE_CURRENT_LIST_DIR}/plan.c ${CMAKE_CURRENT_LIST_DIR}/product.c
  ${CMAKE_CURRENT_LIST_DIR}/level.c ${CMAKE_CURRENT_LIST_DIR}/depthwise.c)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  check_c_compiler_flag("-mamx-tile -mamx-int8 -mavx512vnni" TRIREME_HAVE_AMX)
endif()
if(TRIREME_HAVE_AMX)
  set(level_options -march=x86-64-v4 -mavx512vnni ${fast})
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/vnni.c ${CMAKE_CURRENT_LIST_DIR}/depthwise_vnni.c PROPERTIES COMPILE_OPTIONS "${level_options}")
  list(APPEND level_options -mamx-tile -mamx-int8)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/amx.c PROPERTIES COMPILE_OPTIONS "${level_options}")
  target_sources(trireme_cpu PRIVATE ${CMAKE_CURRENT_LIST_DIR}/vnni.c ${CMAKE_CURRENT_LIST_DIR}/depthwise_vnni.c
    ${CMAKE_CURRENT_LIST_DIR}/amx.c)
  target_compile_definitions(trireme_cpu PUBLIC TR_INT8_LEVELS=3)
endif()
