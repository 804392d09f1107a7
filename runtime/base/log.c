/* The log: one line a message, to stderr, with rank and host before what other ranks than 0 say. */
#include "runtime/base/crc32c.h"
#include "runtime/base/visible.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { SAID = 256 }; /* beyond them all is said again */

static struct {
    int rank, size;
    tr_log_level level;
    char host[64];
    void (*before)(void *);
    void (*after)(void *);
    void *guard;
    uint32_t said[SAID]; /* names of what is said once */
    size_t nsaid;
    pthread_mutex_t lock;
} state = {.size = 1, .level = TR_LOG_INFO, .lock = PTHREAD_MUTEX_INITIALIZER};

void tr_log_init(int rank, int size, tr_log_level level)
{
    state.rank = rank;
    state.size = size;
    state.level = level;
    if (gethostname(state.host, sizeof state.host - 1) != 0) strcpy(state.host, "unknown host");
}

void tr_log_set_guard(void (*before)(void *), void (*after)(void *), void *ctx)
{
    pthread_mutex_lock(&state.lock);
    state.before = before;
    state.after = after;
    state.guard = ctx;
    pthread_mutex_unlock(&state.lock);
}

static void say(tr_log_level level, const char *fmt, va_list args)
{
    if (level > state.level || (state.rank > 0 && level > TR_LOG_WARN)) return;
    static const char *const prefix[] = {"error: ", "warning: ", "", "debug: "};
    char line[TR_ERROR_TEXT + 256];
    int n = snprintf(line, sizeof line, "trainer: %s", prefix[level]);
    const int who = n; /* where it says which rank speaks */
    if (state.rank > 0 || (state.size > 1 && level == TR_LOG_ERROR))
        n += snprintf(line + n, sizeof line - (size_t)n, "rank %d (%s): ", state.rank, state.host);
    int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, args);
    size_t length = (size_t)n + (m > 0 ? (size_t)m : 0);
    const size_t same = n > who ? (size_t)(n - who) - 2 : 0; /* without its colon */
    if (same && length < sizeof line - 2 && strncmp(line + n, line + who, same) == 0) {
        length -= same + 2; /* the text says it itself */
        memmove(line + who, line + n, length - (size_t)who);
    }
    if (length > sizeof line - 2) length = sizeof line - 2;
    char shown[sizeof line * 2];
    length = tr_visible(line, length, shown, sizeof shown - 1);
    shown[length++] = '\n';

    pthread_mutex_lock(&state.lock);
    if (state.before) state.before(state.guard);
    fwrite(shown, 1, length, stderr); /* one call, so that ranks' lines do not mix */
    fflush(stderr);
    if (state.after) state.after(state.guard);
    pthread_mutex_unlock(&state.lock);
}

void tr_log(tr_log_level level, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(level, fmt, args);
    va_end(args);
}

static bool said(const char *name)
{
    const uint32_t sum = tr_crc32c(0, name, strlen(name));
    bool found = false;
    pthread_mutex_lock(&state.lock);
    for (size_t i = 0; i < state.nsaid; i++) found |= state.said[i] == sum;
    if (!found && state.nsaid < SAID) state.said[state.nsaid++] = sum;
    pthread_mutex_unlock(&state.lock);
    return found;
}

void tr_log_once(tr_log_level level, const char *name, const char *fmt, ...)
{
    va_list args;
    if (state.rank > 0 || level > state.level || said(name)) return;
    va_start(args, fmt);
    say(level, fmt, args);
    va_end(args);
}

void tr_log_lines(tr_log_level level, const char *text)
{
    for (const char *line = text; *line;) {
        const size_t n = strcspn(line, "\n");
        tr_log(level, "%.*s", (int)n, line);
        line += n + (line[n] == '\n');
    }
}
