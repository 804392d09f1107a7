/* ranks: 1 2 3 */
/* Which cores a rank takes: never any that somebody chose for it, and none at all when it is told
 * so. */
#include "modes.h"

#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "collectives/internal.h"
#include "tests/unit/trainer/machine.h"
#include "trainer/device/affinity.h"

static cpu_set_t mask_of(pid_t pid)
{
    cpu_set_t m;
    CPU_ZERO(&m);
    assert_int_equal(sched_getaffinity(pid, sizeof m, &m), 0);
    return m;
}

/* The launcher's first core alone, as Open MPI's default or a taskset would give it. */
static cpu_set_t narrow(void)
{
    cpu_set_t all = mask_of(getppid()), one;
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    return one;
}

static tr_affinity opened_at(const char *xml, const char *gpu, int affinity, int threads)
{
    tr_config config = {.run = {.affinity = affinity, .threads = threads}};
    tr_affinity a;
    tr_comm *c = open_mode(&modes[0], 30);
    assert_int_equal(tr_affinity_open(&config, c, xml, gpu, &a), TR_OK);
    tr_comm_close(c);
    return a;
}

static tr_affinity opened(int affinity, int threads)
{
    return opened_at(NULL, NULL, affinity, threads);
}

/* The launcher's core number `place`, or -1: it has fewer. */
static int core(int place)
{
    cpu_set_t all = mask_of(getppid());
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all) && place-- == 0) return i;
    return -1;
}

static void bind_to(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
}

/* Ranks counted from the last core down: where consecutive shares would not put them. */
static int backwards(void)
{
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (core(size - 1) < 0) {
        print_message("skipped: fewer cores than ranks\n");
        skip();
    }
    return core(size - 1 - rank);
}

static void test_none(void **state)
{
    (void)state;
    for (int threads = 0; threads < 3; threads++) {
        cpu_set_t one = narrow();
        tr_affinity a = opened(1, threads);
        cpu_set_t now = mask_of(0);
        assert_true(CPU_EQUAL(&now, &one));
        assert_false(a.bound);
        assert_int_equal(a.threads, threads ? threads : 1);
    }
}

/* Something between the launcher and us chose the mask, or the user asked for one. */
static void test_chosen(void **state)
{
    (void)state;
    static const char *const names[] = {"OMPI_COMMAND", "OMPI_MCA_hwloc_base_binding_policy",
                                        "OMPI_MCA_hwloc_base_cpu_set",
                                        "OMPI_MCA_rmaps_base_mapping_policy"};
    static const char *const values[] = {"/usr/bin/taskset", "core", "0", "ppr:1:node:pe=1"};
    for (size_t k = 0; k < TR_COUNT(names); k++) {
        char *before = getenv(names[k]) ? tr_strdup(getenv(names[k])) : NULL;
        setenv(names[k], values[k], 1);
        for (int threads = 0; threads < 3; threads += 2) {
            cpu_set_t one = narrow();
            tr_affinity a = opened(0, threads);
            cpu_set_t now = mask_of(0);
            assert_true(CPU_EQUAL(&now, &one));
            assert_int_equal(a.threads, threads ? threads : 1);
        }
        if (before)
            setenv(names[k], before, 1);
        else
            unsetenv(names[k]);
        tr_free(before);
    }
}

/* Open MPI's default is no choice of anybody's: all of the launcher's cores are dealt. */
static void test_default(void **state)
{
    (void)state;
    cpu_set_t all = mask_of(getppid());
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (getenv("OMPI_MCA_hwloc_base_binding_policy") || getenv("SLURM_CPU_BIND") ||
        !getenv("OMPI_COMM_WORLD_RANK")) {
        print_message("skipped: not Open MPI's default\n");
        skip();
    }
    narrow();
    tr_affinity a = opened(0, 0);
    tr_comm *c = open_mode(&modes[0], 30);
    double cores = (double)a.ncpus;
    assert_int_equal(tr_comm_all_reduce(c, &cores, 1, TR_F64), TR_OK);
    tr_comm_close(c);
    bool enough = CPU_COUNT(&all) >= size;
    assert_int_equal(a.bound, enough);
    assert_true(cores == (enough ? CPU_COUNT(&all) : 0));
}

/* A core for each rank, by a taskset before this program or by the launcher on somebody's request:
 * kept whichever is whose. */
