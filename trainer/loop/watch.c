#include "trainer/loop/watch.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/crc32c.h"
#include "runtime/config/memory.h"
#include "trainer/plan/choose.h"
#include "trainer/loop/trainer.h"

typedef struct {
    size_t anonymous, shared, file, swapped; /* bytes */
} process;

/* Without a stream, which would allocate: the step loop does not. */
static void read_file(const char *path, char *text, size_t room)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    for (ssize_t got = 1; file >= 0 && n + 1 < room && got > 0;) {
        got = read(file, text + n, room - 1 - n);
        if (got > 0) n += (size_t)got;
    }
    text[n] = 0;
    if (file >= 0) close(file);
}

/* The number behind a word that begins a line; 0 where it is not there. */
static uint64_t number_of(const char *text, const char *word)
{
    for (const char *at = text; at && *at; at = strchr(at, '\n'), at += at ? 1 : 0)
        if (strncmp(at, word, strlen(word)) == 0) return strtoull(at + strlen(word), NULL, 10);
    return 0;
}

static process look_at_process(void)
{
    char text[8192];
    const char *pretend = getenv("TRIREME_PROCESS_STATUS"); /* tests: a file like this one */
    read_file(pretend ? pretend : "/proc/self/status", text, sizeof text);
    return (process){.anonymous = (size_t)number_of(text, "RssAnon:") * 1024,
                     .shared = (size_t)number_of(text, "RssShmem:") * 1024,
                     .file = (size_t)number_of(text, "RssFile:") * 1024,
                     .swapped = (size_t)number_of(text, "VmSwap:") * 1024};
}

/* Pages that the node has read back from its swap since it was started; 0 where that is not
 * known. */
static uint64_t read_back(void)
{
    char text[16384];
    read_file("/proc/vmstat", text, sizeof text);
    return number_of(text, "pswpin ");
}

void tr_memory_watch_begin(tr_trainer *t)
{
    t->watch.read_back = read_back();
}

/* Of the node's ranks: what they share counts once. */
static double in_use(const tr_trainer *t, const process *p, double device_used)
{
    if (!t->backend->host) return device_used;
    return (double)p->anonymous * t->topology->local_size + (double)p->shared + (double)p->file;
}

/* A size that is given for a node is of whole processes. All others are of what was left: beside
 * the processes as they were, but for what the plan counts of them; beside all that a GPU held, of
 * other jobs too. */
void tr_memory_watch_limit(tr_trainer *t, size_t limit)
{
    tr_device_load load = {0};
    const size_t given = tr_memory_limit_of(t->config);
    const process p = look_at_process();
    t->watch.limit = limit;
    t->watch.before = 0;
    if (t->backend->host && given > 0 && given != TR_MEMORY_AUTO) return;
    if (t->backend->load && !t->backend->load(t->backend_ctx, &load)) load.used = 0;
    const double planned =
        t->backend->host ? (double)tr_held_memory(t) * t->topology->local_size : 0;
    t->watch.before = fmax(0, in_use(t, &p, (double)load.used) - planned);
}

static void warn_of_limit(tr_trainer *t, double used)
{
    char have[32], limit[32], whose[64];
    const double said = t->config->run.memory_warn, share = said < 0 ? TR_MEMORY_WARN_AUTO : said;
    if (t->watch.warned || t->watch.limit == 0 || share <= 0 || isnan(used) ||
        used <= share * (double)t->watch.limit)
        return;
    t->watch.warned = true;
    tr_choice_of(t->config, whose, sizeof whose);
    if (!tr_comm_first_to_say(t->comm, TR_NOTICE_LIMIT, tr_crc32c(0, whose, strlen(whose)))) return;
    tr_log(TR_LOG_WARN,
           "memory: %s of %s (%s) are in use on %s: more than run.memory_warn: %g "
           "of it; a lower run.memory_limit has less planned",
           tr_format_bytes(used, have, sizeof have),
           tr_format_bytes((double)t->watch.limit, limit, sizeof limit), whose,
           t->backend->host ? "this node" : "this rank's GPU", share);
}

static void warn_of_swapping(tr_trainer *t, const process *p)
{
    enum { WORTH_IT = 1 << 20 };
    char swapped[32], host[64] = "";
    if (t->watch.told || p->swapped < WORTH_IT) return;
    t->watch.told = true;
    if (!tr_comm_first_to_say(t->comm, TR_NOTICE_SWAPPING, 0)) return;
    gethostname(host, sizeof host - 1);
    tr_log(TR_LOG_WARN,
           "memory: %s of this process are swapped out on %s, and %llu pages were read back since "
           "training began: the node is short of memory, and steps wait for its disk; "
           "run.memory_limit plans for less",
           tr_format_bytes((double)p->swapped, swapped, sizeof swapped), host,
           (unsigned long long)(read_back() - t->watch.read_back));
}

void tr_memory_watch_look(tr_trainer *t)
{
    tr_device_load load;
    const process p = look_at_process();
    const bool known = t->backend->load && t->backend->load(t->backend_ctx, &load);
    warn_of_limit(t, in_use(t, &p, known ? (double)load.used : NAN) - t->watch.before);
    warn_of_swapping(t, &p);
}

tr_status tr_memory_watch_record(tr_trainer *t, const char *when)
{
    double p[TR_MEM_KINDS], h[TR_MEM_KINDS];
    tr_memory_total predicted;
    const process now = look_at_process();
    const bool start = strcmp(when, "start") == 0;
    if (start && t->watch.recorded) return TR_OK;
    t->watch.recorded = true;
    tr_predicted_memory(t, &predicted);
    for (int k = 0; k < TR_MEM_KINDS; k++) {
        p[k] =
            (double)(predicted.bytes[TR_SPACE_HOST][k] + predicted.bytes[TR_SPACE_DEVICE][k]) / 1e6;
        h[k] = (double)tr_held_of(t, (tr_mem_kind)k) / 1e6;
    }
#define BOTH(name) p[TR_MEM_##name], h[TR_MEM_##name]
    return tr_metrics_event(
        t->metrics, "memory",
        "when:s step:u limit_mb:o rss_mb:d swapped_mb:d "
        "predicted_weights_mb:d held_weights_mb:d predicted_gradients_mb:d held_gradients_mb:d "
        "predicted_moments_mb:d held_moments_mb:d predicted_packed_mb:d held_packed_mb:d "
        "predicted_activations_mb:d held_activations_mb:d predicted_workspace_mb:d "
        "held_workspace_mb:d predicted_io_mb:d held_io_mb:d predicted_data_mb:d held_data_mb:d "
        "predicted_snapshot_mb:d held_snapshot_mb:d",
        when, t->state.step, t->watch.limit > 0 ? (double)t->watch.limit / 1e6 : NAN,
        (double)(now.anonymous + now.shared + now.file) / 1e6, (double)now.swapped / 1e6,
        BOTH(WEIGHTS), BOTH(GRADIENTS), BOTH(MOMENTS), BOTH(PACKED), BOTH(ACTIVATIONS),
        BOTH(WORKSPACE), BOTH(IO), BOTH(DATA), BOTH(SNAPSHOT));
#undef BOTH
}

tr_status tr_memory_watch_gather(tr_trainer *t)
{
    uint64_t own = tr_mem_peak_rss();
    const tr_status st = tr_comm_all_gather(t->comm, &own, t->gathered, sizeof own);
    for (int r = 0; st == TR_OK && r < t->topology->size; r++)
        if (t->gathered[r] > t->watch.peak_most) {
            t->watch.peak_most = (size_t)t->gathered[r];
            t->watch.peak_rank = r;
        }
    return st;
}
