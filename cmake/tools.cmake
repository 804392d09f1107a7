# Targets for who changes the sources, where the tools are: `format` rewrites them by .clang-format,
# `format-check` only complains, `tidy` runs clang-tidy over what compile_commands.json lists.
file(GLOB_RECURSE formatted CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  runtime/*.[ch] kernels/*.[ch] collectives/*.[ch] optimize/*.[ch] trainer/*.[ch] tests/*.[ch]
  kernels/*.cu kernels/*.cuh tests/*.cc)

find_program(CLANG_FORMAT NAMES clang-format-14) # other versions differ in form
if(CLANG_FORMAT)
  add_custom_target(format COMMAND ${CLANG_FORMAT} -i ${formatted} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    COMMENT "clang-format over all sources" VERBATIM)
  add_custom_target(format-check COMMAND ${CLANG_FORMAT} --dry-run -Werror ${formatted}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} COMMENT "clang-format: what is not in form" VERBATIM)
endif()

find_program(RUN_CLANG_TIDY NAMES run-clang-tidy-14 run-clang-tidy)
if(RUN_CLANG_TIDY)
  add_custom_target(tidy COMMAND ${RUN_CLANG_TIDY} -quiet -p ${PROJECT_BINARY_DIR}
    "-checks=-*,bugprone-*,-bugprone-easily-swappable-parameters,-bugprone-reserved-identifier,clang-analyzer-*,-clang-analyzer-security.insecureAPI.*"
    "^${PROJECT_SOURCE_DIR}/(runtime|kernels|collectives|optimize|trainer)/.*\\.c$"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} COMMENT "clang-tidy" VERBATIM)
endif()
