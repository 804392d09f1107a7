/* Index arithmetic and summing loops of the reducer, without MPI. */
#include "collectives/reducer/reducer.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <setjmp.h>
/* after those it needs */
#include <cmocka.h>

static void test_slices_cover(void **state)
{
    (void)state;
    static const size_t units[] = {0, 1, 2, 3, 5, 16, 17, 1000, 12345};
    for (size_t k = 0; k < TR_COUNT(units); k++)
        for (int n = 1; n <= 9; n++) {
            tr_range whole = {160, 160 + units[k] * 16};
            size_t at = whole.begin, least = SIZE_MAX, most = 0;
            for (int i = 0; i < n; i++) {
                tr_range s = tr_slice(whole, i, n);
                assert_int_equal(s.begin, at);
                assert_true(s.end >= s.begin && s.end % 16 == 0);
                size_t len = s.end - s.begin;
                if (len < least) least = len;
                if (len > most) most = len;
                at = s.end;
            }
            assert_int_equal(at, whole.end);
            assert_true(most - least <= 16);
        }
}

/* Ranks beyond the last slice own nothing; sizes near SIZE_MAX do not overflow. */
static void test_slices_edges(void **state)
{
    (void)state;
    tr_range s = tr_slice((tr_range){0, 160}, 2, 2);
    assert_int_equal(s.begin, s.end);
    size_t huge = SIZE_MAX / 16 * 16;
    s = tr_slice((tr_range){0, huge}, 255, 256);
    assert_int_equal(s.end, huge);
    assert_true(s.end - s.begin >= huge / 256 - 16 && s.end - s.begin <= huge / 256 + 16);
    assert_int_equal(tr_pieces(0, 10), 0);
    assert_int_equal(tr_pieces(10, 10), 1);
    assert_int_equal(tr_pieces(11, 10), 2);
    assert_int_equal(tr_pieces(SIZE_MAX, SIZE_MAX - 1), 2);
}

/* The buffers between nodes hold the largest part of the largest piece. */
static void test_parts_fit(void **state)
{
    (void)state;
    for (int nodes = 2; nodes < 40; nodes++)
        for (int k = 0; k < nodes; k++) {
            tr_range part = tr_slice((tr_range){0, TR_PIECE}, k, nodes);
            assert_true(part.end - part.begin <= tr_part_floats(nodes));
        }
}

static float element(int source, size_t i)
{
    return ldexpf((float)((i * 7919 + (size_t)source * 104729) % 1009) - 500.0f,
                  (int)((i + (size_t)source) % 21) - 10);
}

/* Every number of sources, every tail length, every place of the destination among the sources. */
static void test_sums_in_order(void **state)
{
    (void)state;
    enum { N = 2600, MOST = 11 };
    static const size_t lengths[] = {0, 1, 15, 16, 17, 1023, 1024, 1025, N};
    static float data[MOST][N];
    for (int n = 1; n <= MOST; n++)
        for (size_t k = 0; k < TR_COUNT(lengths); k++)
            for (int dst = 0; dst < n; dst++) {
                const float *sources[MOST];
                double squares = 0;
                if (n == 1 && dst) continue;
                for (int s = 0; s < n; s++) {
                    sources[s] = data[s];
                    for (size_t i = 0; i < N; i++) data[s][i] = element(s, i);
                }
                double got = tr_sum_sources(data[dst], sources, n, lengths[k]);
                for (size_t i = 0; i < lengths[k]; i++) {
                    volatile float want = element(0, i);
                    for (int s = 1; s < n; s++) want = want + element(s, i);
                    float w = want;
                    assert_memory_equal(&data[dst][i], &w, sizeof w);
                    squares += (double)w * (double)w;
                }
                for (size_t i = lengths[k]; i < N; i++)
                    assert_true(data[dst][i] == element(dst, i));
                assert_true(fabs(got - squares) <= 1e-12 * squares);
            }
}

