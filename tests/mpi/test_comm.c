/* ranks: 1 2 3 4 */
/* The collectives in every mode against values known beforehand, on all ranks and on groups of
 * them; messages; topology; and agreement with every subset of failing ranks. */
#include "modes.h"

#include <mpi.h>
#include <string.h>

#include "collectives/internal.h"

static const size_t sizes[] = {0, 1, 3, 7, 64, 1000, 4096, 5001, 33333};

/* Not exactly representable: a sum in another order shows in the last bits. */
static double value(int rank, size_t i)
{
    return (double)(rank + 1) / 3.0 + (double)i * 0.1 + (rank & 1 ? 1e9 : 0.0);
}

static void each_mode(void (*f)(tr_comm *, const tr_topology *))
{
    for (size_t m = 0; m < TR_COUNT(modes); m++) {
        if (modes[m].shard) continue; /* which reducers alone know of */
        tr_comm *c = open_mode(&modes[m], 30);
        f(c, tr_comm_topology(c));
        tr_comm_close(c);
    }
}

static void sum_of(tr_comm *c, const tr_topology *t, size_t n)
{
    double *v = tr_alloc(TR_MEM_OTHER, n, sizeof *v);
    int64_t *w = tr_alloc(TR_MEM_OTHER, n, sizeof *w);
    for (size_t i = 0; i < n; i++) {
        v[i] = value(t->rank, i);
        w[i] = (int64_t)i * (t->rank % 2 ? -3 : 5) + ((int64_t)t->rank << 40);
    }
    assert_int_equal(tr_comm_all_reduce(c, v, n, TR_F64), TR_OK);
    assert_int_equal(tr_comm_all_reduce(c, w, n, TR_I64), TR_OK);
    for (size_t i = 0; i < n; i++) {
        double want = value(0, i);
        int64_t whole = 0;
        for (int r = 1; r < t->size; r++) want += value(r, i);
        for (int r = 0; r < t->size; r++)
            whole += (int64_t)i * (r % 2 ? -3 : 5) + ((int64_t)r << 40);
        assert_memory_equal(&v[i], &want, sizeof want);
        assert_int_equal(w[i], whole);
    }
    tr_free(v);
    tr_free(w);
}

static void sum_case(tr_comm *c, const tr_topology *t)
{
    for (size_t k = 0; k < TR_COUNT(sizes); k++) sum_of(c, t, sizes[k]);
}

static unsigned char byte(int rank, size_t i)
{
    return (unsigned char)(i * 7 + (size_t)rank * 131 + (i >> 8));
}

static void gather_case(tr_comm *c, const tr_topology *t)
{
    for (size_t k = 0; k < TR_COUNT(sizes); k++) {
        size_t n = sizes[k] * 3;
        if (sizes[k] > 5001) n = 70001; /* several slots */
        unsigned char *send = tr_alloc(TR_MEM_OTHER, n, 1);
        unsigned char *recv = tr_alloc(TR_MEM_OTHER, n * (size_t)t->size, 1);
        for (size_t i = 0; i < n; i++) send[i] = byte(t->rank, i);
        assert_int_equal(tr_comm_all_gather(c, send, recv, n), TR_OK);
        for (int r = 0; r < t->size; r++)
            for (size_t i = 0; i < n; i++)
                if (recv[(size_t)r * n + i] != byte(r, i))
                    fail_msg("rank %d's byte %zu of %zu", r, i, n);
        tr_free(send);
        tr_free(recv);
    }
}

static void bcast_case(tr_comm *c, const tr_topology *t)
{
    for (int root = 0; root < t->size; root++)
        for (size_t k = 0; k < TR_COUNT(sizes); k++) {
            size_t n = sizes[k] * 2 + (sizes[k] & 1);
            unsigned char *buf = tr_alloc(TR_MEM_OTHER, n, 1);
            for (size_t i = 0; t->rank == root && i < n; i++) buf[i] = byte(root, i);
            assert_int_equal(tr_comm_broadcast(c, buf, n, root), TR_OK);
            for (size_t i = 0; i < n; i++)
                if (buf[i] != byte(root, i)) fail_msg("byte %zu of %zu from %d", i, n, root);
            tr_free(buf);
        }
    static const char *const texts[] = {NULL, "", "of rank 0"};
    for (size_t k = 0; k < TR_COUNT(texts); k++) {
        char *text = t->rank == 0 && texts[k] ? tr_strdup(texts[k]) : NULL;
        assert_int_equal(tr_comm_share_text(c, &text), TR_OK);
        assert_int_equal(text != NULL, texts[k] != NULL);
        if (text) assert_string_equal(text, texts[k]);
        tr_free(text);
    }
}

