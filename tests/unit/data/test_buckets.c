/* Batches of samples of like length: each sample once an epoch, cut to the rows that the longest of
 * the step needs, the same from any step, for any number of ranks and micro-batches. */
#include "helpers.h"

#include <math.h>

#include "runtime/data/buckets.h"

enum { T = 12, DOCUMENTS = 61, BATCH = 4, FIRST = 100 };
static const int64_t rows_of[] = {4, 8, T};

static size_t length(size_t i)
{
    return 2 + i * 7 % 11; /* with its separator: 2 to 12 */
}

/* A text, and a model of it with two shorter ones. */
typedef struct {
    world w;
    tr_model shorter[2];
    tr_input inputs[2];
    tr_dataset *d;
} texts;

/* Document i is a separator, 0, and so many of its own number. */
static void open_texts(texts *x, bool shuffle)
{
    world *w = &x->w;
    char text[DOCUMENTS * T];
    size_t n = 0;
    world_open(w, 1, (int64_t[]){T}, 256);
    w->inputs[0].ids = 256;
    w->m.rows = T;
    w->m.outputs = 256 * T;
    w->m.ndim_target = 1;
    w->m.target_dims[0] = T;
    w->c.model.loss.ignore_index = -100;
    w->c.data.train = (tr_source_config){
        .path = (char *)"a", .format = TR_FORMAT_TEXT, .documents = 0, .present = true};
    for (size_t i = 0; i < DOCUMENTS; i++) {
        text[n++] = 0;
        for (size_t k = 1; k < length(i); k++) text[n++] = (char)(FIRST + i);
    }
    text[n++] = 0;
    write_bytes(w, "a", text, n);
    w->m.nshorter = 2;
    for (size_t b = 0; b < 2; b++) {
        x->inputs[b] = w->inputs[0];
        x->inputs[b].dims[0] = rows_of[b];
        x->shorter[b] = w->m;
        x->shorter[b].inputs = &x->inputs[b];
        x->shorter[b].nshorter = 0;
        x->shorter[b].target_dims[0] = rows_of[b];
        w->m.shorter[b] = &x->shorter[b];
    }
    w->c.data.shuffle = shuffle;
    x->d = opens(w);
}

static void close_texts(texts *x)
{
    tr_dataset_close(x->d);
    world_close(&x->w);
}

static tr_loader *loader_open(const texts *x, int micro_batches, int rank, int size)
{
    tr_loader *l = NULL;
    const tr_loader_options o = {.config = &x->w.c,
                                 .model = &x->w.m,
                                 .dataset = x->d,
                                 .train = true,
                                 .cut = true,
                                 .batch = BATCH,
                                 .micro_batches = micro_batches,
                                 .rank = rank,
                                 .size = size,
                                 .dtype = TR_F32,
                                 .workers = size > 1 ? 2 : 0,
                                 .prefetch = 2};
    if (tr_loader_open(&o, &l) != TR_OK) fail_msg("%s", tr_last_error()->text);
    return l;
}

/* One sample, of which so many rows came: its number. */
static size_t check_sample(const tr_batch *b, int64_t at, int64_t rows)
{
    const int32_t *x = (const int32_t *)b->inputs[0] + at * rows;
    const int32_t *y = (const int32_t *)b->targets + at * rows;
    const size_t i = (size_t)(x[1] - FIRST);
    assert_true(i < DOCUMENTS && length(i) <= (size_t)rows);
    for (size_t k = 0; k < (size_t)rows; k++) {
        const bool within = k < length(i), last = k + 1 == length(i);
        assert_int_equal(x[k], within && k > 0 ? (int32_t)(FIRST + i) : 0);
        assert_int_equal(y[k], !within ? -100 : last ? 0 : (int32_t)(FIRST + i));
    }
    return i;
}

static int64_t least(size_t longest)
{
    size_t b = 0;
    while (longest > (size_t)rows_of[b]) b++;
    return rows_of[b];
}

/* The next step's samples, in the order of micro-batches and ranks. Returns its rows. */
static int64_t next_step(tr_loader **l, int micro_batches, int size, size_t *n,
                         size_t samples[BATCH])
{
    int64_t rows = 0;
    *n = 0;
    for (int m = 0; m < micro_batches; m++)
        for (int r = 0; r < size; r++) {
            tr_batch b;
            if (tr_loader_next(l[r], &b) != TR_OK) fail_msg("%s", tr_last_error()->text);
            const int64_t its = b.rows ? b.rows : T;
            assert_true(rows == 0 || its == rows);
            rows = its;
            for (int64_t k = 0; k < b.count; k++) samples[(*n)++] = check_sample(&b, k, rows);
        }
    return rows;
}