static void test_squares_range(void **state)
{
    (void)state;
    float v[40] = {0};
    for (size_t at = 0; at < 40; at += 13) {
        memset(v, 0, sizeof v);
        v[at] = FLT_MAX;
        assert_true(tr_sum_squares(v, 40) == (double)FLT_MAX * (double)FLT_MAX);
        v[at] = FLT_MIN;
        assert_true(tr_sum_squares(v, 40) == (double)FLT_MIN * (double)FLT_MIN);
        v[at] = INFINITY;
        assert_true(isinf(tr_sum_squares(v, 40)));
        v[at] = NAN;
        assert_true(isnan(tr_sum_squares(v, 40)));
    }
}

static void test_bf16_loops(void **state)
{
    (void)state;
    enum { N = 1000 };
    static float a[N], b[N];
    static tr_bf16 h[N];
    for (size_t i = 0; i < N; i++) a[i] = element(1, i);
    a[3] = NAN, a[4] = INFINITY, a[5] = FLT_MAX, a[6] = -0.0f;
    tr_sum_to_bf16(h, a, N);
    for (size_t i = 0; i < N; i++) assert_int_equal(h[i], tr_f32_to_bf16(a[i]));
    tr_sum_from_bf16(b, h, N);
    assert_true(isnan(b[3]) && isinf(b[4]) && isinf(b[5]) && signbit(b[6]));
    for (size_t i = 7; i < N; i++) assert_true(b[i] == tr_bf16_to_f32(h[i]));
    tr_sum_add_bf16(b, h, N);
    for (size_t i = 7; i < N; i++) assert_true(b[i] == 2 * tr_bf16_to_f32(h[i]));
    for (size_t i = 0; i < N; i++) b[i] = 1;
    tr_sum_add(b, a, N);
    for (size_t i = 7; i < N; i++) assert_true(b[i] == 1 + a[i]);
}

static void test_cost(void **state)
{
    (void)state;
    static const tr_range buckets[] = {{0, 1600000}};
    const tr_params_options p = {.count = 1600000, .buckets = buckets, .nbuckets = 1, .nslots = 2};
    tr_reducer_options o = {0};
    size_t bytes = p.count * sizeof(float);
    tr_reducer_cost cost;
    tr_topology one = {.size = 1, .local_size = 1, .nodes = 1, .slices = 1};
    tr_reducer_cost_of(&one, &p, &o, &cost);
    assert_int_equal(cost.weights, bytes);
    assert_int_equal(cost.slots, 2 * bytes);
    assert_int_equal(cost.wire_node + cost.wire_network, 0);
    tr_topology four = {.size = 4, .local_size = 4, .nodes = 1, .slices = 4, .shared = true};
    tr_reducer_cost_of(&four, &p, &o, &cost);
    assert_int_equal(cost.weights, bytes / 4);
    assert_int_equal(cost.gradients, bytes);
    assert_int_equal(cost.slots, 2 * bytes / 4);
    assert_int_equal(cost.wire_node, bytes / 4 * 3);
    assert_int_equal(cost.wire_network, 0);
    four.shared = false; /* MPI: everything private, a ring's bytes */
    tr_reducer_cost_of(&four, &p, &o, &cost);
    assert_int_equal(cost.weights, bytes);
    assert_int_equal(cost.slots, 2 * bytes);
    assert_int_equal(cost.wire_node, 2 * (bytes / 4 * 3));
    tr_topology nodes = {.size = 8, .local_size = 4, .nodes = 2, .slices = 4, .shared = true};
    tr_reducer_cost_of(&nodes, &p, &o, &cost);
    assert_int_equal(cost.wire_network, 2 * (bytes / 4 / 2));
    assert_true(cost.gradients > bytes);
    o.wire_bf16 = true;
    tr_reducer_cost_of(&nodes, &p, &o, &cost);
    assert_int_equal(cost.wire_network, bytes / 4 / 2);
}