static void test_kept(void **state)
{
    (void)state;
    const char *before = getenv("OMPI_MCA_hwloc_base_cpu_set");
    const int cpu = backwards();
    setenv("OMPI_MCA_hwloc_base_cpu_set", "0", 1);
    for (int affinity = 0; affinity < 2; affinity++) {
        bind_to(cpu);
        tr_affinity a = opened(affinity, 0);
        cpu_set_t now = mask_of(0);
        assert_int_equal(CPU_COUNT(&now), 1);
        assert_true(CPU_ISSET(cpu, &now));
        assert_int_equal(a.ncpus, 1);
        assert_int_equal(a.cpus[0], cpu);
        assert_int_equal(a.threads, 1);
        assert_int_equal(a.bound, affinity == 0);
    }
    if (!before) unsetenv("OMPI_MCA_hwloc_base_cpu_set");
}

/* All may use all: each gets the core near its GPU. Then again without GPUs, from the same
 * start. */
static void test_near(void **state)
{
    (void)state;
    char synthetic[40];
    const int cpu = backwards();
    cpu_set_t all = mask_of(getppid());
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(synthetic, sizeof synthetic, "pack:%d core:1 pu:1", cpu < 63 ? 64 : cpu + 1);
    char *xml = machine_xml(synthetic, 1, &(machine_gpu){cpu, "0000:af:00.0"});
    assert_non_null(xml);

    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    tr_affinity a = opened_at(xml, "0000:AF:00.0", 0, 0);
    cpu_set_t now = mask_of(0);
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    assert_true(a.bound && CPU_ISSET(cpu, &now));
    assert_int_equal(CPU_COUNT(&now), size == 1 ? CPU_COUNT(&all) : 1); /* alone: all are its own */
    assert_int_equal(a.threads, CPU_COUNT(&now));

    tr_affinity_undo(&a);
    now = mask_of(0);
    assert_true(CPU_EQUAL(&now, &all));
    a = opened_at(xml, NULL, 0, 0);
    now = mask_of(0);
    assert_true(a.bound && CPU_ISSET(core(rank * CPU_COUNT(&all) / size), &now));
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    free(xml);
}

/* A rank without memory says so, and nobody waits for it. */
static void test_memory(void **state)
{
    (void)state;
    tr_config config = {.run = {.affinity = 1}};
    tr_affinity a;
    for (size_t m = 0; m < 2; m++) {
        tr_comm *c = open_mode(&modes[m], 30);
        bool fails = tr_comm_topology(c)->rank == tr_comm_topology(c)->size - 1;
        if (fails) tr_mem_fail_at(m + 1);
        tr_status st = tr_affinity_open(&config, c, NULL, NULL, &a);
        tr_mem_fail_at(0);
        assert_int_equal(st, fails ? TR_MEMORY : TR_PEER);
        assert_false(tr_comm_broken(c));
        assert_int_equal(tr_comm_barrier(c), TR_OK);
        tr_comm_close(c);
    }
}

/* More ranks than the cores that they have together, which is when a wait spins the least; each
 * with one of its own. */
static void test_oversubscribed(void **state)
{
    (void)state;
    int rank, size;
    const cpu_set_t before = mask_of(0);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int apart = 0; apart < 2; apart++) {
        const int own = core(apart ? rank : 0), last = core(apart ? size - 1 : 0);
        if (last < 0) continue; /* fewer cores than ranks */
        bind_to(own);
        tr_comm *c = open_mode(&modes[0], 30);
        assert_int_equal(c->job->oversubscribed, size > 1 && !apart);
        tr_comm_close(c);
        assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    }
}

/* Down for whoever asks, up only with the right to. Last: there is no way back. */
static void test_priority(void **state)
{
    (void)state;
    tr_config config = {.run = {.nice = 0}};
    tr_comm *c = open_mode(&modes[0], 30);
    const int before = getpriority(PRIO_PROCESS, 0);
    assert_int_equal(tr_priority_set(&config, c), TR_OK);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), before);
    config.run.nice = 19;
    assert_int_equal(tr_priority_set(&config, c), TR_OK);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), 19);
    const uid_t own = geteuid();
    struct rlimit limit = {0, 0};
    assert_int_equal(setrlimit(RLIMIT_NICE, &limit), 0);
    if (own == 0) assert_int_equal(seteuid(65534), 0); /* root may */
    config.run.nice = -5;
    const tr_status st = tr_priority_set(&config, c);
    if (own == 0) assert_int_equal(seteuid(0), 0);
    assert_int_equal(st, TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "run.nice: the system refuses -5"));
    assert_int_equal(getpriority(PRIO_PROCESS, 0), 19);
    tr_comm_close(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_memory),         cmocka_unit_test(test_none),
    cmocka_unit_test(test_chosen),         cmocka_unit_test(test_kept),
    cmocka_unit_test(test_near),           cmocka_unit_test(test_default),
    cmocka_unit_test(test_oversubscribed), cmocka_unit_test(test_priority),
};

RUN_MPI_TESTS(tests)
