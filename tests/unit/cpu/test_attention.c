/* links: trireme_cpu trireme_plan
 * Attention and its gradient against plain C in double that holds the whole matrix, at sizes that
 * are no multiple of a tile (128 queries, 256 keys) or of its parts (64): all options, lengths,
 * keys and values apart and packed, more queries than keys and fewer (query i sees keys up to i
 * alone: aligned at the top left, as PyTorch's is_causal). */
#include "tests/unit/cpu/attention_reference.h"
#include "tests/unit/paths.h"

static const shape shapes[] = {
    {"one place", 1, 1, 1, 1, 1, 4, 0, false, false, true, false, 0, 0, false},
    {"one query", 2, 2, 1, 1, 9, 8, 0, false, false, false, true, 0, 0, false},
    {"odd", 2, 3, 3, 7, 7, 5, 0, false, false, true, false, 0, 0, false},
    {"causal", 2, 2, 2, 19, 19, 16, 0, true, false, true, false, 0, 0, false},
    {"causal, more keys", 1, 2, 2, 6, 21, 8, 0, true, false, false, false, 0, 0, false},
    {"causal, fewer keys", 1, 2, 2, 21, 6, 8, 0, true, false, false, false, 0, 0, false},
    {"window", 1, 2, 2, 23, 23, 8, 4, false, false, true, false, 0, 0, false},
    {"window beyond all keys", 1, 1, 1, 30, 5, 8, 3, true, false, false, false, 0, 0, false},
    {"causal window", 2, 2, 1, 23, 23, 8, 5, true, false, true, true, 0, 0, false},
    {"alibi", 1, 6, 6, 11, 11, 8, 0, true, true, true, false, 0, 0, false},
    {"alibi, both ways", 1, 3, 3, 11, 9, 8, 0, false, true, false, true, 0, 0, false},
    {"grouped", 2, 6, 2, 13, 13, 8, 0, true, false, true, false, 0, 0, false},
    {"multi-query, scale", 2, 4, 1, 10, 14, 12, 0, false, false, false, true, 0, 0.7, false},
    {"dropout", 2, 2, 1, 21, 18, 8, 0, false, false, false, true, 0.3, 0, false},
    {"48 wide", 1, 2, 2, 70, 70, 48, 0, true, false, true, false, 0, 0, true},
    {"64 wide", 1, 2, 1, 66, 70, 64, 0, false, false, false, true, 0.1, 0, false},
    {"80 wide", 1, 1, 1, 45, 66, 80, 0, false, false, false, true, 0, 0, true},
    {"128 wide", 1, 2, 1, 40, 40, 128, 0, true, false, true, false, 0, 0, true},
    {"wide heads", 1, 1, 1, 5, 9, 256, 0, false, false, false, false, 0, 0, false},
    {"wide heads, several tiles", 1, 1, 1, 66, 34, 256, 0, false, false, false, true, 0, 0, false},
    {"wide odd heads", 1, 2, 1, 9, 9, 129, 0, true, false, true, false, 0, 0, false},
    {"several tiles", 1, 2, 1, 70, 150, 40, 0, false, false, false, true, 0, 0, false},
    {"several tiles, causal", 1, 1, 1, 140, 140, 32, 0, true, false, true, false, 0.2, 0, false},
    {"large", 2, 2, 1, 300, 300, 64, 0, true, false, true, false, 0, 0, true},
    {"large, apart", 2, 2, 2, 131, 531, 33, 0, false, true, false, true, 0, 0, true},
    {"large, window", 1, 2, 2, 530, 530, 64, 70, true, false, true, false, 0.1, 0, true},
    {"parts, causal", 2, 2, 1, 200, 200, 24, 0, true, false, true, false, 0, 0, true},
    {"parts, lengths", 4, 1, 1, 130, 300, 16, 0, false, false, false, true, 0, 0, true},
    {"parts, causal lengths", 4, 2, 1, 257, 257, 16, 0, true, true, true, true, 0.2, 0, true},
    {"parts, window", 1, 1, 1, 333, 475, 16, 40, false, false, false, false, 0, 0, true},
    {"parts, narrow", 1, 1, 1, 320, 320, 64, 1, true, false, true, false, 0, 0, true},
    {"whole tiles", 1, 1, 1, 256, 512, 64, 0, false, false, false, false, 0, 0, true},
};