/* Sharded: the second half of the bytes are weights', slots are dealt out, and as much is sent. */
static void test_cost_sharded(void **state)
{
    (void)state;
    static const tr_range buckets[] = {{0, 1600000}};
    const tr_backend gpu = {.name = "gpu"};
    tr_params_options p = {.count = 1600000, .buckets = buckets, .nbuckets = 1, .nslots = 2};
    tr_reducer_options o = {.shard = true};
    const size_t bytes = p.count * sizeof(float);
    tr_reducer_cost cost, whole;
    tr_topology t = {.size = 8, .local_size = 4, .nodes = 2, .slices = 4, .shared = true};
    for (int way = 0; way < 4; way++) { /* shared on two nodes, plain MPI, NCCL, MPI from GPUs */
        t.shared = way == 0;
        p.backend = way < 2 ? NULL : &gpu;
        o = (tr_reducer_options){.shard = true, .nccl = way == 2};
        tr_reducer_cost_of(&t, &p, &o, &cost);
        o.shard = false;
        tr_reducer_cost_of(&t, &p, &o, &whole);
        assert_int_equal(cost.wire_node + cost.wire_network, whole.wire_node + whole.wire_network);
        assert_int_equal(cost.wire_weights, way == 0 ? bytes / 4 / 2 : bytes / 8 * 7);
        assert_int_equal(whole.wire_weights, 0);
        assert_true(cost.slots <= 2 * (bytes / 8 + 64 * 7) &&
                    cost.slots >= 2 * (bytes / 8 - 64 * 7));
        assert_int_equal(whole.slots, way == 0 ? 2 * bytes / 4 : 2 * bytes);
        assert_int_equal(cost.weights, whole.weights);
    }
    o = (tr_reducer_options){.shard = true, .wire_bf16 = true};
    p.backend = NULL;
    t.shared = true;
    tr_reducer_cost_of(&t, &p, &o, &cost);
    assert_int_equal(cost.wire_network, bytes / 4 / 2 / 2 + bytes / 4 / 2);
}

/* Every element has one owner among those that share the work, whatever does not divide. */
static void test_owners(void **state)
{
    (void)state;
    enum { COUNT = 560112 };
    static const tr_range buckets[] = {
        {0, 16}, {16, 16}, {16, 112}, {112, 80000}, {80000, COUNT - 16}, {COUNT - 16, COUNT}};
    static unsigned char owners[COUNT];
    const tr_backend gpu = {.name = "gpu"};
    static const struct {
        int size, per_node; /* ranks; the last node may have fewer */
        bool shared, gpu, nccl;
    } cases[] = {
        {3, 3, true, false, false}, {4, 2, true, false, false},  {5, 2, true, false, false},
        {6, 2, true, false, false}, {3, 3, false, false, false}, {3, 3, false, true, true},
        {4, 4, false, true, true},  {2, 2, true, true, true},    {3, 3, false, true, false}};
    for (size_t c = 0; c < TR_COUNT(cases); c++) {
        const int nodes = (cases[c].size + cases[c].per_node - 1) / cases[c].per_node;
        const int rest = cases[c].size - (nodes - 1) * cases[c].per_node;
        tr_params_options p = {.count = COUNT, .buckets = buckets, .nbuckets = TR_COUNT(buckets)};
        const tr_reducer_options o = {.shard = true, .nccl = cases[c].nccl};
        if (cases[c].gpu) p.backend = &gpu;
        memset(owners, 0, sizeof owners);
        for (int r = 0; r < cases[c].size; r++) {
            tr_range owned[64];
            const tr_topology t = {.rank = r,
                                   .size = cases[c].size,
                                   .node = r / cases[c].per_node,
                                   .nodes = nodes,
                                   .local_rank = r % cases[c].per_node,
                                   .slices = rest,
                                   .shared = cases[c].shared};
            const tr_ownership w = tr_ownership_of(&t, &p, &o);
            assert_true(tr_owned_most(&w, buckets, TR_COUNT(buckets)) <= 64);
            const size_t n = tr_owned(&w, buckets, TR_COUNT(buckets), owned);
            size_t count = 0;
            for (size_t i = 0; i < n; i++) {
                assert_true(owned[i].begin % 16 == 0 && owned[i].end % 16 == 0);
                assert_true(owned[i].end > owned[i].begin);
                if (i > 0) assert_true(owned[i].begin > owned[i - 1].end);
                count += tr_range_count(owned[i]);
                for (size_t e = owned[i].begin; e < owned[i].end; e++) owners[e]++;
            }
            assert_true(n <= tr_owned_most(&w, buckets, TR_COUNT(buckets)));
            assert_int_equal(count, tr_owned_count(&w, buckets, TR_COUNT(buckets)));
            if (cases[c].nccl) /* no rank has much more than its share */
                assert_true(count <= COUNT / (size_t)cases[c].size + 6 * 16 * (size_t)t.size);
        }
        for (size_t e = 0; e < COUNT; e++)
            if (owners[e] != 1) fail_msg("case %zu: %d own element %zu", c, owners[e], e);
    }
}

