/* Which id comes next: how often each of them is chosen over all of [0, 1), against probabilities
 * that are worked out here, by sorting all of them; the largest one at temperature 0; what has
 * none. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "optimize/sample/sample.h"

enum { MOST = 70, DRAWS = 4000 };

typedef struct {
    double p;
    int id;
} item;

static int by_probability(const void *a, const void *b)
{
    const item *x = a, *y = b;
    return x->p > y->p ? -1 : x->p < y->p ? 1 : x->id - y->id;
}

/* As the papers have it: softmax, the k first, the nucleus of these, each renormalized. */
static void reference(const tr_choice *c, const float *logits, int n, double *p)
{
    item all[MOST];
    double sum = 0, most = -INFINITY, in = 0;
    int left = n;
    for (int i = 0; i < n; i++) most = fmax(most, (double)logits[i]);
    for (int i = 0; i < n; i++) {
        all[i] = (item){exp(((double)logits[i] - most) / c->temperature), i};
        sum += all[i].p;
    }
    qsort(all, (size_t)n, sizeof *all, by_probability);
    if (c->top_k > 0 && c->top_k < left) {
        left = (int)c->top_k;
        sum = 0;
        for (int i = 0; i < left; i++) sum += all[i].p;
    }
    if (c->top_p < 1) {
        int k = 0;
        for (; k < left && in < c->top_p * sum * (1 - 1e-12); k++) in += all[k].p;
        left = k > 0 ? k : 1;
        sum = 0;
        for (int i = 0; i < left; i++) sum += all[i].p;
    }
    for (int i = 0; i < n; i++) p[i] = 0;
    for (int i = 0; i < left; i++) p[all[i].id] = all[i].p / sum;
}

/* Of an even grid, each id gets its share, but for a draw at either end. */
static void check(const tr_choice *c, const float *logits, int n)
{
    tr_candidate room[MOST];
    double p[MOST];
    int count[MOST] = {0};
    reference(c, logits, n, p);
    for (int i = 0; i < DRAWS; i++) {
        const int32_t id = tr_choose(c, logits, (size_t)n, (i + 0.5) / DRAWS, room);
        assert_in_range(id, 0, n - 1);
        count[id]++;
    }
    for (int i = 0; i < n; i++) {
        if (p[i] == 0) assert_int_equal(count[i], 0);
        if (fabs(count[i] - p[i] * DRAWS) > 1.01)
            fail_msg("t %g, k %d, p %g: id %d of %d came %d times of %d, its probability is %g",
                     c->temperature, (int)c->top_k, c->top_p, i, n, count[i], DRAWS, p[i]);
    }
}

static float logit(int kind, int n, int i)
{
    const uint32_t r = tr_philox_at(7, TR_RNG_TEST, (uint32_t)kind, (uint64_t)n, (uint32_t)i).v[0];
    return kind == 0    ? (float)(r % 20000) / 2500.0f - 4 /* apart */
           : kind == 1  ? (float)(r % 4)                   /* many equal ones */
           : i == n / 2 ? 30.0f                            /* one that has nearly all */
                        : (float)(r % 100) / 100.0f;
}

static void each_gets_its_share(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 17, MOST};
    static const int64_t ks[] = {0, 1, 2, 5, 17, 100};
    static const double ps[] = {0, 0.1, 0.5, 0.9, 0.999, 1};
    static const double temperatures[] = {0.3, 1, 2.5};
    float logits[MOST];
    for (size_t s = 0; s < TR_COUNT(sizes); s++)
        for (int kind = 0; kind < 3; kind++) {
            for (int i = 0; i < sizes[s]; i++) logits[i] = logit(kind, sizes[s], i);
            for (size_t k = 0; k < TR_COUNT(ks); k++)
                for (size_t p = 0; p < TR_COUNT(ps); p++)
                    for (size_t t = 0; t < TR_COUNT(temperatures); t++)
                        check(&(tr_choice){temperatures[t], ks[k], ps[p]}, logits, sizes[s]);
        }
}

enum { LARGE = 50257 };

static int by_weight(const void *a, const void *b)
{
    const tr_candidate *x = a, *y = b;
    return x->weight > y->weight ? -1 : x->weight < y->weight ? 1 : x->id - y->id;
}