/* Those that our own loops do, on every CPU. */
#ifdef TEST_MIRROR
static const int own_products[] = {OF_FLOATS};
#else
static const int own_products[] = {OF_FLOATS, OF_PAIRS};
#endif
#define FOR_PRODUCTS(p)                                                                            \
    for (size_t p##_i = 0; p##_i < TR_COUNT(own_products); p##_i++)                                \
        for (int p = own_products[p##_i], *p##_once = &p; p##_once; p##_once = NULL)

/* ---- Running --------------------------------------------------------------------------------- */

static void check(const shape *s, tr_precision p, int isa, int threads, int products)
{
    trial forward, backward;
    run_forward(&forward, s, p, isa, threads, products);
    run_backward(&backward, &forward, p, isa, threads, products);
    if (!test_paths_alone()) {
        reference(&backward);
        compare_both(&forward, &backward, p);
    }
    close_trial(&forward);
    close_trial(&backward);
}

/* Large ones run at the best level alone, of which a GPU has one, and on the stand-in for one as
 * far as they take no seconds. */
static bool is_left_out(const shape *s, int isa)
{
#ifndef TEST_MIRROR
    return s->large && isa < tr_cpu_isa();
#elif defined TR_REAL_GPU
    (void)s;
    return isa > 0;
#else
    return isa > 0 || s->samples * s->heads * s->queries * s->keys * s->D > 7000000;
#endif
}

static void against_the_whole_matrix(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(shapes); i++) FOR_PRECISIONS(p)
    {
        if (is_left_out(&shapes[i], isa)) continue;
        check(&shapes[i], p, isa, 1 + (int)(i % 3), OF_FLOATS);
    }
}

#ifndef TEST_MIRROR
/* As on a CPU whose products of bfloat16 are faster: they read it. */
static void products_of_16_bits(void **state)
{
    (void)state;
    harness h = h_open("attention", TR_PRECISION_FP32, false);
    const char *why = tr_cpu_backend.kernels->unsupported(h.ctx, h.op.def, TR_BF16);
    h_close(&h);
    if (why) {
        print_message("skipped: %s\n", why);
        return;
    }
    for (size_t i = 0; i < TR_COUNT(shapes); i++)
        for (int products = OF_16_BITS; products <= OF_PAIRS; products++)
            check(&shapes[i], TR_PRECISION_BF16, tr_cpu_isa(), 1 + (int)(i % 3), products);
}

/* Our own loops do them on every CPU. */
static void products_of_pairs(void **state)
{
    (void)state;
    FOR_LEVELS(isa) for (size_t i = 0; i < TR_COUNT(shapes); i++)
    {
        trial t;
        if (is_left_out(&shapes[i], isa)) continue;
        run_forward(&t, &shapes[i], TR_PRECISION_BF16, isa, 1 + (int)(i % 3), OF_PAIRS);
        reference(&t);
        compare(&t, &t, Y, "y", TR_PRECISION_BF16);
        compare(&t, &t, LSE, "lse", TR_PRECISION_BF16);
        close_trial(&t);
    }
}

static void same_bits_of_pairs_for_any_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(shapes); i++) {
        trial one, t;
        run_forward(&one, &shapes[i], TR_PRECISION_BF16, tr_cpu_isa(), 1, OF_PAIRS);
        for (int threads = 2; threads <= 5; threads += 3) {
            run_forward(&t, &shapes[i], TR_PRECISION_BF16, tr_cpu_isa(), threads, OF_PAIRS);
            assert_memory_equal(t.h.data[t.y], one.h.data[one.y], t.h.tensors[t.y].nbytes);
            assert_memory_equal(t.h.data[t.lse], one.h.data[one.lse], t.h.tensors[t.lse].nbytes);
            close_trial(&t);
        }
        close_trial(&one);
    }
}

