/* The floor everything stands on: status and error records, memory, log, random numbers, small
 * arithmetic. Nothing here knows of configs, graphs or MPI. */
#ifndef TR_BASE_H
#define TR_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define TR_COUNT(array)      (sizeof(array) / sizeof((array)[0]))

/* ---- Status ------------------------------------------------------------------------------- */

/* name, what a reader is told, exit status of the process that ends with it */
#define TR_STATUS_TABLE(X)                                                                         \
    X(OK, "ok", 0)                                                                                 \
    X(CONFIG, "bad config", 2)                                                                     \
    X(USAGE, "bad command line", 2)                                                                \
    X(SHAPE, "shapes do not fit", 2)                                                               \
    X(UNSUPPORTED, "not supported", 2)                                                             \
    X(DATA, "bad data", 1)                                                                         \
    X(FILE, "bad run file", 1)                                                                     \
    X(IO, "input/output failed", 1)                                                                \
    X(MEMORY, "out of memory", 1)                                                                  \
    X(MPI, "MPI failed", 1)                                                                        \
    X(KERNEL, "a compute library failed", 1)                                                       \
    X(NONFINITE, "loss or gradient not finite", 1)                                                 \
    X(PEER, "a peer failed", 1)                                                                    \
    X(DIFFERENT, "not the same on all ranks", 1)                                                   \
    X(BUDGET, "a stage missed its budget", 1)                                                      \
    X(STOPPED, "stopped on request", 75)                                                           \
    X(INTERNAL, "a bug", 1)

typedef enum {
#define X(name, text, exit_code) TR_##name,
    TR_STATUS_TABLE(X)
#undef X
} tr_status;

const char *tr_status_text(tr_status st);
int tr_status_exit_code(tr_status st);

/* What could be done about a failure, where who fails does not know how the user would do it: the
 * trainer, which knows the config's keys, adds that to the text. */
typedef enum {
    TR_HINT_NONE,
    TR_HINT_DEVICE_MEMORY, /* the device's memory is full */
    TR_HINT_PINNED_MEMORY, /* host memory for the device's copies could not be allocated */
    TR_HINT_BATCH,         /* a batch is too large for a kernel */
    TR_HINT_WORKSPACE,     /* a kernel may not have the scratch memory that it needs */
    TR_HINT_RECORDING,     /* a step could not be recorded */
    TR_HINT_DISK_FULL,     /* the file system, or the user's share of it, is full */
    TR_HINT_NO_DRIVER,     /* this machine has nothing that drives GPUs */
} tr_hint;

/* The thread's error record: what failed, in one line for the user, and where in the source. A
 * place in what the user wrote stands before all else in the text. */
#define TR_ERROR_TEXT 1024
typedef struct {
    tr_status status;
    tr_hint hint;
    bool hearsay; /* another rank's failure, which that rank tells the user */
    int place;    /* bytes of the text that are the place: of "FILE:LINE:COLUMN: "; 0: none */
    char text[TR_ERROR_TEXT];
    const char *file;
    int line;
} tr_error;

/* Local. Writes the calling thread's error record and returns `st`, so that
 * `return TR_FAIL(TR_DATA, "%s: ...", path)` reads as one step. Text: no trailing newline or
 * dot. */
tr_status tr_fail_at(const char *file, int line, tr_status st, const char *fmt, ...)
    TR_PRINTF(4, 5);
#define TR_FAIL(st, ...) tr_fail_at(__FILE__, __LINE__, (st), __VA_ARGS__)

/* Local. Who hands a failure on adds to its record, of which all else stays, and returns `st`, its
 * status from here on. */
tr_status tr_fail_hint(tr_status st, tr_hint hint);
tr_status tr_fail_hearsay(tr_status st); /* it is another rank's */
/* "WHERE: " before all of the text, as the record's place; one that it had before is part of what
 * was said. */
tr_status tr_fail_place(tr_status st, const char *fmt, ...) TR_PRINTF(2, 3);
/* Words before what was said, and behind: `return tr_fail_before(st, "layer %s: ", name)`. Where
 * the text gets too long, it is what was said that is cut. */
