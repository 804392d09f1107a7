/* One program of many test files. Each keeps its own main, which the build renames; links to the
 * program are named after them (CMakeLists.txt here): as ROOM_test_NAME it runs that file's. As
 * what TRIREME_TEST says otherwise, so that a test can start this program again. Cases named long_*
 * are left to TRIREME_PART=long, which runs only them, or =all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* after those it needs */
#include <cmocka.h>

/* TR_TEST_FILES: X(name) for each. Some take no arguments: no prototype fits all. */
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#define X(name) int name##_main();
TR_TEST_FILES
#undef X

static const struct {
    const char *name;
    int (*run)();
} files[] = {
#define X(name) {#name, name##_main},
    TR_TEST_FILES
#undef X
};

int main(int argc, char **argv)
{
    const char *part = getenv("TRIREME_PART"), *slash = strrchr(argv[0], '/');
    const char *name = strstr(slash ? slash : argv[0], "test_");
    if (!name) name = getenv("TRIREME_TEST");
    if (!part || strcmp(part, "short") == 0)
        cmocka_set_skip_filter("long_*");
    else if (strcmp(part, "long") == 0)
        cmocka_set_test_filter("long_*");
    for (size_t i = 0; name && i < sizeof files / sizeof *files; i++) {
        if (strcmp(name, files[i].name) != 0) continue;
        setenv("TRIREME_TEST", name, 1);
        return files[i].run(argc, argv);
    }
    fprintf(stderr, "%s: run me by one of these names:\n", argv[0]);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        fprintf(stderr, "    %s\n", files[i].name);
    return 2;
}