/* A GPU holds everything; only gradients that go through MPI are held by the host as well. NCCL's
 * rings leave a node once. */
static void test_cost_on_gpus(void **state)
{
    (void)state;
    static const tr_range buckets[] = {{0, 1600000}};
    const tr_backend gpu = {.name = "gpu"};
    const tr_params_options p = {
        .count = 1600000, .buckets = buckets, .nbuckets = 1, .nslots = 2, .backend = &gpu};
    tr_reducer_options o = {.nccl = true};
    const size_t bytes = p.count * sizeof(float);
    tr_reducer_cost cost;
    tr_topology t = {.size = 1, .local_size = 1, .nodes = 1, .slices = 1};
    for (int nccl = 0; nccl < 2; nccl++) {
        o.nccl = nccl;
        tr_reducer_cost_of(&t, &p, &o, &cost);
        assert_int_equal(cost.gradients, bytes);
        assert_int_equal(cost.pinned + cost.wire_node + cost.wire_network, 0);
    }
    t = (tr_topology){.size = 8, .local_size = 8, .nodes = 1, .slices = 8, .shared = true};
    tr_reducer_cost_of(&t, &p, &o, &cost);
    assert_int_equal(cost.weights, bytes);
    assert_int_equal(cost.gradients, bytes);
    assert_int_equal(cost.slots, 2 * bytes);
    assert_int_equal(cost.wire_node, 2 * (bytes / 8 * 7));
    assert_int_equal(cost.pinned + cost.wire_network, 0);
    t.nodes = 2, t.local_size = t.slices = 4;
    tr_reducer_cost_of(&t, &p, &o, &cost);
    assert_int_equal(cost.wire_network, bytes / 8 * 7 * 2 / 4);
    assert_int_equal(cost.wire_node, bytes / 8 * 7 * 2 / 4 * 3);
    o.nccl = false;
    tr_reducer_cost_of(&t, &p, &o, &cost);
    assert_int_equal(cost.pinned, bytes);
    assert_int_equal(cost.gradients, 2 * bytes);
    assert_int_equal(cost.wire_network, 2 * (bytes / 8 * 7));
    assert_int_equal(cost.wire_node, 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_cover),  cmocka_unit_test(test_slices_edges),
        cmocka_unit_test(test_parts_fit),     cmocka_unit_test(test_sums_in_order),
        cmocka_unit_test(test_squares_range), cmocka_unit_test(test_bf16_loops),
        cmocka_unit_test(test_cost),          cmocka_unit_test(test_cost_on_gpus),
        cmocka_unit_test(test_cost_sharded),  cmocka_unit_test(test_owners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
