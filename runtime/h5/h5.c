/* HDF5 keeps a stack of messages: the outermost says what was tried, the innermost what went
 * wrong. */
#include "runtime/h5/h5.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void tr_h5_enter(tr_h5_guard *g)
{
    pthread_mutex_lock(&lock);
    g->print = NULL;
    g->data = NULL;
    H5Eget_auto2(H5E_DEFAULT, &g->print, &g->data);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    H5Eclear2(H5E_DEFAULT);
}

void tr_h5_leave(tr_h5_guard *g)
{
    H5Eset_auto2(H5E_DEFAULT, g->print, g->data);
    pthread_mutex_unlock(&lock);
}

typedef struct {
    char outer[TR_H5_REASON / 2], inner[TR_H5_REASON / 2];
    unsigned seen;
    int number;
} reasons;

static herr_t walk(unsigned n, const H5E_error2_t *e, void *ctx)
{
    reasons *r = ctx;
    const char *text = e->desc && e->desc[0] ? e->desc : "unknown";
    const char *number = strstr(text, "errno = ");
    if (n == 0) snprintf(r->outer, sizeof r->outer, "%s", text);
    snprintf(r->inner, sizeof r->inner, "%s", text);
    if (number) r->number = atoi(number + strlen("errno = "));
    r->seen++;
    return 0;
}

static void collect(reasons *r)
{
    memset(r, 0, sizeof *r);
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, walk, r);
    /* errno's text can span lines */
    for (char *p = r->inner; *p; p++)
        if (*p == '\n') *p = ' ';
    for (char *p = r->outer; *p; p++)
        if (*p == '\n') *p = ' ';
}

/* That HDF5 got no lock: its file system has none, or (EAGAIN) a process writes the file. */
static bool is_lock(const reasons *r)
{
    return strstr(r->inner, "unable to lock file") != NULL;
}

const char *tr_h5_reason(char buf[TR_H5_REASON])
{
    reasons r;
    collect(&r);
    if (r.seen == 0)
        snprintf(buf, TR_H5_REASON, "HDF5 gives no reason");
    else if (r.seen == 1)
        snprintf(buf, TR_H5_REASON, "HDF5: %s", r.outer);
    else
        snprintf(buf, TR_H5_REASON, "HDF5: %.190s: %.190s%s%s", r.outer, r.inner,
                 is_lock(&r) ? "; HDF5_USE_FILE_LOCKING=FALSE in the environment does without" : "",
                 is_lock(&r) && r.number == EAGAIN
                     ? ", if the process that writes it is done with it"
                     : "");
    return buf;
}

int tr_h5_errno(void)
{
    reasons r;
    collect(&r);
    return is_lock(&r) ? 0 : r.number;
}

tr_status tr_h5_fail_at(const char *file, int line, tr_status st, const char *fmt, ...)
{
    char text[TR_ERROR_TEXT], why[TR_H5_REASON];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return tr_fail_at(file, line, st, "%s: %s", text, tr_h5_reason(why));
}

void tr_h5_version(char *buf, size_t size)
{
    unsigned major = 0, minor = 0, release = 0;
    tr_h5_guard g;
    tr_h5_enter(&g);
    H5get_libversion(&major, &minor, &release);
    tr_h5_leave(&g);
    snprintf(buf, size, "%u.%u.%u", major, minor, release);
}
