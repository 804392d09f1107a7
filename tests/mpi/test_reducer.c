/* ranks: 1 2 3 4 */
/* The reducer in every mode and over many layouts: sums bit by bit where the order is defined,
 * equal bits on all ranks, the sum of squares, tallies, one reduction a bucket a step, what it
 * holds in memory. */
#include "modes.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "collectives/reducer/reducer.h"

static const layout layouts[] = {
    {"one unit", 1, {16}},
    {"one bucket", 1, {4096 + 16}},
    {"units", 7, {16, 16, 16, 16, 16, 16, 16}},
    {"uneven, some empty", 9, {48, 0, 16, 112, 0, 80016, 32, 1008, 0}},
    {"several chunks", 3, {150000, 16, 70000}},
    {"several pieces", 3, {560016, 16, 80000}},
    {"many", 40, {160, 176, 192, 208, 224, 240, 256, 272, 288, 304, 320, 336, 352, 368,
                  384, 400, 416, 432, 448, 464, 480, 496, 512, 528, 544, 560, 576, 592,
                  608, 624, 640, 656, 672, 688, 704, 720, 736, 752, 768, 784}},
};

enum { FROZEN = 80 }; /* weights behind the buckets */

typedef struct {
    const test_mode *mode;
    const layout *l;
    tr_comm *c;
    const tr_topology *t;
    tr_params *p;
    tr_reducer *r;
    tr_range buckets[MAX_BUCKETS];
    size_t count;
    tr_params_options po;
    tr_reducer_options o;
} bench;

static bench open_rounded(const test_mode *m, const layout *l, int nslots, const tr_range *rounded,
                          size_t nrounded, tr_dtype type)
{
    bench b = {.mode = m, .l = l, .c = open_mode(m, 30)};
    b.t = tr_comm_topology(b.c);
    for (size_t i = 0; i < l->nbuckets; i++) {
        b.buckets[i] = (tr_range){b.count, b.count + l->lengths[i]};
        b.count += l->lengths[i];
    }
    b.po = (tr_params_options){.count = b.count + FROZEN,
                               .buckets = b.buckets,
                               .nbuckets = l->nbuckets,
                               .nslots = nslots,
                               .rounded = rounded,
                               .nrounded = nrounded,
                               .type = type};
    b.o = (tr_reducer_options){.wire_bf16 = m->bf16, .shard = m->shard};
    assert_int_equal(tr_comm_params_open(b.c, &b.po, &b.o, &b.p), TR_OK);
    assert_int_equal(tr_reducer_open(b.c, b.p, &b.o, &b.r), TR_OK);
    assert_int_equal(strcmp(tr_reducer_name(b.r), "one rank") == 0,
                     tr_comm_topology(b.c)->size == 1);
    return b;
}

static bench open_bench(const test_mode *m, const layout *l, int nslots)
{
    return open_rounded(m, l, nslots, NULL, 0, TR_F32);
}

static void close_bench(bench *b)
{
    tr_reducer_close(b->r);
    tr_comm_params_close(b->p);
    tr_comm_close(b->c);
}

/* Magnitudes over many binades: sums in another order differ. */
static float gradient(int rank, int step, size_t i)
{
    static const float scale[] = {0x1p-6f, 0x1p-5f, 0x1p-4f, 0x1p-3f, 0x1p-2f, 0x1p-1f, 0x1p0f,
                                  0x1p1f,  0x1p2f,  0x1p3f,  0x1p4f,  0x1p5f,  0x1p6f};
    uint32_t h = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + (uint32_t)step * 97u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return (float)(int32_t)h / 2147483648.0f * scale[h % TR_COUNT(scale)];
}

/* The sum as the header defines it: ranks of a node in order, then nodes in order. */
static float expected(const bench *b, int step, size_t i, float *magnitude)
{
    int size = b->t->size, nodes = b->mode->nodes < size ? b->mode->nodes : size;
    float total = 0, all = 0;
    for (int node = 0, r = 0; node < nodes; node++) {
        float sum = 0;
        for (bool first = true; r < size && r * nodes / size == node; r++, first = false) {
            float g = gradient(r, step, i);
            sum = first ? g : sum + g;
            all += fabsf(g);
        }
        total = node ? total + sum : sum;
    }
    *magnitude = all;
    return total;
}

