/* Shares of cores on pretended machines: two sockets, second hardware threads, GPUs near some
 * cores, masks that somebody chose; and what hwloc says of such machines. */
#include "trainer/device/cores.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <hwloc/glibc-sched.h>
/* after those it needs */
#include <cmocka.h>

#include "machine.h"

enum { RANKS = 8 };

static hwloc_topology_t machine_now;

static int plug(const char *synthetic, int ngpus, const machine_gpu *gpus)
{
    char *xml = machine_xml(synthetic, ngpus, gpus);
    if (!xml) return -1;
    tr_cores_machine_close(machine_now);
    machine_now = tr_cores_machine(xml, ngpus > 0);
    free(xml);
    return machine_now ? 0 : -1;
}

/* Eight cores of one thread. */
static int machine(void **state)
{
    (void)state;
    return plug("pack:2 core:4 pu:1", 0, NULL);
}

static int demolish(void **state)
{
    (void)state;
    tr_cores_machine_close(machine_now);
    machine_now = NULL;
    return 0;
}

static cpu_set_t set(const char *list)
{
    cpu_set_t s;
    hwloc_bitmap_t b = hwloc_bitmap_alloc();
    assert_int_equal(hwloc_bitmap_list_sscanf(b, list), 0);
    assert_int_equal(hwloc_cpuset_to_glibc_sched_affinity(machine_now, b, &s, sizeof s), 0);
    hwloc_bitmap_free(b);
    return s;
}

/* CPUs near a GPU, as a test calls them. */
static struct {
    const char *id;
    cpu_set_t near;
} gpus[16];

static void gpu(const char *id, const char *list)
{
    for (int i = 0; i < 16; i++)
        if (!gpus[i].id || strcmp(gpus[i].id, id) == 0) {
            gpus[i].id = id;
            gpus[i].near = set(list);
            return;
        }
    fail();
}

static cpu_set_t near_gpu(const char *id)
{
    for (int i = 0; i < 16 && gpus[i].id; i++)
        if (strcmp(gpus[i].id, id) == 0) return gpus[i].near;
    return set("");
}

static const char *text(const cpu_set_t *s, char *buf, size_t size)
{
    size_t n = 0;
    buf[0] = 0;
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, s)) n += (size_t)snprintf(buf + n, size - n, n ? " %zu" : "%zu", i);
    return buf;
}

static void same(const cpu_set_t *got, const char *want)
{
    char buf[4000];
    assert_string_equal(text(got, buf, sizeof buf), want);
}

/* The shares of ranks with these masks and GPUs (NULL: none); want NULL: there are none. */
static void shares(int n, const char *const *may, const char *const *near, const char *const *want)
{
    tr_cores ranks[RANKS];
    cpu_set_t pool, share;
    memset(ranks, 0, sizeof ranks);
    for (int i = 0; i < n; i++) {
        ranks[i].may = set(may[i]);
        if (near && near[i]) ranks[i].near = near_gpu(near[i]);
    }
    for (int i = 0; i < n; i++) {
        assert_int_equal(tr_cores_deal(machine_now, ranks, n, i, &pool, &share), want != NULL);
        if (want) same(&share, want[i]);
    }
}

#define LIST(...) ((const char *const[]){__VA_ARGS__})

/* What hwloc says of cores and devices. */
static void test_machine(void **state)
{
    (void)state;
    cpu_set_t s;
    const machine_gpu plugged[] = {{1, "0000:3b:00.0"}, {0, "0001:af:00.0"}};
    tr_cores_near(machine_now, "0000:3B:00.0", &s); /* not asked for devices */
    same(&s, "");
    assert_int_equal(plug("pack:2 core:2 pu:2(indexes=0,4,1,5,2,6,3,7)", 2, plugged), 0);
    tr_cores_near(machine_now, "0000:3B:00.0", &s); /* the driver writes the bus in upper case */
    same(&s, "2 3 6 7");
    tr_cores_near(machine_now, "0001:af:00.0", &s);
    same(&s, "0 1 4 5");
    tr_cores_near(machine_now, "0000:3C:00.0", &s);
    same(&s, "");
    tr_cores_near(machine_now, "no bus", &s);
    same(&s, "");
    tr_cores_near(NULL, "0000:3B:00.0", &s);
    same(&s, "");
    assert_null(tr_cores_machine("<topology", false));

    /* this machine: it has all CPUs that this process may use, and finding that out binds
     * nothing */
    cpu_set_t before, after, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    one = before;
    hwloc_topology_t here = tr_cores_machine(NULL, true);
    assert_non_null(here);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, &one))
            assert_non_null(hwloc_get_pu_obj_by_os_index(here, (unsigned)cpu));
    tr_cores_machine_close(here);
}

static void test_alike(void **state)
{
    (void)state;
    shares(1, LIST("0-7"), NULL, LIST("0 1 2 3 4 5 6 7"));
    shares(2, LIST("0-7", "0-7"), NULL, LIST("0 1 2 3", "4 5 6 7"));
    shares(3, LIST("0-7", "0-7", "0-7"), NULL, LIST("0 1", "2 3 4", "5 6 7"));
    shares(2, LIST("0-1", "0-1"), NULL, LIST("0", "1"));
    shares(3, LIST("0-1", "0-1", "0-1"), NULL, NULL);
    shares(1, LIST(""), NULL, NULL);
    shares(2, LIST("", ""), NULL, NULL);
}

