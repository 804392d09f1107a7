/* A process that may have no file open besides those it has: what a limit (ulimit -n) met at that
 * moment looks like. */
#ifndef TR_TESTS_FEW_FILES_H
#define TR_TESTS_FEW_FILES_H

#include "runtime/base/base.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

/* `more` files may be opened yet. Returns the limit before, for more_files(). */
static inline struct rlimit few_files_left(int more)
{
    struct rlimit before, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const int next = open("/dev/null", O_RDONLY | O_CLOEXEC); /* the lowest that is free */
    assert_true(next >= 0);
    close(next);
    few = (struct rlimit){(rlim_t)(next + more), before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    return before;
}

static inline void more_files(struct rlimit before)
{
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* The last error says so, of this file, and not that the file is no such file. */
static inline void assert_few_files(const char *file)
{
    const char *text = tr_last_error()->text;
    if (!strstr(text, file) || !strstr(text, "cannot be opened: this process has all of the") ||
        !strstr(text, "(ulimit -n)"))
        fail_msg("%s", text);
}

#endif