/* Exact where our own code adds; MPI's order, and bfloat16, within what rounding allows. */
static float tolerance(const bench *b, float magnitude)
{
    const tr_topology *t = b->t;
    if (t->size == 1) return 0;
    if (b->mode->bf16 && t->nodes > 1) return magnitude * 0x1p-7f;
    if (b->mode->shard && t->nodes == 1) return 0; /* in rank order, by our own code */
    return t->shared ? 0 : magnitude * 0x1p-22f;
}

static void fill(bench *b, int step)
{
    float *g = b->p->grads;
    for (size_t i = 0; i < b->count; i++) g[i] = gradient(b->t->rank, step, i);
}

/* Ranks differ in how they get ready: bucket by bucket with polls, in jumps, or all at once. */
static void reduce(bench *b, int step, double *tally, size_t ntally, double *squares)
{
    int way = (b->t->rank + step) % 3, n = (int)b->l->nbuckets;
    for (int i = 0; i < n; i++) {
        if (way == 0 || (way == 1 && i % 2) || i == n - 1) tr_reducer_ready(b->r, i);
        assert_int_equal(tr_reducer_poll(b->r), TR_OK);
    }
    assert_int_equal(tr_reducer_finish(b->r, tally, ntally, squares), TR_OK);
}

/* The owner's result becomes everybody's weights. */
static void take_weights(bench *b)
{
    const size_t n = b->p->nowned;
    const tr_range *owned = b->p->owned;
    float *g = b->p->grads, *w = b->p->weights;
    for (size_t k = 0; k < n; k++) {
        if (k) assert_true(owned[k].begin > owned[k - 1].end);
        assert_true(owned[k].end > owned[k].begin && owned[k].end <= b->count);
        memcpy(w + owned[k].begin, g + owned[k].begin,
               (owned[k].end - owned[k].begin) * sizeof(float));
    }
    assert_int_equal(tr_reducer_publish(b->r), TR_OK);
}

/* A hash that costs little under a sanitizer, too: of 32-bit words, FNV-1a's way. */
static uint64_t bits_of(const void *v, size_t nbytes)
{
    const uint32_t *words = v;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < nbytes / sizeof *words; i++) h = (h ^ words[i]) * 0x100000001b3u;
    return h;
}

static void same_everywhere(bench *b, const void *v, size_t nbytes)
{
    const uint64_t mine = bits_of(v, nbytes);
    uint64_t all[8];
    assert_int_equal(tr_comm_all_gather(b->c, &mine, all, sizeof mine), TR_OK);
    for (int r = 0; r < b->t->size; r++) assert_int_equal(all[r], mine);
}

static void check_step(bench *b, int step, double squares)
{
    const float *w = b->p->weights;
    double want_squares = 0;
    for (size_t i = 0; i < b->count; i++) {
        float magnitude, want = expected(b, step, i, &magnitude);
        if (!(fabsf(w[i] - want) <= tolerance(b, magnitude)))
            fail_msg("%s, %s, step %d: [%zu] = %.9g, expected %.9g", b->mode->name, b->l->name,
                     step, i, (double)w[i], (double)want);
        want_squares += (double)w[i] * (double)w[i];
    }
    assert_true(fabs(squares - want_squares) <= 1e-12 * want_squares);
    same_everywhere(b, &squares, sizeof(squares));
    same_everywhere(b, w, b->count * sizeof(float));
}

static void test_sums(void **state)
{
    (void)state;
    for (size_t m = 0; m < TR_COUNT(modes); m++)
        for (size_t l = 0; l < TR_COUNT(layouts); l++) {
            if (modes[m].mpi_limit && layouts[l].lengths[0] > 100000)
                continue; /* ten thousand requests of 48 elements show no more than a thousand do */
            bench b = open_bench(&modes[m], &layouts[l], 2);
            uint64_t calls = 0;
            for (int step = 0; step < 3; step++) {
                double squares = -1, tally[3] = {b.t->rank + 0.1, step, 1};
                fill(&b, step);
                calls = tr_mem_calls();
                reduce(&b, step, tally, 3, &squares);
                take_weights(&b);
                assert_int_equal(tr_mem_calls(), calls); /* nothing is allocated in a step */
                check_step(&b, step, squares);
                double want = 0.1;
                for (int r = 1; r < b.t->size; r++) want += r + 0.1;
                assert_true(tally[0] == want);
                assert_true(tally[1] == (double)step * b.t->size && tally[2] == b.t->size);
                assert_int_equal(b.r->reductions, (uint64_t)(step + 1) * b.l->nbuckets);
            }
            close_bench(&b);
        }
}