/* As tr_choose says it, with all of them sorted. */
static size_t sorted_choices(const tr_choice *c, const float *logits, tr_candidate *all)
{
    size_t left = LARGE, in = 0;
    double sum = 0, some = 0;
    float best = logits[0];
    for (size_t i = 0; i < LARGE; i++) best = fmaxf(best, logits[i]);
    for (size_t i = 0; i < LARGE; i++) {
        const double less = (double)logits[i] - (double)best;
        all[i] = (tr_candidate){(float)exp(less / c->temperature), (int32_t)i};
        sum += (double)all[i].weight;
    }
    if (c->top_k == 0 && c->top_p == 1) return LARGE;
    qsort(all, LARGE, sizeof *all, by_weight);
    if (c->top_k > 0) {
        left = (size_t)c->top_k;
        sum = 0;
        for (size_t i = 0; i < left; i++) sum += (double)all[i].weight;
    }
    if (c->top_p == 1) return left;
    for (; in < left && some < c->top_p * sum; in++) some += (double)all[in].weight;
    return in > 0 ? in : 1;
}

static float large_logit(int kind, int i)
{
    const uint32_t r = tr_philox_at(9, TR_RNG_TEST, (uint32_t)kind, 0, (uint32_t)i).v[0];
    switch (kind) {
    case 0: /* apart */
        return (float)(r % 1000003) * 2e-5f;
    case 1: /* some thousands of each */
        return (float)(r % 7);
    case 2: /* all equal */
        return 1;
    case 3: /* few that weigh anything, equal weights of others */
        return i % 9000 ? -200.0f - (float)(r % 99) : 2.0f;
    default: /* logits that differ and weigh the same */
        return (float)(r % 64) * 1e-9f;
    }
}

/* The very same ids, also where many are equal. */
static void large_vocabularies(void **state)
{
    (void)state;
    static float logits[LARGE];
    static tr_candidate room[LARGE], all[LARGE];
    static const tr_choice choices[] = {
        {1, 0, 1},      {1, 40, 1}, {0.7, 40, 0.9},     {1, 1, 1},  {1, 0, 0.9},
        {1.5, 0, 0.05}, {1, 0, 0},  {0.3, 30000, 0.99}, {1, 20, 0}, {2, 5000, 1}};
    for (int kind = 0; kind < 5; kind++) {
        for (int i = 0; i < LARGE; i++) logits[i] = large_logit(kind, i);
        for (size_t k = 0; k < TR_COUNT(choices); k++) {
            const size_t left = sorted_choices(&choices[k], logits, all);
            double sum = 0;
            for (size_t i = 0; i < left; i++) sum += (double)all[i].weight;
            for (int draw = 0; draw < 8; draw++) {
                const double uniform = draw / 7.5;
                double at = uniform * sum;
                size_t i = 0;
                while (i + 1 < left && (at -= (double)all[i].weight) >= 0) i++;
                assert_int_equal(tr_choose(&choices[k], logits, LARGE, uniform, room), all[i].id);
            }
        }
    }
}

static void cold_is_the_largest(void **state)
{
    (void)state;
    const tr_choice cold = {0, 3, 0.5}, warm = {1, 0, 1};
    tr_candidate room[5];
    assert_int_equal(tr_choose(&cold, (float[]){-3, 2, 5, 5, 1}, 5, 0.99, room), 2);
    assert_int_equal(tr_choose(&cold, (float[]){-INFINITY, -INFINITY, -7}, 3, 0, room), 2);
    /* nothing can be chosen: not the wrong one */
    assert_int_equal(tr_choose(&cold, (float[]){1, NAN, 2}, 3, 0.5, room), -1);
    assert_int_equal(tr_choose(&warm, (float[]){1, 2, NAN}, 3, 0.5, room), -1);
    assert_int_equal(tr_choose(&warm, (float[]){-INFINITY, -INFINITY}, 2, 0.5, room), -1);
    /* next to an infinite one others have no part */
    for (int k = 0; k < 3; k++)
        assert_int_equal(
            tr_choose(&(tr_choice){1, k, 0.5}, (float[]){1, INFINITY, 2, 3}, 4, 0.5, room), 1);
    /* an impossible one never comes, also where rounding leaves the last draw without one */
    for (int i = 0; i < 100; i++)
        assert_int_equal(
            tr_choose(&warm, (float[]){0, -INFINITY}, 2, 1 - 0x1p-53 * (double)i, room), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_gets_its_share),
        cmocka_unit_test(large_vocabularies),
        cmocka_unit_test(cold_is_the_largest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
