/* Shares of cores on pretended machines: two sockets, second hardware threads, GPUs near some
 * cores, masks that somebody chose; and the lists of the kernel, right and wrong. */
#include "trainer/cores.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
/* after those it needs */
#include <cmocka.h>

enum { RANKS = 8 };

static char sysfs[] = "/tmp/trireme-cores-XXXXXX";

static void write_file(const char *text, const char *format, ...)
{
    char path[512];
    va_list args;
    va_start(args, format);
    size_t n = (size_t)snprintf(path, sizeof path, "%s/", sysfs);
    vsnprintf(path + n, sizeof path - n, format, args);
    va_end(args);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void gpu(const char *id, const char *list)
{
    write_file(list, "bus/pci/devices/%s/local_cpulist", id);
}

/* Of `cores` cores, whose second threads are numbered behind all first ones. */
static void threads(int cores)
{
    char list[32];
    for (int cpu = 0; cpu < 2 * cores; cpu++) {
        snprintf(list, sizeof list, "%d,%d\n", cpu % cores, cpu % cores + cores);
        write_file(list, "devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    }
}

static int machine(void **state)
{
    (void)state;
    strcpy(sysfs, "/tmp/trireme-cores-XXXXXX");
    return mkdtemp(sysfs) == NULL;
}

static int demolish(void **state)
{
    (void)state;
    char command[80];
    snprintf(command, sizeof command, "rm -r %s", sysfs);
    return system(command);
}

static cpu_set_t set(const char *list)
{
    cpu_set_t s;
    gpu("set", list);
    tr_cores_near(sysfs, "set", &s);
    return s;
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
static void shares(int n, const char *const *may, const char *const *gpus, const char *const *want)
{
    tr_cores ranks[RANKS];
    cpu_set_t pool, share;
    memset(ranks, 0, sizeof ranks);
    for (int i = 0; i < n; i++) {
        ranks[i].may = set(may[i]);
        if (gpus && gpus[i]) tr_cores_near(sysfs, gpus[i], &ranks[i].near);
    }
    for (int i = 0; i < n; i++) {
        assert_int_equal(tr_cores_deal(sysfs, ranks, n, i, &pool, &share), want != NULL);
        if (want) same(&share, want[i]);
    }
}

#define LIST(...) ((const char *const[]){__VA_ARGS__})

static void test_list(void **state)
{
    (void)state;
    static const struct {
        const char *list, *want;
    } cases[] = {{"0-3,8,10-11\n", "0 1 2 3 8 10 11"},
                 {"5", "5"},
                 {"1022-2000\n", "1022 1023"},
                 {"4000\n", ""},
                 {"\n", ""},
                 {"", ""},
                 {"0-3,x\n", ""},
                 {"3-1\n", ""},
                 {"-1\n", ""},
                 {"0-\n", ""},
                 {"0;1\n", ""},
                 {"99999999999999999999\n", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cpu_set_t s = set(cases[i].list);
        same(&s, cases[i].want);
    }
    cpu_set_t s;
    gpu("0000:3b:00.0", "4-5\n"); /* the driver writes the bus in upper case */
    tr_cores_near(sysfs, "0000:3B:00.0", &s);
    same(&s, "4 5");
    tr_cores_near(sysfs, "0000:3C:00.0", &s);
    same(&s, "");
}

static void test_alike(void **state)
{
    (void)state;
    shares(1, LIST("0-7"), NULL, LIST("0 1 2 3 4 5 6 7"));
    shares(2, LIST("0-7", "0-7"), NULL, LIST("0 1 2 3", "4 5 6 7"));
    shares(3, LIST("0-7", "0-7", "0-7"), NULL, LIST("0 1", "2 3 4", "5 6 7"));
    shares(2, LIST("0-1", "0-1"), NULL, LIST("0", "1"));
    shares(3, LIST("0-1", "0-1", "0-1"), NULL, NULL);
    shares(1, LIST("\n"), NULL, NULL);
    shares(2, LIST("\n", "\n"), NULL, NULL);
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
    gpu("a", "4-7\n");
    shares(2, LIST("0-3", "4-7"), LIST("a", "a"), LIST("0 1 2 3", "4 5 6 7"));
}

static void test_near(void **state)
{
    (void)state;
    gpu("a", "0-3\n");
    gpu("b", "4-7\n");
    gpu("all", "0-7\n");
    gpu("none", "\n");
    gpu("far", "64-127\n");
    gpu("one", "7\n");
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
    gpu("most", "0-6\n");
    shares(2, all, LIST("most", "one"), LIST("0 1 2 3", "4 5 6 7"));
    /* each pool by itself: one where it is known, one where it is not */
    shares(4, LIST("0-3", "4-7", "0-3", "4-7"), LIST("a", "all", "missing", "one"),
           LIST("0 1", "4 5", "2 3", "6 7"));
    gpu("low", "4\n");
    shares(4, LIST("0-3", "4-7", "0-3", "4-7"), LIST("a", "one", "missing", "low"),
           LIST("0 1", "7", "2 3", "4"));
}

/* No two ranks on one core's threads while there are cores enough. */
static void test_threads(void **state)
{
    (void)state;
    threads(4);
    static const char *const all[] = {"0-7", "0-7", "0-7", "0-7", "0-7", "0-7"};
    shares(2, all, NULL, LIST("0 1 4 5", "2 3 6 7"));
    shares(4, all, NULL, LIST("0 4", "1 5", "2 6", "3 7"));
    shares(3, all, NULL, LIST("0 4", "1 5", "2 3 6 7"));
    shares(5, all, NULL, LIST("0", "1 4", "5", "2 6", "3 7")); /* not enough: by threads */
    shares(2, LIST("4-7", "4-7"), NULL, LIST("4 5", "6 7"));
    shares(2, LIST("0,4", "0,4"), NULL, LIST("0", "4"));
    gpu("a", "0-1,4-5\n");
    gpu("b", "2-3,6-7\n");
    shares(4, all, LIST("b", "a", "b", "a"), LIST("2 6", "0 4", "3 7", "1 5"));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_list, machine, demolish),
    cmocka_unit_test_setup_teardown(test_alike, machine, demolish),
    cmocka_unit_test_setup_teardown(test_chosen, machine, demolish),
    cmocka_unit_test_setup_teardown(test_near, machine, demolish),
    cmocka_unit_test_setup_teardown(test_threads, machine, demolish),
};

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, NULL);
}