/* A row's bits depend on the rows that it sees alone: a causal row's are those of a shorter
 * sequence, cut at its row or behind it, where other parts and tiles end. */
static void same_bits_of_longer_sequences(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 15, 16, 33, 100, 128, 255, 257, 300};
    const shape s = {"longer", 1, 2, 1, 301, 301, 24, 0, true, false, true, false, 0, 0, false};
    FOR_PRODUCTS(products)
    {
        trial all;
        run_forward(&all, &s, TR_PRECISION_BF16, tr_cpu_isa(), 1, products);
        for (size_t i = 0; i < TR_COUNT(lengths); i++) {
            shape less = s;
            trial t;
            less.queries = less.keys = lengths[i];
            run_forward(&t, &less, TR_PRECISION_BF16, tr_cpu_isa(), 1, products);
            memcpy(t.h.data[t.q], all.h.data[all.q], t.h.tensors[t.q].nbytes);
            h_run(&t.h, false);
            assert_memory_equal(t.h.data[t.y], all.h.data[all.y], t.h.tensors[t.y].nbytes);
            close_trial(&t);
        }
        close_trial(&all);
    }
}

static void same_bits_for_any_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(shapes); i++) FOR_PRECISIONS(p)
        {
            trial f1, b1, f, b;
            run_forward(&f1, &shapes[i], p, tr_cpu_isa(), 1, false);
            run_backward(&b1, &f1, p, tr_cpu_isa(), 1, false);
            for (int threads = 2; threads <= 5; threads += 3) {
                run_forward(&f, &shapes[i], p, tr_cpu_isa(), threads, false);
                run_backward(&b, &f, p, tr_cpu_isa(), threads, false);
                assert_memory_equal(f.h.data[f.y], f1.h.data[f1.y], f.h.tensors[f.y].nbytes);
                assert_memory_equal(f.h.data[f.lse], f1.h.data[f1.lse], f.h.tensors[f.lse].nbytes);
                for (int o = 0; o < b.h.op.nout; o++)
                    assert_memory_equal(b.h.data[b.h.op.out[o]], b1.h.data[b1.h.op.out[o]],
                                        b.h.tensors[b.h.op.out[o]].nbytes);
                close_trial(&f);
                close_trial(&b);
            }
            close_trial(&f1);
            close_trial(&b1);
        }
}
#endif

#ifndef TEST_MIRROR
/* Of bfloat16 they are those of float32, rounded, bit for bit, whatever instructions round. */
static void probabilities_are_rounded_once(void **state)
{
    (void)state;
    enum { ROWS = 11, COLUMNS = 77, PITCH = 80 };
    static float s[ROWS * PITCH], p[ROWS * PITCH];
    static tr_bf16 p16[ROWS * PITCH];
    FOR_LEVELS(isa)
    {
        const tr_cpu_scores a = {.row = 66,
                                 .rows = ROWS,
                                 .columns = COLUMNS,
                                 .keys = 1000,
                                 .causal = true,
                                 .pitch = PITCH,
                                 .scale = 1};
        float top[2][ROWS], fade[ROWS];
        double sum[2][ROWS] = {{0}};
        for (int t = 0; t < 2; t++) {
            for (size_t i = 0; i < TR_COUNT(s); i++) s[i] = (float)uniform(9, i, -30, 30);
            s[2 * PITCH + 5] = NAN, s[7 * PITCH + 70] = -INFINITY, s[9 * PITCH + 3] = -1e30f;
            for (size_t r = 0; r < ROWS; r++) top[t][r] = -INFINITY;
            tr_cpu_loops_at(isa)->attention_probs(t ? TR_BF16 : TR_F32, &a, s, t ? (void *)p16 : p,
                                                  top[t], sum[t], fade);
        }
        for (size_t i = 0; i < TR_COUNT(s); i++)
            if (i % PITCH < COLUMNS) assert_int_equal(p16[i], tr_f32_to_bf16(p[i]));
        assert_memory_equal(top[0], top[1], sizeof top[0]);
    }
}
#endif

