/* The progress line: on a terminal one line that is rewritten, wiped before a log line and drawn
 * again after it; elsewhere a plain line now and then. mpirun hands its ranks a pipe, so that
 * whether a terminal is at the end of it is asked of mpirun's own standard error. */
#include "runtime/metrics/internal.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define REDRAW_SECONDS 0.1
#define PLAIN_SECONDS  10.0

static void write_all(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t done = write(fd, text, n);
        if (done <= 0) return; /* nobody listens: not worth a word */
        text += done;
        n -= (size_t)done;
    }
}

static size_t columns_of(int fd)
{
    struct winsize w;
    return ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

bool tr_progress_terminal(size_t *columns)
{
    const char *term = getenv("TERM");
    struct stat s;
    char link[64], name[PATH_MAX];
    if (!term || strcmp(term, "dumb") == 0) return false;
    if (isatty(STDERR_FILENO)) {
        *columns = columns_of(STDERR_FILENO);
        return true;
    }
    bool launched = getenv("OMPI_COMM_WORLD_RANK") || getenv("PMIX_RANK") || getenv("PMI_RANK");
    if (!launched || fstat(STDERR_FILENO, &s) != 0 || !S_ISFIFO(s.st_mode)) return false;
    snprintf(link, sizeof link, "/proc/%ld/fd/2", (long)getppid());
    ssize_t n = readlink(link, name, sizeof name - 1);
    if (n <= 0) return false;
    name[n] = 0;
    if (strncmp(name, "/dev/pts/", 9) != 0 && strncmp(name, "/dev/tty", 8) != 0) return false;
    int fd = open(name, O_RDONLY | O_NOCTTY | O_CLOEXEC);
    *columns = fd < 0 ? 80 : columns_of(fd);
    if (fd >= 0) close(fd);
    return true;
}

void tr_progress_init(tr_progress *p, int fd, bool terminal, size_t columns, uint64_t total)
{
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    p->fd = fd;
    p->on = true;
    p->terminal = terminal;
    p->columns = columns;
    p->total = total;
    p->first_time = -1;
}

void tr_progress_fini(tr_progress *p)
{
    if (!p->on) return;
    tr_progress_end(p);
    pthread_mutex_destroy(&p->lock);
    p->on = false;
}

/* ---- The text -------------------------------------------------------------------------------- */

static void add(tr_progress *p, const char *fmt, ...) TR_PRINTF(2, 3);
static void add(tr_progress *p, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(p->line + p->used, sizeof p->line - p->used, fmt, args);
    va_end(args);
    if (n > 0) p->used += (size_t)n;
    if (p->used >= sizeof p->line) p->used = sizeof p->line - 1;
}

static void compose(tr_progress *p, double now, uint64_t step, uint64_t epoch, double loss,
                    double samples_per_s)
{
    char text[32];
    p->used = 0;
    add(p, "step %llu", (unsigned long long)step);
    if (p->total)
        add(p, "/%llu (%d %%)", (unsigned long long)p->total,
            (int)((double)step * 100 / (double)p->total));
    add(p, "  epoch %llu", (unsigned long long)epoch);
    if (!isnan(loss)) add(p, "  loss %.5g", loss);
    if (isfinite(samples_per_s) && samples_per_s > 0)
        add(p, "  %s samples/s", tr_format_count(samples_per_s, text, sizeof text));
    double spent = now - p->first_time;
    if (p->total > step && step > p->first_step && spent > 0) {
        double left = spent / (double)(step - p->first_step) * (double)(p->total - step);
        add(p, "  %s left", tr_format_seconds(left, text, sizeof text));
    }
}

/* ---- Drawing --------------------------------------------------------------------------------- */

static void draw(tr_progress *p)
{
    char text[sizeof p->line + 16];
    size_t n = p->used;
    if (p->terminal && p->columns > 1 && n > p->columns - 1) n = p->columns - 1;
    int length =
        snprintf(text, sizeof text, p->terminal ? "\r%.*s\033[K" : "%.*s\n", (int)n, p->line);
    write_all(p->fd, text, (size_t)length);
    p->shown = p->terminal;
    p->pending = false;
}

void tr_progress_step(tr_progress *p, double now, uint64_t step, uint64_t epoch, double loss,
                      double samples_per_s)
{
    if (!p->on) return;
    pthread_mutex_lock(&p->lock);
    bool first = p->first_time < 0;
    if (first) {
        p->first_time = p->last_time = now;
        p->first_step = step;
    }
    compose(p, now, step, epoch, loss, samples_per_s);
    p->pending = true;
    double wait = p->terminal ? REDRAW_SECONDS : PLAIN_SECONDS;
    if ((first && p->terminal) || now - p->last_time >= wait) {
        p->last_time = now;
        draw(p);
    }
    pthread_mutex_unlock(&p->lock);
}

void tr_progress_end(tr_progress *p)
{
    if (!p->on) return;
    pthread_mutex_lock(&p->lock);
    if (p->pending) draw(p);
    if (p->shown) write_all(p->fd, "\n", 1);
    p->shown = false;
    pthread_mutex_unlock(&p->lock);
}

/* Called in pairs, with the log's own lock held: no step is drawn in between. */
void tr_progress_before_log(void *progress)
{
    tr_progress *p = progress;
    pthread_mutex_lock(&p->lock);
    if (p->shown) write_all(p->fd, "\r\033[K", 4);
}

void tr_progress_after_log(void *progress)
{
    tr_progress *p = progress;
    if (p->shown) draw(p);
    pthread_mutex_unlock(&p->lock);
}