/* After a barrier everybody must see what everybody did before it. */
static void barrier_case(tr_comm *c, const tr_topology *t)
{
    MPI_Win win;
    int *counter = NULL;
    MPI_Win_allocate(t->rank == 0 ? sizeof(int) : 0, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD,
                     &counter, &win);
    if (t->rank == 0) *counter = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, win);
    for (int round = 1; round <= 50; round++) {
        int one = 1, seen = 0, old = 0;
        MPI_Fetch_and_op(&one, &old, MPI_INT, 0, 0, MPI_SUM, win);
        MPI_Win_flush(0, win);
        assert_int_equal(tr_comm_barrier(c), TR_OK);
        MPI_Fetch_and_op(NULL, &seen, MPI_INT, 0, 0, MPI_NO_OP, win);
        MPI_Win_flush(0, win);
        assert_int_equal(seen, round * t->size);
        assert_int_equal(tr_comm_barrier(c), TR_OK);
    }
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
}

/* Many calls of mixed kinds without a pause: slots are reused while neighbours still read. */
static void mixed_case(tr_comm *c, const tr_topology *t)
{
    uint32_t recv[64];
    for (uint32_t i = 0; i < 3000; i++) {
        uint32_t mine = i * 64 + (uint32_t)t->rank;
        assert_int_equal(tr_comm_all_gather(c, &mine, recv, sizeof mine), TR_OK);
        for (int r = 0; r < t->size; r++) assert_int_equal(recv[r], i * 64 + (uint32_t)r);
        double v = 1.0 + i;
        assert_int_equal(tr_comm_all_reduce(c, &v, 1, TR_F64), TR_OK);
        assert_true(v == (1.0 + i) * t->size);
    }
}

static void topology_of(tr_comm *c)
{
    const tr_topology *t = tr_comm_topology(c);
    assert_non_null(t->reason);
    assert_true(t->reason[0] != 0 && t->host[0] != 0);
    assert_true(t->local_rank >= 0 && t->local_rank < t->local_size);
    assert_true(t->node >= 0 && t->node < t->nodes);
    assert_true(t->slices >= 1 && t->slices <= t->local_size);
    double leaders = t->local_rank == 0, share = 1.0 / t->local_size;
    assert_int_equal(tr_comm_all_reduce(c, &leaders, 1, TR_F64), TR_OK);
    assert_int_equal(tr_comm_all_reduce(c, &share, 1, TR_F64), TR_OK);
    assert_true(leaders == t->nodes);
    assert_true(share > t->nodes - 1e-9 && share < t->nodes + 1e-9);
}

static void topology_case(tr_comm *c, const tr_topology *t)
{
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    assert_int_equal(t->rank, rank);
    assert_int_equal(t->size, size);
    topology_of(c);
}
static void agree_case(tr_comm *c, const tr_topology *t)
{
    static const tr_status kinds[] = {TR_DATA, TR_CONFIG, TR_STOPPED, TR_IO};
    for (unsigned failing = 0; failing < 1u << t->size; failing++)
        for (size_t k = 0; k < TR_COUNT(kinds); k++) {
            bool fails = failing >> t->rank & 1, said = true;
            int lowest = failing ? __builtin_ctz(failing) : -1;
            char text[64];
            snprintf(text, sizeof text, "trouble %d on rank %d", (int)kinds[k], t->rank);
            tr_status st = fails ? TR_FAIL(kinds[k], "%s", text) : TR_OK;
            tr_status got = tr_agree(c, st, &said);
            assert_int_equal(said, t->rank == lowest);
            if (!failing) {
                assert_int_equal(got, TR_OK);
            } else if (fails) {
                assert_int_equal(got, kinds[k]);
                assert_string_equal(tr_last_error()->text, text);
            } else {
                char start[32], theirs[64];
                bool generic = tr_status_exit_code(kinds[k]) == 1;
                assert_int_equal(got, generic ? TR_PEER : kinds[k]);
                assert_int_equal(tr_status_exit_code(got), tr_status_exit_code(kinds[k]));
                snprintf(start, sizeof start, "a peer failed: rank %d (", c->ranks[lowest]);
                snprintf(theirs, sizeof theirs, "trouble %d on rank %d", (int)kinds[k], lowest);
                assert_memory_equal(tr_last_error()->text, start, strlen(start));
                assert_non_null(strstr(tr_last_error()->text, theirs));
                assert_int_equal(tr_last_error()->status, got);
            }
        }
}

