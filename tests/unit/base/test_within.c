/* Whether a file lies in a folder, whatever leads to it, and whether or not it is there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/file.h"

static char root[] = "/tmp/trireme-within-XXXXXX";

/* a/run/stages/x.h5, a/link -> run, a/last -> run/stages/new.h5, which is not there, a/run/out ->
 * /, a/circle -> circle */
static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(root) || chdir(root) != 0 || mkdir("a", 0700) != 0 || chdir("a") != 0) return -1;
    if (mkdir("run", 0700) != 0 || mkdir("run/stages", 0700) != 0) return -1;
    FILE *f = fopen("run/stages/x.h5", "w");
    if (!f || fclose(f) != 0) return -1;
    return symlink("run", "link") || symlink("run/stages/new.h5", "last") ||
           symlink("/", "run/out") || symlink("circle", "circle");
}

static int tear_down(void **state)
{
    (void)state;
    static const char *const files[] = {
        "run/stages/x.h5", "run/stages", "run/out", "run", "link", "last", "circle"};
    for (size_t i = 0; i < TR_COUNT(files); i++)
        if (remove(files[i]) != 0) return -1;
    return chdir("..") || rmdir("a") || rmdir(root);
}

/* `expected` NULL: it is not within. */
static void check(const char *folder, const char *file, const char *expected)
{
    char within[PATH_MAX] = "";
    const bool is = tr_file_within(folder, file, within);
    if (is != (expected != NULL) || (is && strcmp(within, expected) != 0))
        fail_msg("%s in %s: \"%s\", expected %s", file, folder, is ? within : "none",
                 expected ? expected : "none");
}

static void what_is_there_counts_by_what_it_is(void **state)
{
    (void)state;
    static const char *const folders[] = {"run", "./run/", "link", "run/../run", "../a/link"};
    static const char *const files[] = {"run/stages/x.h5", "./link//stages/./x.h5",
                                        "run/stages/../stages/x.h5", "../a/run/stages/x.h5"};
    char here[PATH_MAX], whole[PATH_MAX + 64];
    assert_non_null(getcwd(here, sizeof here));
    for (size_t i = 0; i < TR_COUNT(folders); i++) {
        for (size_t k = 0; k < TR_COUNT(files); k++) {
            check(folders[i], files[k], "stages/x.h5");
            snprintf(whole, sizeof whole, "%s/%s", here, files[k]);
            check(folders[i], whole, "stages/x.h5");
        }
        check(folders[i], "run", NULL);
        check(folders[i], "running/x.h5", NULL);
        check(folders[i], "run/../x.h5", NULL);
        check(folders[i], "/", NULL);
    }
    check(here, "run/stages/x.h5", "run/stages/x.h5");
    check(".", "link/stages/x.h5", "run/stages/x.h5");
    check("/", "/x.h5", "x.h5");
}

static void what_is_missing_counts_by_its_name(void **state)
{
    (void)state;
    char here[PATH_MAX], whole[PATH_MAX + 64];
    assert_non_null(getcwd(here, sizeof here));
    check("run", "link/stages/02-prune.h5", "stages/02-prune.h5");
    check("link/new/run", "run/new/run/stages/x.h5", "stages/x.h5");
    check("none/../new", "new/stages/x.h5", "stages/x.h5");
    check("new", "../a/new/x.h5", "x.h5");
    check("new", "newer/x.h5", NULL);
    snprintf(whole, sizeof whole, "%s/../a/link/../new/x.h5", here);
    check("new", whole, "x.h5");
    check("new", "new/../new/x.h5", "x.h5");
    check("new", "x/../new/x.h5", NULL); /* cannot be opened, whatever is made in `new` */
    check("new", "new/x.h5/", NULL);
    check("new", "new/x.h5/../x.h5", NULL);
    check("run", "run/stages/x.h5/../x.h5", NULL);
    check("run", "", NULL);
}

static void links_count_as_themselves_and_by_where_they_lead(void **state)
{
    (void)state;
    check("run", "last", "stages/new.h5");
    check("run", "run/out", "out");
    check("run", "run/out/x.h5", NULL);
    check("run", "circle", NULL);
    check("run", "circle/x.h5", NULL);
}

static void too_long_a_path_is_in_no_folder(void **state)
{
    (void)state;
    char path[2 * PATH_MAX];
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = 0;
    check(".", path, NULL);
    check(path, "run/stages/x.h5", NULL);
    path[PATH_MAX - 1] = 0; /* as long as may be, but not with this folder's own */
    check(".", path, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_there_counts_by_what_it_is),
        cmocka_unit_test(what_is_missing_counts_by_its_name),
        cmocka_unit_test(links_count_as_themselves_and_by_where_they_lead),
        cmocka_unit_test(too_long_a_path_is_in_no_folder),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
