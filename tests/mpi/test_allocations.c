/* ranks: 1 2 3 4 */
/* Nothing is allocated in the step loop, by any thread: every allocation of the process is seen
 * here, because the executable's malloc stands before the C library's, and is put down to the
 * object (the executable, a shared library) whose code asked for it.
 *
 * What counts as ours: what our own code, linked into the executable, asks for, and what any
 * library but those below does on our behalf, the C library first of all. Not ours to change, and
 * only required to leave nothing behind: oneDNN and its C++ library, which build an argument map at
 * each execution, and MPI with its helpers, which make requests. */
#include "training.h"

#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

#include "kernels/cpu/cpu.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKIPPED "the sanitizer has an allocator of its own"
#elif !defined(__GLIBC__)
#define SKIPPED "only written for the GNU C library"
#endif

#ifndef SKIPPED

/* ---- Who asks -------------------------------------------------------------------------------- */

enum { OURS, ONEDNN, MESSAGES, WHO };
enum { MAX_SPANS = 4096 };

typedef struct {
    uintptr_t begin, end;
    int who;
    char name[64];
} span;

static span spans[MAX_SPANS];
static size_t nspans;

static int who_is(const char *name)
{
    static const char *const onednn[] = {"libdnnl", "libstdc++", "libgomp"};
    static const char *const messages[] = {"libmpi",   "libopen-", "mca_",  "libpmix",
                                           "libhwloc", "libevent", "libuc", "libfabric"};
    for (size_t i = 0; i < TR_COUNT(onednn); i++)
        if (strstr(name, onednn[i])) return ONEDNN;
    for (size_t i = 0; i < TR_COUNT(messages); i++)
        if (strstr(name, messages[i])) return MESSAGES;
    return OURS;
}

static int add_object(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    (void)data;
    const char *slash = strrchr(info->dlpi_name, '/');
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type != PT_LOAD || !(h->p_flags & PF_X) || nspans == MAX_SPANS) continue;
        span *s = &spans[nspans++];
        s->begin = info->dlpi_addr + h->p_vaddr;
        s->end = s->begin + h->p_memsz;
        snprintf(s->name, sizeof s->name, "%s",
                 slash                ? slash + 1
                 : info->dlpi_name[0] ? info->dlpi_name
                                      : "the executable");
        s->who = who_is(s->name);
    }
    return 0;
}

static const span *find(uintptr_t at)
{
    for (size_t i = 0; i < nspans; i++)
        if (at >= spans[i].begin && at < spans[i].end) return &spans[i];
    return NULL;
}

/* ---- Counting -------------------------------------------------------------------------------- */

static atomic_bool counting;
static atomic_ulong counts[WHO];
static atomic_long live; /* bytes allocated less bytes freed while counting */
static _Atomic uintptr_t first_caller;

static void *note(void *p, const void *caller)
{
    if (!p || !atomic_load(&counting)) return p;
    const span *s = find((uintptr_t)caller);
    int who = s ? s->who : OURS;
    atomic_fetch_add(&counts[who], 1);
    uintptr_t none = 0;
    if (who == OURS) atomic_compare_exchange_strong(&first_caller, &none, (uintptr_t)caller);
    atomic_fetch_add(&live, (long)malloc_usable_size(p));
    return p;
}

static void unnote(void *p)
{
    if (p && atomic_load(&counting)) atomic_fetch_sub(&live, (long)malloc_usable_size(p));
}

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

#define CALLER __builtin_return_address(0)

void *malloc(size_t n)
{
    return note(__libc_malloc(n), CALLER);
}

void *calloc(size_t count, size_t size)
{
    return note(__libc_calloc(count, size), CALLER);
}

void *realloc(void *p, size_t n)
{
    unnote(p);
    return note(__libc_realloc(p, n), CALLER);
}

void *memalign(size_t align, size_t n)
{
    return note(__libc_memalign(align, n), CALLER);
}