/* Gradients that come to few rows, as where one row is read: parts of queries to which none comes
 * are left out. */
static void gradients_of_few_rows(void **state)
{
    (void)state;
    static const shape few[] = {
        {"one row", 2, 2, 1, 200, 200, 24, 0, false, false, true, true, 0, 0, false},
        {"causal, dropout", 1, 2, 2, 130, 130, 16, 0, true, true, false, false, 0.2, 0, false}};
    for (size_t i = 0; i < TR_COUNT(few); i++) FOR_PRECISIONS(p)
        {
            const shape *s = &few[i];
            trial f, b;
            run_forward(&f, s, p, tr_cpu_isa(), 1, false);
            run_backward(&b, &f, p, tr_cpu_isa(), 1 + (int)i, false);
            for (int64_t e = 0; e < s->samples * s->queries * s->heads * s->D; e++) {
                const int64_t row = e / (s->heads * s->D) % s->queries;
                if (row != 0 && row != 70) h_put(&b.h, b.dy, (size_t)e, 0);
            }
            h_run(&b.h, false);
            reference(&b);
            compare_gradients(&b, p);
            close_trial(&f);
            close_trial(&b);
        }
}

/* One key: a row is its value or 0, each with its probability. */
static void dropped_as_often_as_asked(void **state)
{
    (void)state;
    const shape s = {"law", 8, 4, 4, 64, 1, 4, 0, false, false, false, false, 0.25, 0, false};
    const double n = (double)(s.samples * s.heads * s.queries);
    trial t;
    run_forward(&t, &s, TR_PRECISION_FP32, tr_cpu_isa(), 1, false);
    double kept = 0;
    for (size_t row = 0; row < (size_t)n; row++)
        for (size_t d = 0; d < 4; d++) {
            const size_t sample = row / (size_t)(s.heads * s.queries), head = row % 4;
            const double v = h_get(&t.h, t.v, (sample * 4 + head) * 4 + d);
            const double y = h_get(&t.h, t.y, row * 4 + d);
            assert_true(y == 0 || fabs(y - v / 0.75) <= 1e-6);
            kept += d == 0 && y != 0;
        }
    assert_true(fabs(kept / n - 0.75) < 5 * sqrt(0.75 * 0.25 / n));
    close_trial(&t);
}

/* In evaluation nothing is dropped, and lse is not wanted. */
static void nothing_is_dropped_in_evaluation(void **state)
{
    (void)state;
    const shape with = {"dropout", 2, 2, 2, 9, 9, 8, 0, true, false, true, false, 0.5, 0, false};
    shape without = with;
    trial a, b;
    without.dropout = 0;
    run_forward(&a, &without, TR_PRECISION_FP32, tr_cpu_isa(), 1, false);
    b = (trial){.s = &with};
    b.h = h_open("attention", TR_PRECISION_FP32, false);
    open_inputs(&b);
    b.y = h_out(&b.h, TR_F32, 3, a.h.tensors[a.y].dims);
    h_absent_out(&b.h);
    h_prepare(&b.h, &b.a, TR_ACT_NONE);
    h_run(&b.h, false);
    assert_memory_equal(a.h.data[a.y], b.h.data[b.y], a.h.tensors[a.y].nbytes);
    close_trial(&a);
    close_trial(&b);
}

