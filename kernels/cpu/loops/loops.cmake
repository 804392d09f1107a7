# Every loops/*.c but select.c is compiled once for each instruction set level, with TR_ISA naming it.
file(GLOB loop_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c)
list(FILTER loop_sources EXCLUDE REGEX "/select\\.c$")

function(trireme_loops isa)
  add_library(trireme_loops_${isa} OBJECT ${loop_sources})
  target_link_libraries(trireme_loops_${isa} PRIVATE trireme_options)
  target_compile_definitions(trireme_loops_${isa} PRIVATE TR_ISA=${isa})
  target_compile_options(trireme_loops_${isa} PRIVATE ${fast} -fopenmp-simd -ffp-contract=fast
    -fno-trapping-math -fno-math-errno -fPIC
    $<$<C_COMPILER_ID:Clang>:-Wno-pass-failed> ${ARGN}) # clang 14 makes some of them scalar, and says so
  target_sources(trireme_cpu PRIVATE $<TARGET_OBJECTS:trireme_loops_${isa}>)
endfunction()

target_sources(trireme_cpu PRIVATE ${CMAKE_CURRENT_LIST_DIR}/select.c)
trireme_loops(base)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_definitions(trireme_cpu PRIVATE TR_ISA_LEVELS=3)
  trireme_loops(avx2 -march=x86-64-v3)
  trireme_loops(avx512 -march=x86-64-v4 -mprefer-vector-width=512)
endif()