tr_status tr_fail_before(tr_status st, const char *fmt, ...) TR_PRINTF(2, 3);
tr_status tr_fail_behind(tr_status st, const char *fmt, ...) TR_PRINTF(2, 3);

/* Local. The calling thread's record; valid until the thread fails again, or adds to it. */
const tr_error *tr_last_error(void);
/* Local. Puts a record taken on another thread (or rank) in place of the calling thread's. */
void tr_set_error(const tr_error *e);

/* The one control-flow macro: needs `tr_status st` and a label `out` in scope. */
#define TR_TRY(expr)                                                                               \
    do {                                                                                           \
        st = (expr);                                                                               \
        if (st != TR_OK) goto out;                                                                 \
    } while (0)
/* As TR_TRY, failing with a fresh record when `cond` does not hold. */
#define TR_NEED(cond, status, ...)                                                                 \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            st = TR_FAIL((status), __VA_ARGS__);                                                   \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/* Local. The status in the calling thread's record: for who finds a NULL where the function that
 * gave it has failed. */
static inline tr_status tr_last_status(void)
{
    const tr_status st = tr_last_error()->status;
    if (st != TR_OK) return st;
    (void)TR_FAIL(TR_INTERNAL, "a failure that left no record");
    return TR_INTERNAL;
}
/* A failed allocation has one form: the allocator (tr_alloc() and all that stands on it, a
 * backend's memory) has written the record, and the caller hands its status on, with TR_HAVE(p)
 * where there is a label `out`, `if (!p) return tr_last_status();` elsewhere, tr_agree(c, p ? TR_OK
 * : tr_last_status(), ...) among ranks. Several at once: TR_HAVE(a && b). */
#define TR_HAVE(p) TR_TRY((p) ? TR_OK : tr_last_status())

/* ---- Memory ------------------------------------------------------------------------------- */

/* What the bytes are for; the plan predicts these kinds and the end of a run reports them. */
#define TR_MEMORY_TABLE(X)                                                                         \
    X(WEIGHTS, "weights")                                                                          \
    X(GRADIENTS, "gradients")                                                                      \
    X(MOMENTS, "moments")                                                                          \
    X(PACKED, "packed weights")                                                                    \
    X(ACTIVATIONS, "activations")                                                                  \
    X(WORKSPACE, "workspace")                                                                      \
    X(IO, "I/O")                                                                                   \
    X(DATA, "data")                                                                                \
    X(SNAPSHOT, "snapshot")                                                                        \
    X(OTHER, "other")

typedef enum {
#define X(name, text) TR_MEM_##name,
    TR_MEMORY_TABLE(X)
#undef X
        TR_MEM_KINDS
} tr_mem_kind;

const char *tr_mem_kind_name(tr_mem_kind kind);

/* Local. `count * size` zeroed bytes, 64-byte aligned, counted under `kind`. NULL with an error
 * record (TR_MEMORY) on overflow or when memory is out; count 0 gives a valid pointer. */
void *tr_alloc(tr_mem_kind kind, size_t count, size_t size);
/* Local. As tr_alloc for growing arrays: keeps the old bytes, zeroes new ones. `p` may be NULL. */
void *tr_realloc(tr_mem_kind kind, void *p, size_t count, size_t size);
/* Local. Room for one element more in an array of `count`, NULL or all grown by this: doubled at
 * powers of two, else `p` as it is, so that n elements cost n. As tr_realloc on failure. */
void *tr_room_for_one(tr_mem_kind kind, void *p, size_t count, size_t size);
void tr_free(void *p); /* NULL is fine */
/* Gives the pages that lie wholly in [p, p + nbytes) of a block of tr_alloc back to the system:
 * they read as zeros from here on, and count as before. Returns how many bytes that were; 0 where
 * it cannot be done. */
size_t tr_mem_drop(void *p, size_t nbytes);
char *tr_strdup(const char *s); /* TR_MEM_OTHER */
char *tr_sprintf(const char *fmt, ...)
    TR_PRINTF(1, 2); /* allocated text, TR_MEM_OTHER; NULL on failure */