/* A NaN in a query spoils its row, not others; infinite scores do as in softmax. */
static void nan_stays_in_its_row(void **state)
{
    (void)state;
    const shape s = {"nan", 1, 1, 1, 40, 40, 8, 0, false, false, true, false, 0, 0, false};
    FOR_PRECISIONS(p) FOR_PRODUCTS(products)
    {
        trial t;
        run_forward(&t, &s, p, tr_cpu_isa(), 1, products);
        h_put(&t.h, t.q, place(&s, 0, 0, 17, 0, 3), NAN);
        h_put(&t.h, t.q, place(&s, 0, 0, 20, 0, 3), INFINITY);
        h_run(&t.h, false);
        for (size_t e = 0; e < 40 * 8; e++)
            assert_int_equal(isnan(h_get(&t.h, t.y, e)), e / 8 == 17 || e / 8 == 20);
        close_trial(&t);
    }
}

/* Keys and values behind a sample's length may be anything. */
static void nothing_comes_from_behind_a_length(void **state)
{
    (void)state;
    const shape s = {"behind", 1, 1, 1, 40, 40, 8, 0, false, false, true, true, 0, 0, false};
    FOR_PRECISIONS(p) FOR_PRODUCTS(products)
    {
        trial t;
        run_forward(&t, &s, p, tr_cpu_isa(), 1, products);
        h_put(&t.h, t.lengths, 0, 5);
        h_put(&t.h, t.v, place(&s, 2, 0, 5, 0, 3), NAN);
        h_put(&t.h, t.v, place(&s, 2, 0, 10, 0, 2), INFINITY);
        h_put(&t.h, t.k, place(&s, 1, 0, 12, 0, 1), NAN);
        h_run(&t.h, false);
        for (size_t e = 0; e < 40 * 8; e++) assert_true(isfinite(h_get(&t.h, t.y, e)));
        close_trial(&t);
    }
}

/* Bytes that a kernel of these rows takes beside its operands. */
static size_t workspace_of(const shape *s, bool backward, tr_precision p, int products)
{
    trial t;
    (backward ? prepare_backward : prepare_forward)(&t, s, p, tr_cpu_isa(), 2, products);
    const size_t nbytes = t.h.kernel->workspace;
    close_trial(&t);
    return nbytes;
}

/* Twice the rows take at the most twice the workspace, forward and backward: there is no matrix of
 * rows x rows. */
static void workspace_grows_with_rows(void **state)
{
    (void)state;
    static const shape kinds[] = {
        {"causal", 1, 2, 1, 0, 0, 64, 0, true, false, true, false, 0, 0, true},
        {"lengths, dropout", 1, 2, 2, 0, 0, 32, 0, false, true, false, true, 0.1, 0, true}};
    for (size_t i = 0; i < TR_COUNT(kinds); i++) FOR_PRECISIONS(p)
    for (int backward = 0; backward < 2; backward++)
        for (int products = OF_FLOATS; products <= OF_PAIRS; products++) {
            size_t before = 0;
            for (int64_t rows = 1024; rows <= 4096; rows *= 2) {
                shape s = kinds[i];
                s.queries = s.keys = rows;
                const size_t now = workspace_of(&s, backward, p, products);
                if (rows > 1024) assert_in_range(now, 0, 2 * before);
                before = now;
            }
            assert_in_range(before, 0, 4096 * 4096);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_the_whole_matrix),
#ifndef TEST_MIRROR
        cmocka_unit_test(products_of_16_bits),
        cmocka_unit_test(products_of_pairs),
        cmocka_unit_test(same_bits_of_pairs_for_any_threads),
        cmocka_unit_test(same_bits_of_longer_sequences),
        cmocka_unit_test(probabilities_are_rounded_once),
        cmocka_unit_test(same_bits_for_any_threads),
#endif
        cmocka_unit_test(gradients_of_few_rows),
        cmocka_unit_test(dropped_as_often_as_asked),
        cmocka_unit_test(nothing_is_dropped_in_evaluation),
        cmocka_unit_test(nan_stays_in_its_row),
        cmocka_unit_test(nothing_comes_from_behind_a_length),
        cmocka_unit_test(workspace_grows_with_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