/* Whose error it is stays so when it is agreed on again, also by ranks below. */
static void agree_again_case(tr_comm *c, const tr_topology *t)
{
    for (int failing = 0; failing < t->size; failing++) {
        bool fails = t->rank == failing, said = true;
        char start[48];
        snprintf(start, sizeof start, "a peer failed: rank %d (", failing);
        tr_status st = tr_agree(c, fails ? TR_FAIL(TR_DATA, "the origin") : TR_OK, NULL);
        for (int again = 0; again < 3; again++) {
            st = tr_agree(c, st, &said);
            assert_int_equal(said, fails);
            assert_int_equal(st, fails ? TR_DATA : TR_PEER);
            if (fails)
                assert_string_equal(tr_last_error()->text, "the origin");
            else
                assert_memory_equal(tr_last_error()->text, start, strlen(start));
        }
        if (t->size == 1) continue;
        st = tr_agree(c, fails ? TR_OK : st, &said); /* it no longer knows: the others do */
        assert_int_equal(st, TR_PEER);
        assert_int_equal(said, t->rank == (failing == 0));
        assert_memory_equal(tr_last_error()->text, start, strlen(start));
        assert_null(strstr(tr_last_error()->text + 1, "a peer failed"));
    }
}

/* Every collective against what its definition gives. */
static void collectives_case(tr_comm *c, const tr_topology *t)
{
    static const size_t counts[] = {0, 1, 5, 63, 1000, 9001};
    const size_t size = (size_t)t->size;
    for (size_t k = 0; k < TR_COUNT(counts); k++) {
        const size_t n = counts[k], all = n * size;
        double *v = tr_alloc(TR_MEM_OTHER, all, sizeof *v);
        double *part = tr_alloc(TR_MEM_OTHER, n, sizeof(*part));
        float *f = tr_alloc(TR_MEM_OTHER, all, sizeof *f);
        float *fpart = tr_alloc(TR_MEM_OTHER, n, sizeof *fpart);
        for (size_t i = 0; i < all; i++) {
            v[i] = value(t->rank, i);
            f[i] = (float)v[i] * 1e-6f;
        }
        assert_int_equal(tr_comm_reduce_scatter(c, v, part, n, TR_F64), TR_OK);
        assert_int_equal(tr_comm_reduce_scatter(c, f, fpart, n, TR_F32), TR_OK);
        assert_int_equal(tr_comm_all_reduce(c, f, all, TR_F32), TR_OK);
        for (size_t i = 0; i < all; i++) {
            double want = value(0, i);
            float fwant = (float)value(0, i) * 1e-6f;
            for (int r = 1; r < t->size; r++) {
                want += value(r, i);
                fwant += (float)value(r, i) * 1e-6f;
            }
            assert_memory_equal(&f[i], &fwant, sizeof fwant);
            if (i / (n ? n : 1) != (size_t)t->rank) continue;
            assert_memory_equal(&part[i - n * (size_t)t->rank], &want, sizeof want);
            assert_memory_equal(&fpart[i - n * (size_t)t->rank], &fwant, sizeof fwant);
        }
        tr_free(v);
        tr_free(part);
        tr_free(f);
        tr_free(fpart);
    }
    assert_int_equal(tr_comm_all_reduce(c, NULL, 0, TR_BF16), TR_INTERNAL);
}