/* What comes of an epoch, a number each: samples, then -1 a step. */
static void one_epoch(const texts *x, int micro_batches, int size, uint64_t epoch, uint64_t from,
                      int *order, size_t *count)
{
    tr_loader *l[3] = {NULL};
    const uint64_t steps = (DOCUMENTS + BATCH - 1) / BATCH;
    for (int r = 0; r < size; r++) {
        l[r] = loader_open(x, micro_batches, r, size);
        assert_int_equal(tr_loader_seek(l[r], epoch * steps + from), TR_OK);
    }
    *count = 0;
    for (uint64_t s = from; s < steps; s++) {
        size_t n, samples[BATCH], longest = 0;
        const int64_t rows = next_step(l, micro_batches, size, &n, samples);
        for (size_t k = 0; k < n; k++) {
            if (length(samples[k]) > longest) longest = length(samples[k]);
            order[(*count)++] = (int)samples[k];
        }
        assert_int_equal(rows, least(longest));
        order[(*count)++] = -1;
    }
    for (int r = 0; r < size; r++) tr_loader_close(l[r]);
}

/* Steps whose samples need more than one number of rows. */
static size_t mixed(const int *order, size_t count)
{
    size_t n = 0;
    int64_t low = T, high = 0;
    for (size_t k = 0; k < count; k++) {
        if (order[k] < 0) {
            n += high > low;
            low = T, high = 0;
            continue;
        }
        const int64_t rows = least(length((size_t)order[k]));
        if (rows < low) low = rows;
        if (rows > high) high = rows;
    }
    return n;
}

static void test_epochs(void **state)
{
    (void)state;
    int order[3][2 * DOCUMENTS], other[2 * DOCUMENTS];
    size_t count[3], n;
    texts x;
    open_texts(&x, true);
    for (uint64_t e = 0; e < 3; e++) {
        bool seen[DOCUMENTS] = {false};
        one_epoch(&x, 1, 1, e, 0, order[e], &count[e]);
        for (size_t k = 0; k < count[e]; k++) {
            if (order[e][k] < 0) continue;
            assert_false(seen[order[e][k]]);
            seen[order[e][k]] = true;
        }
        for (size_t i = 0; i < DOCUMENTS; i++) assert_true(seen[i]);
        assert_true(mixed(order[e], count[e]) <=
                    4); /* two borders, the circle's, the first step's */
        assert_true(e == 0 || memcmp(order[e], order[0], count[0] * sizeof(int)) != 0);
        for (int size = 1; size <= 3; size++) {
            one_epoch(&x, 2, size, e, 0, other, &n);
            assert_int_equal(n, count[e]);
            assert_memory_equal(other, order[e], n * sizeof *other);
        }
        one_epoch(&x, 1, 1, e, 5, other, &n);
        assert_memory_equal(other, order[e] + count[e] - n, n * sizeof *other);
    }
    close_texts(&x);
}

/* In the file's order steps keep their samples. */
static void test_not_shuffled(void **state)
{
    (void)state;
    int order[2 * DOCUMENTS];
    size_t n, at = 0;
    texts x;
    open_texts(&x, false);
    one_epoch(&x, 1, 2, 0, 0, order, &n);
    for (size_t k = 0; k < n; k++)
        if (order[k] >= 0) assert_int_equal(order[k], at++);
    assert_int_equal(at, DOCUMENTS);
    close_texts(&x);
}

/* Over many epochs any sample is as likely to be left out at the end, whatever its length. */
static void test_dropped(void **state)
{
    (void)state;
    enum { EPOCHS = 1000 };
    int longer = 0, all = 0;
    texts x;
    open_texts(&x, true);
    tr_buckets b;
    size_t held = 0;
    assert_int_equal(tr_buckets_open(&x.w.c, x.d, &x.w.m, true, &b, &held), TR_OK);
    for (uint64_t e = 0; e < EPOCHS; e++)
        longer += length(tr_buckets_sample(&b, 7, e, BATCH, DOCUMENTS - 1)) > 8;
    for (size_t i = 0; i < DOCUMENTS; i++) all += length(i) > 8;
    const double share = (double)all / DOCUMENTS;
    assert_true(fabs((double)longer / EPOCHS - share) < 5 * sqrt(share * (1 - share) / EPOCHS));
    tr_buckets_close(&b);
    close_texts(&x);
}

/* Told before there is memory for them. */
static void test_too_many(void **state)
{
    (void)state;
    texts x;
    open_texts(&x, true);
    tr_buckets b;
    size_t held = 0;
    x.d->samples = (uint64_t)1 << 32;
    assert_int_equal(tr_buckets_open(&x.w.c, x.d, &x.w.m, true, &b, &held), TR_CONFIG);
    const char *said = tr_last_error()->text;
    if (strncmp(said, "test.yaml:1:1: data.buckets: ", 29) != 0 ||
        !strstr(said,
                "has 4294967296 samples, expected at most 4294967295: leave data.buckets out, or "
                "set data.shuffle: false"))
        fail_msg("%s", said);
    assert_int_equal(held, 0);
    close_texts(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_not_shuffled),
        cmocka_unit_test(test_dropped),
        cmocka_unit_test(test_too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
