/* Every way ranks can talk, in one process: each test runs over this table. */
#ifndef TR_TESTS_MODES_H
#define TR_TESTS_MODES_H

#include "collectives/collectives.h"

#include <stdarg.h>
#include <mpi.h>
#include <setjmp.h>
#include <stdlib.h>
/* after those it needs */
#include <cmocka.h>

typedef struct {
    const char *name;
    bool shared;
    int nodes;             /* pretend nodes; 1: the real one */
    const char *mpi_limit; /* largest count of one MPI call; NULL: the default */
    bool bf16;             /* on the wire */
    bool shard;            /* the optimizer */
} test_mode;

static const test_mode modes[] = {
    {"shared", true, 1, NULL, false, false},
    {"mpi", false, 1, NULL, false, false},
    {"mpi in pieces", false, 1, "48", false, false},
    {"2 nodes", true, 2, NULL, false, false},
    {"2 nodes, bf16", true, 2, NULL, true, false},
    {"3 nodes", true, 3, "48", false, false},
    {"2 nodes, mpi", false, 2, NULL, false, false},
    {"2 nodes, mpi, bf16", false, 2, NULL, true, false},
    {"shared, sharded", true, 1, NULL, false, true},
    {"mpi, sharded", false, 1, NULL, false, true},
    {"2 nodes, sharded", true, 2, NULL, false, true},
    {"2 nodes, bf16, sharded", true, 2, NULL, true, true},
    {"3 nodes, sharded", true, 3, NULL, false, true},
    {"2 nodes, mpi, bf16, sharded", false, 2, NULL, true, true},
};

/* How parameters are cut into buckets. */
enum { MAX_BUCKETS = 40 };

typedef struct {
    const char *name;
    size_t nbuckets;
    size_t lengths[MAX_BUCKETS];
} layout;

static inline tr_status try_mode(const test_mode *m, double timeout, tr_comm **out)
{
    char nodes[16];
    snprintf(nodes, sizeof nodes, "%d", m->nodes);
    setenv("TRIREME_FAKE_NODES", nodes, 1);
    if (m->mpi_limit)
        setenv("TRIREME_MPI_LIMIT", m->mpi_limit, 1);
    else
        unsetenv("TRIREME_MPI_LIMIT");
    tr_comm_options o = {.mpi = true, .shared_allowed = m->shared, .timeout = timeout};
    return tr_comm_open(&o, out);
}

static inline tr_comm *open_mode(const test_mode *m, double timeout)
{
    tr_comm *c = NULL;
    assert_int_equal(try_mode(m, timeout, &c), TR_OK);
    return c;
}

/* A rank whose test fails ends the job at once: going on to its next test, it would leave the
 * others waiting in this one. */
#define RUN_RANK_TESTS(tests)                                                                      \
    (setenv("CMOCKA_TEST_ABORT", "1", 1), cmocka_run_group_tests(tests, NULL, NULL))

/* With an argument only the case of that name. */
#define RUN_MPI_TESTS(tests)                                                                       \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        int provided, rank, size;                                                                  \
        MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);                             \
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);                                                      \
        MPI_Comm_size(MPI_COMM_WORLD, &size);                                                      \
        tr_log_init(rank, size, TR_LOG_ERROR);                                                     \
        if (argc > 1) cmocka_set_test_filter(argv[1]);                                             \
        int failed = RUN_RANK_TESTS(tests);                                                        \
        MPI_Finalize();                                                                            \
        return failed;                                                                             \
    }

#endif