/* Round a ring, and from everybody to rank 0; more than a message that MPI sends off at once. */
static void message_case(tr_comm *c, const tr_topology *t)
{
    static const size_t counts[] = {0, 1, 47, 49, 5000};
    const int next = (t->rank + 1) % t->size, before = (t->rank + t->size - 1) % t->size;
    unsigned char *buf = tr_alloc(TR_MEM_OTHER, 1 << 18, 1);
    for (size_t k = 0; k < TR_COUNT(counts) + (c->job->mpi_limit > 1000); k++) {
        const size_t n = k < TR_COUNT(counts) ? counts[k] : 1 << 18;
        for (int turn = 0; t->size > 1 && turn < 2; turn++) {
            if ((t->rank == 0) == (turn == 0)) {
                for (size_t i = 0; i < n; i++) buf[i] = byte(t->rank, i);
                assert_int_equal(tr_comm_send(c, buf, n, next), TR_OK);
            } else {
                memset(buf, 0, 1 << 18);
                assert_int_equal(tr_comm_receive(c, buf, n, before), TR_OK);
                for (size_t i = 0; i < n; i++)
                    if (buf[i] != byte(before, i)) fail_msg("byte %zu of %zu", i, n);
            }
        }
    }
    for (int r = 1; t->rank == 0 && r < t->size; r++) {
        assert_int_equal(tr_comm_receive(c, buf, 3, r), TR_OK);
        assert_true(buf[0] == byte(r, 0) && buf[2] == byte(r, 2));
    }
    for (size_t i = 0; i < 3; i++) buf[i] = byte(t->rank, i);
    if (t->rank > 0) assert_int_equal(tr_comm_send(c, buf, 3, 0), TR_OK);
    tr_free(buf);
}

static void all_cases(tr_comm *c)
{
    const tr_topology *t = tr_comm_topology(c);
    sum_case(c, t);
    gather_case(c, t);
    bcast_case(c, t);
    collectives_case(c, t);
    message_case(c, t);
    agree_case(c, t);
    topology_of(c);
}

/* Halves in reverse order, of a parent that may be a group itself; then all of it once more. */
static void split_case(tr_comm *c, const tr_topology *t)
{
    const int half = t->rank >= (t->size + 1) / 2;
    tr_comm *group = NULL, *within = NULL, *none = NULL;
    assert_int_equal(tr_comm_split(c, half, -t->rank, &group), TR_OK);
    const tr_topology *g = tr_comm_topology(group);
    const int first = half ? (t->size + 1) / 2 : 0, size = half ? t->size / 2 : (t->size + 1) / 2;
    assert_int_equal(g->size, size);
    assert_int_equal(g->rank, first + size - 1 - t->rank);
    all_cases(group);
    assert_int_equal(tr_comm_split(group, g->rank == 0 ? -1 : 3, 0, &within), TR_OK);
    assert_true((within == NULL) == (g->rank == 0));
    if (within) {
        assert_int_equal(tr_comm_topology(within)->rank, g->rank - 1);
        all_cases(within);
    }
    tr_comm_close(group); /* before what was split from it, and before the job's */
    if (within) assert_int_equal(tr_comm_barrier(within), TR_OK);
    tr_comm_close(within);
    assert_int_equal(tr_comm_split(c, -1, 0, &none), TR_OK);
    assert_null(none);
    assert_int_equal(tr_comm_barrier(c), TR_OK);
}

/* Those of a node, and one of each; the sums of both together are the sum of all. */
static void node_case(tr_comm *c, const tr_topology *t)
{
    tr_comm *node = NULL, *across = NULL;
    assert_int_equal(tr_comm_split_node(c, &node), TR_OK);
    assert_int_equal(tr_comm_split_across(c, &across), TR_OK);
    const tr_topology *n = tr_comm_topology(node);
    assert_true(n->size == t->local_size && n->rank == t->local_rank && n->nodes == 1);
    assert_true(n->shared == (t->shared && n->size > 1));
    all_cases(node);
    assert_true((across != NULL) == (t->local_rank < t->slices));
    int64_t ranks[2] = {1, t->rank}, rank = t->size * (t->size - 1) / 2;
    assert_int_equal(tr_comm_all_reduce(node, ranks, 2, TR_I64), TR_OK);
    assert_int_equal(ranks[0], t->local_size);
    if (across) {
        assert_int_equal(tr_comm_topology(across)->size, t->nodes);
        assert_int_equal(tr_comm_topology(across)->rank, t->node);
        assert_int_equal(tr_comm_topology(across)->nodes, t->nodes);
        assert_int_equal(tr_comm_all_reduce(across, ranks, 2, TR_I64), TR_OK);
        assert_true(ranks[0] == t->size && ranks[1] == rank);
        all_cases(across);
    }
    tr_comm_close(across);
    tr_comm_close(node);
}

