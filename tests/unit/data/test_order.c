/* The cut of an epoch: every sample exactly once, in order, shares even, whatever the numbers. */
#include "helpers.h"

static void once(uint64_t samples, int64_t batch, int micro_batches, int size, bool drop_last)
{
    uint64_t next = 0, steps = tr_steps_per_epoch(samples, batch, drop_last);
    int64_t sizes[64][8];
    int nsizes[64];
    bool met[64][8] = {{false}};
    for (int r = 0; r < size; r++)
        nsizes[r] = tr_share_sizes(samples, batch, micro_batches, r, size, drop_last, sizes[r]);
    for (uint64_t s = 0; s < steps; s++) {
        uint64_t first = next;
        int64_t group_most = 0, empty = 0;
        for (int micro = 0; micro < micro_batches; micro++) {
            int64_t most = 0, group = 0;
            for (int r = 0; r < size; r++) {
                tr_range p = tr_share(samples, batch, s, micro_batches, micro, r, size);
                int64_t n = (int64_t)(p.end - p.begin);
                assert_true(p.begin == next && n >= 0);
                next = p.end;
                group += n;
                if (r == 0) most = n;
                assert_true(n <= most && n >= most - 1); /* even, larger first */
                int k = 0;
                while (k < nsizes[r] && sizes[r][k] != n) k++;
                assert_true(k < nsizes[r]);
                met[r][k] = true;
            }
            if (micro == 0) group_most = group;
            assert_true(group <= group_most && (group >= group_most - 1 || group == 0));
            empty += group == 0;
        }
        const int64_t k = micro_batches, full = (batch + k - 1) / k; /* samples of a micro-batch */
        assert_true(group_most <= full);
        if (next - first < (uint64_t)batch) /* short: no more micro-batches than hold it */
            assert_int_equal(k - empty, ((int64_t)(next - first) + full - 1) / full);
        uint64_t want = samples - first < (uint64_t)batch ? samples - first : (uint64_t)batch;
        assert_int_equal(next - first, want);
    }
    assert_int_equal(next, drop_last ? samples / (uint64_t)batch * (uint64_t)batch : samples);
    for (int r = 0; r < size; r++) {
        for (int k = 0; k < nsizes[r]; k++) {
            assert_true(met[r][k]); /* no size that is never met */
            assert_true(k == 0 || sizes[r][k] < sizes[r][k - 1]);
        }
        assert_true(nsizes[r] <= 5 && (steps == 0 || nsizes[r] > 0));
    }
    tr_range past = tr_share(samples, batch, tr_steps_per_epoch(samples, batch, false),
                             micro_batches, 0, 0, size);
    assert_int_equal(past.begin, past.end);
}

static void exactly_once(void **state)
{
    (void)state;
    const uint64_t samples[] = {1, 2, 3, 7, 10, 64, 97, 1000};
    const int64_t batches[] = {1, 2, 3, 7, 16, 64, 100, 5000};
    const int micros[] = {1, 2, 3, 8}, sizes[] = {1, 2, 3, 4, 7, 50};
    for (size_t a = 0; a < TR_COUNT(samples); a++)
        for (size_t b = 0; b < TR_COUNT(batches); b++)
            for (size_t c = 0; c < TR_COUNT(micros); c++)
                for (size_t d = 0; d < TR_COUNT(sizes); d++)
                    for (int drop = 0; drop < 2; drop++)
                        once(samples[a], batches[b], micros[c], sizes[d], drop);
}

/* Micro-batch micro of all ranks is the same run of samples for any number of ranks. */
static void rank_count(void **state)
{
    (void)state;
    for (int micro = 0; micro < 3; micro++) {
        tr_range one = tr_share(1000, 37, 27, 3, micro, 0, 1);
        for (int size = 2; size < 9; size++) {
            assert_int_equal(tr_share(1000, 37, 27, 3, micro, 0, size).begin, one.begin);
            assert_int_equal(tr_share(1000, 37, 27, 3, micro, size - 1, size).end, one.end);
        }
    }
    tr_range far = tr_share(UINT64_C(1) << 62, 1 << 20, (UINT64_C(1) << 42) - 1, 1, 0, 1, 2);
    assert_int_equal(far.end, UINT64_C(1) << 62);
    assert_int_equal(far.end - far.begin, 1 << 19);
}

/* The picture at the head of order.c. */
static void example(void **state)
{
    (void)state;
    tr_range s = tr_share(10, 7, 0, 2, 0, 0, 3);
    assert_true(s.begin == 0 && s.end == 2);
    s = tr_share(10, 7, 0, 2, 1, 2, 3);
    assert_true(s.begin == 6 && s.end == 7);
    s = tr_share(10, 7, 1, 2, 0, 2, 3);
    assert_true(s.begin == 9 && s.end == 10);
    s = tr_share(10, 7, 1, 2, 1, 0, 3);
    assert_true(s.begin == 10 && s.end == 10);
    int64_t sizes[8];
    assert_int_equal(tr_share_sizes(10, 7, 2, 0, 3, false, sizes), 3);
    assert_true(sizes[0] == 2 && sizes[1] == 1 && sizes[2] == 0);
    assert_int_equal(tr_share_sizes(10, 7, 2, 2, 3, false, sizes), 2);
    assert_true(sizes[0] == 1 && sizes[1] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exactly_once),
        cmocka_unit_test(rank_count),
        cmocka_unit_test(example),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
