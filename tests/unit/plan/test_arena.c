/* Packing: never an overlap of tensors that live together, never below the floor, close to it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "runtime/plan/internal.h"

static bool meet(const tr_live *a, const tr_live *b)
{
    return a->first <= b->last && b->first <= a->last;
}

static void check(const tr_live *live, size_t n, size_t nbytes)
{
    for (size_t i = 0; i < n; i++) {
        if (!live[i].arena) continue;
        assert_int_equal(live[i].offset % TR_ARENA_ALIGN, 0);
        assert_true(live[i].offset + live[i].nbytes <= nbytes);
        for (size_t j = 0; j < i; j++) {
            if (!live[j].arena || !meet(&live[i], &live[j])) continue;
            assert_true(live[i].offset + live[i].nbytes <= live[j].offset ||
                        live[j].offset + live[j].nbytes <= live[i].offset);
        }
    }
}

/* Op by op. */
static size_t floor_of(const tr_live *live, size_t n)
{
    size_t most = 0;
    for (int op = -1; op < 100; op++) {
        size_t now = 0;
        for (size_t i = 0; i < n; i++)
            if (live[i].arena && live[i].first <= op && op <= live[i].last) now += live[i].nbytes;
        if (now > most) most = now;
    }
    return most;
}

static void random_lifetimes_never_overlap(void **state)
{
    (void)state;
    tr_live live[120];
    double worst = 1, sum = 0;
    for (uint64_t round = 0; round < 200; round++) {
        const size_t n = 1 + tr_philox_at(1, TR_RNG_TEST, 0, round, 0).v[0] % TR_COUNT(live);
        memset(live, 0, sizeof live);
        for (size_t i = 0; i < n; i++) {
            const tr_philox r = tr_philox_at(1, TR_RNG_TEST, 1, round, (uint32_t)i);
            live[i].arena = r.v[3] % 8 != 0;
            live[i].first = (int)(r.v[0] % 60) - 1;
            live[i].last = live[i].first + (int)(r.v[1] % 20);
            live[i].nbytes = TR_ARENA_ALIGN * (1 + r.v[2] % 50);
        }
        size_t nbytes = 0, floor = 0;
        assert_int_equal(tr_arena_pack(live, n, &nbytes, &floor), TR_OK);
        assert_int_equal(floor, floor_of(live, n));
        check(live, n, nbytes);
        assert_true(nbytes >= floor);
        if (floor == 0) continue;
        const double ratio = (double)nbytes / (double)floor;
        sum += ratio;
        if (ratio > worst) worst = ratio;
    }
    assert_true(worst <
                1.35); /* of these fixed cases; a packing that ignores time is at 3 and more */
    assert_true(sum / 200 < 1.10);
}

static void a_training_step_packs_to_its_floor(void **state)
{
    (void)state;
    /* Forward saves 16 tensors, backward frees them in reverse and keeps two gradients at a
     * time. */
    enum { LAYERS = 16 };
    tr_live live[2 * LAYERS];
    memset(live, 0, sizeof live);
    for (int i = 0; i < LAYERS; i++) {
        live[i] = (tr_live){.arena = true, .first = i, .last = 2 * LAYERS - 1 - i, .nbytes = 4096};
        live[LAYERS + i] =
            (tr_live){.arena = true, .first = LAYERS + i, .last = LAYERS + i + 1, .nbytes = 4096};
    }
    size_t nbytes = 0, floor = 0;
    assert_int_equal(tr_arena_pack(live, TR_COUNT(live), &nbytes, &floor), TR_OK);
    check(live, TR_COUNT(live), nbytes);
    assert_int_equal(floor, floor_of(live, TR_COUNT(live)));
    assert_int_equal(nbytes, floor);
}

/* So many that not every order is tried: still no overlap, and close to the floor. */
static void thousands_are_packed_well_enough(void **state)
{
    (void)state;
    enum {
        LAYERS = 3000,
        EACH = 4
    }; /* saved, its gradient, and scratch on the way there and back */
    static tr_live live[LAYERS * EACH];
    for (int i = 0; i < LAYERS; i++) {
        const int back = 2 * LAYERS - 1 - i;
        const size_t n =
            TR_ARENA_ALIGN * (1 + tr_philox_at(1, TR_RNG_TEST, 2, (uint64_t)i, 0).v[0] % 9);
        live[4 * i] = (tr_live){.arena = true, .first = i, .last = back, .nbytes = n};
        live[4 * i + 1] = (tr_live){.arena = true, .first = back, .last = back + 1, .nbytes = n};
        live[4 * i + 2] =
            (tr_live){.arena = true, .first = i, .last = i, .nbytes = 3 * TR_ARENA_ALIGN};
        live[4 * i + 3] =
            (tr_live){.arena = true, .first = back, .last = back, .nbytes = 5 * TR_ARENA_ALIGN};
    }
    size_t nbytes = 0, floor = 0;
    assert_int_equal(tr_arena_pack(live, TR_COUNT(live), &nbytes, &floor), TR_OK);
    check(live, TR_COUNT(live), nbytes);
    assert_true(nbytes >= floor);
    assert_true(nbytes <= floor + floor / 32);
}

static void what_is_covered_counts_once(void **state)
{
    (void)state;
    const tr_live live[] = {
        {.arena = true, .offset = 128, .nbytes = 64}, {.arena = true, .offset = 0, .nbytes = 64},
        {.arena = false, .offset = 64, .nbytes = 64}, {.arena = true, .offset = 128, .nbytes = 128},
        {.arena = true, .offset = 192, .nbytes = 64}, {.arena = true, .offset = 320, .nbytes = 64}};
    size_t nbytes = 0;
    assert_int_equal(tr_arena_covered(live, TR_COUNT(live), &nbytes), TR_OK);
    assert_int_equal(nbytes, 64 + 128 + 64);
    assert_int_equal(tr_arena_covered(live, 3, &nbytes), TR_OK);
    assert_int_equal(nbytes, 128);
}

static void nothing_needs_nothing(void **state)
{
    (void)state;
    size_t nbytes = 1, floor = 1;
    assert_int_equal(tr_arena_pack(NULL, 0, &nbytes, &floor), TR_OK);
    assert_int_equal(nbytes, 0);
    assert_int_equal(floor, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lifetimes_never_overlap),
        cmocka_unit_test(a_training_step_packs_to_its_floor),
        cmocka_unit_test(thousands_are_packed_well_enough),
        cmocka_unit_test(what_is_covered_counts_once),
        cmocka_unit_test(nothing_needs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