/* What no other rank may use is kept; what some may use together is shared out among them alone. */
static void test_chosen(void **state)
{
    (void)state;
    shares(2, LIST("1", "0"), NULL, LIST("1", "0"));
    shares(3, LIST("6-7", "0,2", "1"), NULL, LIST("6 7", "0 2", "1"));
    shares(4, LIST("0-3", "4-7", "0-3", "4-7"), NULL, LIST("0 1", "4 5", "2 3", "6 7"));
    shares(3, LIST("4-7", "0-3", "4-7"), NULL, LIST("4 5", "0 1 2 3", "6 7"));
    shares(3, LIST("0-1", "1-2", "2-3"), NULL, LIST("0", "1", "2 3")); /* in a chain */
    shares(3, LIST("2-3", "0-1", "1-2"), NULL, LIST("0", "1", "2 3")); /* found in two rounds */
    gpu("a", "4-7");
    shares(2, LIST("0-3", "4-7"), LIST("a", "a"), LIST("0 1 2 3", "4 5 6 7"));
}

static void test_near(void **state)
{
    (void)state;
    gpu("a", "0-3");
    gpu("b", "4-7");
    gpu("all", "0-7");
    gpu("none", "");
    gpu("far", "64-127");
    gpu("one", "7");
    static const char *const all[] = {"0-7", "0-7", "0-7", "0-7"};
    shares(2, all, LIST("b", "a"), LIST("4 5 6 7", "0 1 2 3"));
    shares(3, all, LIST("a", "b", "a"), LIST("0 1", "4 5 6 7", "2 3"));
    shares(4, all, LIST("b", "a", "b", "a"), LIST("4 5", "0 1", "6 7", "2 3"));
    shares(2, all, LIST("b", "b"), LIST("4 5", "6 7"));
    shares(2, LIST("0-5", "0-5"), LIST("b", "a"),
           LIST("4 5", "0 1 2 3")); /* what the job may use */
    /* as without GPUs: not known for one, elsewhere, fewer cores than ranks; lists that overlap */
    shares(2, all, LIST("b", NULL), LIST("0 1 2 3", "4 5 6 7"));
    shares(2, all, LIST("b", "none"), LIST("0 1 2 3", "4 5 6 7"));
    shares(2, all, LIST("b", "missing"), LIST("0 1 2 3", "4 5 6 7"));
    shares(2, all, LIST("b", "far"), LIST("0 1 2 3", "4 5 6 7"));
    shares(2, all, LIST("one", "one"), LIST("0 1 2 3", "4 5 6 7"));
    shares(2, all, LIST("b", "all"), LIST("0 1 2 3", "4 5 6 7"));
    shares(3, LIST("0", "0", "0"), LIST("a", "a", "a"), NULL);
    /* and where one would get less than half of what it gets then */
    gpu("most", "0-6");
    shares(2, all, LIST("most", "one"), LIST("0 1 2 3", "4 5 6 7"));
    /* each pool by itself: one where it is known, one where it is not */
    shares(4, LIST("0-3", "4-7", "0-3", "4-7"), LIST("a", "all", "missing", "one"),
           LIST("0 1", "4 5", "2 3", "6 7"));
    gpu("low", "4");
    shares(4, LIST("0-3", "4-7", "0-3", "4-7"), LIST("a", "one", "missing", "low"),
           LIST("0 1", "7", "2 3", "4"));
}

/* No two ranks on one core's threads while there are cores enough. */
static void test_threads(void **state)
{
    (void)state;
    assert_int_equal(plug("core:4 pu:2(indexes=0,4,1,5,2,6,3,7)", 0, NULL), 0);
    static const char *const all[] = {"0-7", "0-7", "0-7", "0-7", "0-7", "0-7"};
    shares(2, all, NULL, LIST("0 1 4 5", "2 3 6 7"));
    shares(4, all, NULL, LIST("0 4", "1 5", "2 6", "3 7"));
    shares(3, all, NULL, LIST("0 4", "1 5", "2 3 6 7"));
    shares(5, all, NULL, LIST("0", "1 4", "5", "2 6", "3 7")); /* not enough: by threads */
    shares(2, LIST("4-7", "4-7"), NULL, LIST("4 5", "6 7"));
    shares(2, LIST("0,4", "0,4"), NULL, LIST("0", "4"));
    gpu("a", "0-1,4-5");
    gpu("b", "2-3,6-7");
    shares(4, all, LIST("b", "a", "b", "a"), LIST("2 6", "0 4", "3 7", "1 5"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_machine, machine, demolish),
    cmocka_unit_test_setup_teardown(test_alike, machine, demolish),
    cmocka_unit_test_setup_teardown(test_chosen, machine, demolish),
    cmocka_unit_test_setup_teardown(test_near, machine, demolish),
    cmocka_unit_test_setup_teardown(test_threads, machine, demolish),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