/* The same step again gives the same bits, whatever the timing was. */
static void test_repeats(void **state)
{
    (void)state;
    for (size_t m = 0; m < TR_COUNT(modes); m++) {
        bench b = open_bench(&modes[m], &layouts[4], 0);
        uint64_t first = 0;
        double squares = 0, before = 0;
        for (int k = 0; k < 5; k++) {
            fill(&b, 7);
            usleep((useconds_t)(b.t->rank == k % b.t->size ? 3000 : 0));
            double none = 0;
            reduce(&b, k, &none, 0, &squares);
            take_weights(&b);
            const uint64_t now = bits_of(b.p->weights, b.count * sizeof(float));
            assert_int_equal(tr_comm_barrier(b.c), TR_OK);
            if (k) assert_int_equal(now, first);
            if (k) assert_memory_equal(&squares, &before, sizeof(squares));
            first = now;
            before = squares;
        }
        close_bench(&b);
    }
}

/* Fast small steps with ranks out of step with each other: nobody overwrites what others still
 * read. */
static void test_races(void **state)
{
    (void)state;
    for (size_t m = 0; m < TR_COUNT(modes); m++) {
        if (modes[m].bf16 || (!modes[m].shared && modes[m].nodes > 1)) continue;
        bench b = open_bench(&modes[m], &layouts[3], 1);
        for (int step = 0; step < 60; step++) {
            double squares;
            fill(&b, step);
            if (step % 7 == b.t->rank) usleep(500);
            reduce(&b, step, NULL, 0, &squares);
            take_weights(&b);
            for (size_t i = 0; i < b.count; i += 5) {
                float magnitude, want = expected(&b, step, i, &magnitude);
                assert_true(fabsf(b.p->weights[i] - want) <= tolerance(&b, magnitude));
            }
            /* the next fill() follows at once: nothing but publish keeps ranks together */
        }
        close_bench(&b);
    }
}

/* One element of one rank decides for all; a gradient that only squares beyond float does not. */
static void test_nonfinite(void **state)
{
    (void)state;
    static const struct {
        float value;
        bool everywhere, finite;
    } cases[] = {{NAN, false, false},    {INFINITY, false, false}, {-INFINITY, false, false},
                 {FLT_MAX, true, false}, {1e30f, false, true},     {1e-30f, false, true}};
    for (size_t m = 0; m < TR_COUNT(modes); m++) {
        bench b = open_bench(&modes[m], &layouts[3], 0);
        for (size_t k = 0; k < TR_COUNT(cases); k++)
            for (size_t at = 0; at < b.count; at += 20011) {
                double squares = 0;
                float *g = b.p->grads;
                memset(g, 0, b.count * sizeof(float));
                bool mine = b.t->rank == (int)(at % (size_t)b.t->size);
                if (mine || cases[k].everywhere) g[at] = cases[k].value;
                reduce(&b, (int)k, NULL, 0, &squares);
                take_weights(&b);
                /* one rank has nothing to overflow with */
                bool finite = cases[k].finite || (cases[k].everywhere && b.t->size == 1);
                assert_int_equal(isfinite(squares), finite);
                if (cases[k].finite && !(b.mode->bf16 && b.t->nodes > 1)) {
                    double want = (double)cases[k].value * (double)cases[k].value;
                    assert_true(fabs(squares - want) <= 1e-12 * want);
                }
            }
        close_bench(&b);
    }
}

/* Frozen weights are written by one rank of those that share them; no step touches them, and they
 * take no part in gradients. */