#define TR_NEW(kind, type) ((type *)tr_alloc((kind), 1, sizeof(type)))

/* Local. Memory got elsewhere (an MPI window) that belongs in the report; negative releases. */
void tr_mem_count(tr_mem_kind kind, int64_t nbytes);
size_t tr_mem_held(tr_mem_kind kind); /* bytes now */
size_t tr_mem_peak(tr_mem_kind kind);
uint64_t tr_mem_calls(void);  /* allocations ever made: the step loop must not move it */
size_t tr_mem_peak_rss(void); /* bytes, getrusage */
/* From now on the peak is again what it was, `before`, or more: what a probe took for a moment is
 * left out. Nothing where the system does not let it be. */
void tr_mem_peak_rss_again(size_t before);
size_t tr_mem_rss(void); /* bytes, /proc/self/statm */
/* What that was when it was first asked for here: what a program holds by itself, before anything
 * that is planned. What one training leaves, another uses again. */
size_t tr_mem_rss_first(void);
/* Bytes this process could still get from the host and its control group; SIZE_MAX if unknown. */
size_t tr_mem_available(void);
/* TR_MEMORY, "WHAT: 85 GB of memory are needed, 21 GB are available", where so much is not to be
 * had from the host. */
tr_status tr_mem_fits(size_t nbytes, const char *what);
/* Local. Of a process of this machine, as /proc/PID/stat has it: R runs, S sleeps, D sleeps in
 * uninterruptible I/O, T is stopped, t by a debugger, Z has ended, ...; 0: cannot be known. */
char tr_process_state(long pid);
/* Local. No process of this machine has the number, or it has ended and nobody has asked how yet (a
 * zombie, as the ranks of a killed launcher may stay for long). False where it cannot be known. */
bool tr_process_gone(long pid);
/* Test hook: the n-th allocation from now fails (1 = next); 0 switches off. */
void tr_mem_fail_at(uint64_t n);

/* Overflow-checked size arithmetic: false when the result does not fit. */
bool tr_mul_size(size_t a, size_t b, size_t *out);
bool tr_add_size(size_t a, size_t b, size_t *out);
static inline size_t tr_align_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- Log ---------------------------------------------------------------------------------- */

typedef enum { TR_LOG_ERROR, TR_LOG_WARN, TR_LOG_INFO, TR_LOG_DEBUG } tr_log_level;

/* Local. Who speaks: rank 0 says everything up to the level, other ranks warnings and errors only,
 * with "rank R (host): " before them. Call once after MPI is up; before that rank 0 of 1 is
 * taken. */
void tr_log_init(int rank, int size, tr_log_level level);
void tr_log(tr_log_level level, const char *fmt, ...) TR_PRINTF(2, 3); /* one line, to stderr */
/* Rank 0 alone, and nothing where it said something of this name before. */
void tr_log_once(tr_log_level level, const char *name, const char *fmt, ...) TR_PRINTF(3, 4);
void tr_log_lines(tr_log_level level, const char *text); /* each line of the text as one */
/* Called before and after a line is printed, so that a progress line can be wiped and redrawn. */
void tr_log_set_guard(void (*before)(void *), void (*after)(void *), void *ctx);

/* ---- Random numbers (counter-based) -------------------------------------------------------- */

/* What a stream is for: part of the key, so that purposes never share numbers. */
typedef enum {
    TR_RNG_INIT = 1,
    TR_RNG_SHUFFLE,
    TR_RNG_DROPOUT,
    TR_RNG_AUGMENT,
    TR_RNG_SYNTHETIC,
    TR_RNG_TEST,
    TR_RNG_BOOTSTRAP,
    TR_RNG_SEARCH,
    TR_RNG_SKETCH,
    TR_RNG_SAMPLE
} tr_rng_purpose;

/* Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11): four 32-bit
 * words that depend only on the arguments. key = (seed, purpose, stream), counter = (index,
 * block). */
typedef struct {
    uint32_t v[4];
} tr_philox;
tr_philox tr_philox_at(uint64_t seed, tr_rng_purpose purpose, uint32_t stream, uint64_t index,
                       uint32_t block);