void *aligned_alloc(size_t align, size_t n)
{
    return note(__libc_memalign(align, n), CALLER);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    void *p = note(__libc_memalign(align, n), CALLER);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

void free(void *p)
{
    unnote(p);
    __libc_free(p);
}

static void count_from_now(void)
{
    if (nspans == 0) dl_iterate_phdr(add_object, NULL);
    for (int i = 0; i < WHO; i++) atomic_store(&counts[i], 0);
    atomic_store(&live, 0);
    atomic_store(&first_caller, 0);
    atomic_store(&counting, true);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

/* That the counter sees what it must: our own code, C library calls on our behalf, other
 * threads. */
static void *allocate_on_thread(void *arg)
{
    void *volatile *p = arg;
    *p = calloc(3, 5);
    return NULL;
}

static void test_counter(void **state)
{
    (void)state;
    void *volatile p;
    char *volatile text;
    pthread_t thread;
    count_from_now();
    p = malloc(10);
    assert_int_equal(atomic_load(&counts[OURS]), 1);
    assert_true(atomic_load(&live) >= 10);
    p = realloc(p, 1000);
    assert_int_equal(atomic_load(&counts[OURS]), 2);
    free(p);
    assert_int_equal(atomic_load(&live), 0);
    p = aligned_alloc(64, 128);
    free(p);
    text = strdup("by the C library");
    free(text);
    assert_int_equal(atomic_load(&counts[OURS]), 4);
    p = tr_alloc(TR_MEM_OTHER, 7, 7);
    tr_free(p);
    assert_int_equal(atomic_load(&counts[OURS]), 5);
    assert_int_equal(atomic_load(&live), 0);
    atomic_store(&counting, false);
    assert_int_equal(pthread_create(&thread, NULL, allocate_on_thread, (void *)&p), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    free(p);
    count_from_now();
    assert_int_equal(pthread_create(&thread, NULL, allocate_on_thread, (void *)&p), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    atomic_store(&counting, false);
    assert_true(atomic_load(&counts[OURS]) >= 1);
    free(p);
    void *wanted = NULL;
    count_from_now();
    assert_int_equal(posix_memalign(&wanted, 4096, 100), 0);
    atomic_store(&counting, false);
    assert_int_equal((uintptr_t)wanted % 4096, 0);
    assert_int_equal(atomic_load(&counts[OURS]), 1);
    free(wanted);
}

#define CONVNET                                                                                    \
    "model:\n  input: [3, 12, 12]\n  layers:\n"                                                    \
    "    - conv2d: {out: 8, kernel: 3, padding: 1, bias: false}\n    - batchnorm\n    - relu\n"    \
    "    - residual: {body: [{conv2d: {out: 8, kernel: 3, padding: 1}}, batchnorm, relu]}\n"       \
    "    - dropout: {p: 0.2}\n    - maxpool2d: {kernel: 2}\n    - conv2d: {out: 4, kernel: 3}\n"   \
    "    - gelu\n    - global_avgpool\n    - flatten\n    - layernorm\n"                           \
    "    - linear: {out: 10}\n  loss: cross_entropy\n"

enum { WARM = 12, COUNTED = 40 };

/* Steps over several epochs, with short batches, augmentation, records and an evaluation; what the
 * loop does around a step (records, the progress line) too. `data`: behind the first keys of
 * data.augment. */
static void check_loop(const char *train, const char *data, const char *run, bool exact)
{
    training_folder f = training_folder_make();
    char *text = tr_sprintf(
        "data: {train: {format: synthetic, samples: 45}, eval: {format: synthetic, samples: 21}, "
        "augment: {crop: 2, flip: true%s}\n" CONVNET
        "train: {steps: 1000, batch: 12, log_every: 1, clip_norm: 1, ema: 0.9%s}\n",
        data, train);
    assert_non_null(text);
    training t = training_open(f.path, text, run, 0);
    tr_trainer *r = t.trainer;
    uint64_t calls = 0;
    r->started = tr_now();
    for (int s = 0; s < WARM + COUNTED; s++) {
        if (s == WARM) {
            MPI_Barrier(MPI_COMM_WORLD);
            calls = tr_mem_calls();
            count_from_now();
        }
        training_step(&t);
        if (t.rank == 0) {
            TRAINING_TRY(tr_report_step(r));
            tr_metrics_progress(r->metrics, &(tr_progress_record){.step = r->state.step,
                                                                  .epoch = r->state.epoch,
                                                                  .loss = r->loss});
        }
        if (s % 10 == 5) TRAINING_TRY(tr_trainer_evaluate(r, &(bool){false}));
    }
    atomic_store(&counting, false);
    unsigned long ours = atomic_load(&counts[OURS]);
    if (t.rank == 0)
        print_message("%d steps%s%s%s: %lu allocations of ours, %lu of oneDNN's, %lu of MPI's; "
                      "%ld bytes left behind\n",
                      COUNTED, train, data, run, ours, atomic_load(&counts[ONEDNN]),
                      atomic_load(&counts[MESSAGES]), atomic_load(&live));
    if (ours > 0) {
        const span *s = find(atomic_load(&first_caller));
        fail_msg("rank %d: %lu allocations in %d steps, the first asked for by %s+0x%lx", t.rank,
                 ours, COUNTED, s ? s->name : "unknown code",
                 (unsigned long)(atomic_load(&first_caller) - (s ? s->begin : 0)));
    }
    assert_int_equal(tr_mem_calls(), calls);
    if (exact) assert_int_equal(atomic_load(&live), 0);
    training_close(&t);
    tr_free(text);
    training_folder_remove(&f);
}

static const char *no_bf16(void)
{
    const tr_backend_options o = {0};
    void *ctx = NULL;
    assert_int_equal(tr_cpu_backend.open(&o, &ctx), TR_OK);
    const char *why = tr_cpu_backend.kernels->unsupported(ctx, tr_op_at(0), TR_BF16);
    tr_cpu_backend.close(ctx);
    return why;
}

static void test_loop(void **state)
{
    (void)state;
    check_loop("", "}, workers: 2", "", true);
    check_loop(", micro_batch: 1", "}, workers: 1, prefetch: 3", ", bucket_mb: 0.001", true);
    check_loop(", recompute: blocks", "}, workers: 0", "", true);
    check_loop("", ", mixup: {}, cutmix: {}}, workers: 1", "", true);
    if (no_bf16())
        print_message("bf16 is skipped: %s\n", no_bf16());
    else
        check_loop(", precision: bf16", "}, workers: 1", "", true);
    check_loop("", "}, workers: 1", ", collectives: mpi", false); /* MPI keeps its free lists */
    check_loop(", micro_batch: 1", "}, workers: 1", ", collectives: mpi, bucket_mb: 0.001", false);
}

#else

static void test_counter(void **state)
{
    (void)state;
    print_message("skipped: %s\n", SKIPPED);
    skip();
}
#define test_loop test_counter

#endif

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_counter),
                                          cmocka_unit_test(test_loop)};

RUN_MPI_TESTS(tests)