static void test_frozen(void **state)
{
    (void)state;
    for (size_t m = 0; m < TR_COUNT(modes); m++) {
        bench b = open_bench(&modes[m], &layouts[3], 1);
        const tr_range f = b.p->frozen;
        double squares, written = (double)tr_range_count(f);
        for (size_t i = f.begin; i < f.end; i++) b.p->weights[i] = (float)i;
        fill(&b, 0);
        reduce(&b, 0, &written, 1, &squares);
        take_weights(&b);
        for (size_t i = b.count; i < b.count + FROZEN; i++)
            assert_true(b.p->weights[i] == (float)i);
        assert_true(written == FROZEN * (double)(b.t->shared ? b.t->nodes : b.t->size));
        const size_t learned = tr_params_learned(&b.p->o) * sizeof(float);
        tr_reducer_cost all, cost;
        tr_params_options whole = b.p->o;
        whole.count = b.count;
        tr_reducer_cost_of(b.t, &b.p->o, &b.o, &cost);
        tr_reducer_cost_of(b.t, &whole, &b.o, &all);
        assert_int_equal(learned, b.count * sizeof(float));
        assert_true(cost.weights > all.weights && cost.gradients == all.gradients &&
                    cost.slots == all.slots && cost.wire_node == all.wire_node &&
                    cost.wire_network == all.wire_network);
        close_bench(&b);
    }
}

/* Weights that kernels read as 16-bit copies reach ranks that do not own them rounded, as few
 * bytes; their owners keep them, and all of them come together exactly. What is sent is what was
 * planned. */
static void test_rounded(void **state)
{
    (void)state;
    static const tr_range ranges[] = {{16, 64}, {80, 30016}, {30032, 560000}, {640000, 640016}};
    static const tr_dtype types[] = {TR_BF16, TR_F16};
    for (size_t m = 0; m < TR_COUNT(modes); m++) {
        if (modes[m].mpi_limit) continue;
        bench b = open_rounded(&modes[m], &layouts[5], 0, ranges, TR_COUNT(ranges), types[m % 2]);
        const uint64_t before = tr_reducer_sent(b.r);
        tr_reducer_cost cost;
        double squares;
        fill(&b, 0);
        reduce(&b, 0, NULL, 0, &squares);
        take_weights(&b);
        tr_reducer_cost_of(b.t, &b.p->o, &b.o, &cost);
        const uint64_t sent = tr_reducer_sent(b.r) - before;
        if (sent) assert_int_equal(sent, b.t->nodes > 1 ? cost.wire_network : cost.wire_node);
        float *all = calloc(b.count + FROZEN, sizeof *all);
        assert_int_equal(tr_comm_params_weights(b.p, b.t->rank ? NULL : all), TR_OK);
        assert_int_equal(tr_comm_broadcast(b.c, all, (b.count + FROZEN) * sizeof *all, 0), TR_OK);
        for (size_t i = 0, r = 0, k = 0; i < b.count; i++) {
            float magnitude, w = b.p->weights[i], want = expected(&b, 0, i, &magnitude);
            while (r < TR_COUNT(ranges) && ranges[r].end <= i) r++;
            while (k < b.p->nowned && b.p->owned[k].end <= i) k++;
            const bool own = k < b.p->nowned && i >= b.p->owned[k].begin;
            const bool narrow = r < TR_COUNT(ranges) && i >= ranges[r].begin;
            const float copy = types[m % 2] == TR_BF16 ? tr_bf16_to_f32(tr_f32_to_bf16(all[i]))
                                                       : tr_f16_to_f32(tr_f32_to_f16(all[i]));
            assert_true(fabsf(all[i] - want) <= tolerance(&b, magnitude));
            if (own || !narrow || !b.mode->shard)
                assert_true(w == all[i]);
            else /* in a window its owner may be of this node */
                assert_true(w == copy || (b.t->shared && w == all[i]));
        }
        free(all);
        close_bench(&b);
    }
}