static void test_collectives(void **state)
{
    (void)state;
    each_mode(collectives_case);
    each_mode(message_case);
}

static void test_split(void **state)
{
    (void)state;
    each_mode(split_case);
    each_mode(node_case);
}

/* A group outlives what it was split from. */
static void test_close_order(void **state)
{
    (void)state;
    for (size_t m = 0; m < TR_COUNT(modes); m++) {
        tr_comm *c = open_mode(&modes[m], 30), *group = NULL;
        int64_t one = 1;
        assert_int_equal(tr_comm_split(c, tr_comm_topology(c)->rank % 2, 0, &group), TR_OK);
        tr_comm_close(c);
        assert_int_equal(tr_comm_all_reduce(group, &one, 1, TR_I64), TR_OK);
        assert_int_equal(one, tr_comm_topology(group)->size);
        tr_comm_close(group);
    }
}

static void test_sum(void **state)
{
    (void)state;
    each_mode(sum_case);
}

/* Fewer elements in a message than there are ranks, as from 725 ranks on: what is left may be more
 * than the one and fewer than the other. */
static void test_sum_many_ranks(void **state)
{
    (void)state;
    static const test_mode one = {.name = "mpi, one by one", .nodes = 1, .mpi_limit = "1"},
                           two = {.name = "mpi, by twos", .nodes = 1, .mpi_limit = "2"};
    const test_mode *const few[] = {&one, &two};
    for (size_t m = 0; m < TR_COUNT(few); m++) {
        tr_comm *c = open_mode(few[m], 30);
        for (size_t n = 0; n <= 17; n++) sum_of(c, tr_comm_topology(c), n);
        tr_comm_close(c);
    }
}

static void test_gather(void **state)
{
    (void)state;
    each_mode(gather_case);
}

static void test_bcast(void **state)
{
    (void)state;
    each_mode(bcast_case);
}

static void test_barrier(void **state)
{
    (void)state;
    each_mode(barrier_case);
}

static void test_mixed(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], 30);
    mixed_case(c, tr_comm_topology(c));
    tr_comm_close(c);
}

static void test_topology(void **state)
{
    (void)state;
    each_mode(topology_case);
}

static void test_agree(void **state)
{
    (void)state;
    each_mode(agree_case);
}

static void test_agree_again(void **state)
{
    (void)state;
    each_mode(agree_again_case);
}

/* Without MPI there is one rank, and everything is the identity. */
static void test_alone(void **state)
{
    (void)state;
    tr_comm *c = NULL;
    tr_comm_options o = {.mpi = false, .timeout = 1};
    assert_int_equal(tr_comm_open(&o, &c), TR_OK);
    assert_int_equal(tr_comm_topology(c)->size, 1);
    double v = 3;
    int x = 5, y = 0;
    bool said = false;
    assert_int_equal(tr_comm_all_reduce(c, &v, 1, TR_F64), TR_OK);
    assert_int_equal(tr_comm_all_gather(c, &x, &y, sizeof x), TR_OK);
    assert_true(v == 3 && y == 5);
    tr_comm *group = NULL;
    assert_int_equal(tr_comm_split(c, 4, 0, &group), TR_OK);
    assert_int_equal(tr_comm_topology(group)->size, 1);
    assert_int_equal(tr_comm_reduce_scatter(group, &x, &y, sizeof x, TR_U8), TR_INTERNAL);
    tr_comm_close(group);
    assert_int_equal(tr_agree(c, TR_FAIL(TR_DATA, "alone"), &said), TR_DATA);
    assert_true(said);
    assert_int_equal(tr_agree(c, TR_OK, &said), TR_OK);
    assert_false(said);
    tr_comm_close(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_alone),
    cmocka_unit_test(test_topology),
    cmocka_unit_test(test_sum),
    cmocka_unit_test(test_gather),
    cmocka_unit_test(test_bcast),
    cmocka_unit_test(test_barrier),
    cmocka_unit_test(test_mixed),
    cmocka_unit_test(test_agree),
    cmocka_unit_test(test_agree_again),
    cmocka_unit_test(test_collectives),
    cmocka_unit_test(test_split),
    cmocka_unit_test(test_close_order),
    cmocka_unit_test(test_sum_many_ranks),
};

RUN_MPI_TESTS(tests)