/* The same in two parts, for loops over one stream. */
uint64_t tr_philox_key(uint64_t seed, tr_rng_purpose purpose, uint32_t stream);
tr_philox tr_philox_block(uint64_t key, uint64_t index, uint32_t block);
static inline float tr_uniform(uint32_t bits) /* [0,1), 24 bits */
{
    return (float)(bits >> 8) * 0x1p-24f;
}
/* Two standard normals from two words (Box-Muller). */
void tr_normal2(uint32_t a, uint32_t b, float out[2]);

/* Local. Where index i of [0, n) goes under the keyed permutation number `round` (the epoch): a
 * balanced Feistel network over the next even power of two with cycle walking. O(1) memory,
 * seekable. round < 2^62. */
uint64_t tr_permute(uint64_t seed, uint64_t round, uint64_t n, uint64_t i);

/* ---- Ranges ------------------------------------------------------------------------------- */

/* [begin, end) of whatever is counted: elements of the flat parameter space, places of an epoch. */
typedef struct {
    size_t begin, end;
} tr_range;
static inline size_t tr_range_count(tr_range r)
{
    return r.end - r.begin;
}
/* What is in both; empty where nothing is. */
static inline tr_range tr_range_common(tr_range a, tr_range b)
{
    const size_t begin = a.begin > b.begin ? a.begin : b.begin;
    const size_t end = a.end < b.end ? a.end : b.end;
    return (tr_range){begin, end > begin ? end : begin};
}

/* ---- Numbers ------------------------------------------------------------------------------ */

typedef enum { TR_F32, TR_BF16, TR_F16, TR_I32, TR_I64, TR_U8, TR_I8, TR_F64, TR_DTYPES } tr_dtype;
size_t tr_dtype_size(tr_dtype t);
const char *tr_dtype_name(tr_dtype t); /* "float32", "bfloat16", ... */

typedef uint16_t tr_bf16;
static inline float tr_bf16_to_f32(tr_bf16 b)
{
    union {
        uint32_t u;
        float f;
    } x = {(uint32_t)b << 16};
    return x.f;
}
static inline tr_bf16 tr_f32_to_bf16(float f) /* round to nearest even; NaN stays NaN */
{
    union {
        float f;
        uint32_t u;
    } x = {f};
    if ((x.u & 0x7fffffffu) > 0x7f800000u) return (tr_bf16)((x.u >> 16) | 0x40u);
    return (tr_bf16)((x.u + 0x7fffu + ((x.u >> 16) & 1u)) >> 16);
}

typedef uint16_t tr_f16; /* IEEE binary16 */
float tr_f16_to_f32(tr_f16 h);
tr_f16 tr_f32_to_f16(float f); /* round to nearest even, subnormals kept; NaN stays NaN */

/* ---- Time, text, checksums ----------------------------------------------------------------- */

double tr_now(void);          /* seconds, CLOCK_MONOTONIC */
double tr_since_launch(void); /* seconds since this process was started (its start in /proc) */
/* "12.3 MB", "1.2 GB": powers of 1000. Returns buf. */
char *tr_format_bytes(double nbytes, char *buf, size_t size);
/* Six digits, or "not finite": libraries print nan, -nan and inf each in its own way. */
char *tr_format_finite(double v, char *buf, size_t size);
char *tr_format_count(double n, char *buf, size_t size);   /* "272.5 k" */
char *tr_format_flop(double n, char *buf, size_t size);    /* "9.05 MFLOP" */
char *tr_format_seconds(double s, char *buf, size_t size); /* "1:02:03", "12.3 s" */
/* For "did you mean": the nearest of `names` by edits, a third of the shorter word's length of them
 * at most; NULL: none is so near. Upper and lower case are alike. */
const char *tr_nearest(const char *word, const char *const *names, size_t count);
/* SHA-256 (FIPS 180-4) of bytes as 64 hex digits plus NUL. */
void tr_sha256_hex(const void *bytes, size_t nbytes, char out[65]);

#endif