/* Slots and weights start at zero, and are owned once a node (shared) or by everybody (MPI). */
static void test_arrays(void **state)
{
    (void)state;
    for (size_t m = 0; m < TR_COUNT(modes); m++) {
        bench b = open_bench(&modes[m], &layouts[5], 3);
        size_t total = 0;
        for (size_t k = 0; k < b.p->nowned; k++) {
            assert_int_equal(b.p->slot_at[k], total);
            total += tr_range_count(b.p->owned[k]);
            for (size_t i = b.p->owned[k].begin; i < b.p->owned[k].end; i++)
                assert_true(b.p->weights[i] == 0);
        }
        assert_int_equal(total, b.p->held);
        for (int s = 0; s < 3; s++)
            for (size_t i = 0; i < total; i++) assert_true(b.p->slots[s][i] == 0);
        assert_null(b.p->slots[3]);
        double sum = (double)total;
        assert_int_equal(tr_comm_all_reduce(b.c, &sum, 1, TR_F64), TR_OK);
        const int copies = b.mode->shard ? 1 : b.t->shared ? b.t->nodes : b.t->size;
        assert_true(sum == (double)b.count * copies);

        tr_reducer_cost cost;
        tr_reducer_cost_of(b.t, &b.p->o, &b.o, &cost);
        assert_int_equal(tr_mem_held(TR_MEM_WEIGHTS), cost.weights);
        assert_int_equal(tr_mem_held(TR_MEM_GRADIENTS), cost.gradients);
        assert_int_equal(tr_mem_held(TR_MEM_MOMENTS), cost.slots);
        assert_int_equal(cost.wire_network > 0,
                         b.t->nodes > 1 && (!b.t->shared || b.t->local_rank < b.t->slices));
        close_bench(&b);
        assert_int_equal(tr_mem_held(TR_MEM_WEIGHTS), 0);
        assert_int_equal(tr_mem_held(TR_MEM_GRADIENTS), 0);
    }
}

/* Slots of all ranks come together on rank 0, each element from its owner. */
static void test_gather(void **state)
{
    (void)state;
    for (size_t m = 0; m < TR_COUNT(modes); m++)
        for (size_t l = 3; l < 6; l += 2) {
            bench b = open_bench(&modes[m], &layouts[l], 2);
            for (size_t k = 0; k < b.p->nowned; k++)
                for (size_t i = b.p->owned[k].begin; i < b.p->owned[k].end; i++)
                    b.p->slots[1][b.p->slot_at[k] + i - b.p->owned[k].begin] = (float)i;
            float *all = calloc(b.count, sizeof(float));
            assert_int_equal(tr_comm_barrier(b.c), TR_OK);
            const uint64_t calls = tr_mem_calls();
            assert_int_equal(tr_comm_params_gather(b.p, 1, b.t->rank ? NULL : all), TR_OK);
            assert_int_equal(tr_mem_calls(), calls);
            for (size_t i = 0; b.t->rank == 0 && i < b.count; i++)
                if (all[i] != (float)i)
                    fail_msg("%s, %s: [%zu] = %g", b.mode->name, b.l->name, i, (double)all[i]);
            assert_int_equal(tr_comm_params_gather(b.p, 2, NULL), TR_INTERNAL);
            free(all);
            assert_int_equal(tr_comm_barrier(b.c), TR_OK);
            close_bench(&b);
        }
}

/* A layout that the arithmetic could not take is refused on every rank. */
static void test_refuses(void **state)
{
    (void)state;
    static const tr_range gap[] = {{0, 16}, {32, 48}}, odd[] = {{0, 20}}, fewer[] = {{0, 32}};
    tr_comm *c = open_mode(&modes[0], 30);
    tr_params_options o = {.count = 48, .buckets = gap, .nbuckets = 2};
    const tr_reducer_options r = {0};
    tr_params *p = NULL;
    assert_int_equal(tr_comm_params_open(c, &o, &r, &p), TR_INTERNAL);
    o.buckets = odd, o.nbuckets = 1, o.count = 20;
    assert_int_equal(tr_comm_params_open(c, &o, &r, &p), TR_INTERNAL);
    o.buckets = fewer, o.count = 16;
    assert_int_equal(tr_comm_params_open(c, &o, &r, &p), TR_INTERNAL);
    assert_null(p);
    tr_comm_close(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_sums),    cmocka_unit_test(test_repeats),
    cmocka_unit_test(test_races),   cmocka_unit_test(test_nonfinite),
    cmocka_unit_test(test_arrays),  cmocka_unit_test(test_refuses),
    cmocka_unit_test(test_gather),  cmocka_unit_test(test_frozen),
    cmocka_unit_test(test_rounded),
};

RUN_MPI_TESTS(tests)
