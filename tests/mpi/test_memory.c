/* ranks: 2 3 */
/* Memory that is short: too little for windows, a file system that is full behind a mapping, and an
 * allocation that fails on one rank. */
#include "modes.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "collectives/reducer/reducer.h"

static void count_line(void *lines)
{
    ++*(int *)lines;
}

#define BACKING "OMPI_MCA_osc_sm_backing_directory"

/* From here on we look for what killed jobs left in a folder of our own, in which there is `left`
 * or nothing. Open MPI has read the variable before. */
static void look_for_leftovers_in(char *folder, const char *left)
{
    assert_non_null(mkdtemp(folder));
    setenv(BACKING, folder, 1);
    if (!left) return;
    char *path = tr_sprintf("%s/%s", folder, left);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 8192; i++) fputc(1, f);
    assert_true(fflush(f) == 0 && fsync(fileno(f)) == 0); /* it has blocks now */
    fclose(f);
    tr_free(path);
}

/* Else nobody can know what is left over. */
static int all_processes_are_seen(void)
{
    char name[64] = "";
    return readlink("/proc/self/ns/pid", name, sizeof name - 1) > 0 &&
           strcmp(name, "pid:[4026531836]") == 0;
}

static void look_elsewhere(const char *folder, const char *left)
{
    char *path = tr_sprintf("%s/%s", folder, left ? left : "");
    if (left) assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
    unsetenv(BACKING);
    tr_free(path);
}

/* Too little room: plain MPI, said once, with how much was needed and how much there was; what
 * killed jobs left is said where there is something. */
static void test_short_memory(void **state)
{
    (void)state;
    static const tr_range bucket = {0, 4 << 20};
    const tr_params_options o = {
        .count = bucket.end, .buckets = &bucket, .nbuckets = 1, .nslots = 1};
    const tr_reducer_options ro = {0};
    tr_params *p = NULL;
    int rank, size, lines = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    tr_log_init(rank, size, TR_LOG_WARN);
    tr_log_set_guard(count_line, NULL, &lines);

    char folder[] = "/tmp/memory-XXXXXX", other[] = "/tmp/memory-XXXXXX";
    look_for_leftovers_in(folder, NULL);
    setenv("TRIREME_SHM_AVAILABLE", "1000000", 1); /* not even for the small collectives */
    tr_comm *c = open_mode(&modes[0], 30);
    assert_false(tr_comm_topology(c)->shared);
    assert_non_null(strstr(tr_comm_topology(c)->reason, "shared memory is short"));
    assert_non_null(strstr(tr_comm_topology(c)->reason, "has 1.00 MB free"));
    assert_int_equal(lines, rank == 0 ? 1 : 0);
    look_elsewhere(folder, NULL);
    double one = 1;
    assert_int_equal(tr_comm_all_reduce(c, &one, 1, TR_F64), TR_OK);
    assert_true(one == size);
    tr_comm_close(c);

    tr_comm_options required = {.mpi = true, .shared_required = true, .timeout = 30};
    assert_int_equal(tr_comm_open(&required, &c), TR_MEMORY);

    struct statvfs room;
    if (statvfs("/dev/shm", &room) == 0 && (double)room.f_bavail * (double)room.f_bsize < 64e6) {
        if (rank == 0) print_message("the rest is skipped: /dev/shm has less than 64 MB free\n");
        goto out;
    }
    lines = 0;
    look_for_leftovers_in(other, "osc_sm.test");
    setenv("TRIREME_SHM_AVAILABLE", "30000000", 1); /* for those, but not for the gradients */
    c = open_mode(&modes[0], 30);
    assert_true(tr_comm_topology(c)->shared);
    tr_reducer *r = NULL;
    assert_int_equal(tr_comm_params_open(c, &o, &ro, &p), TR_OK);
    assert_int_equal(tr_reducer_open(c, p, &ro, &r), TR_OK);
    assert_false(tr_comm_topology(c)->shared);
    assert_int_equal(lines, rank == 0 ? 1 + all_processes_are_seen() : 0);
    look_elsewhere(other, "osc_sm.test");
    p->grads[5] = 2;
    tr_reducer_ready(r, 0);
    double squares = 0;
    assert_int_equal(tr_reducer_finish(r, NULL, 0, &squares), TR_OK);
    assert_true(p->grads[5] == 2.0f * (float)size);
    assert_true(squares == 4.0 * size * size);
    tr_reducer_close(r);
    tr_comm_params_close(p);
    tr_comm_close(c);
out:
    unsetenv("TRIREME_SHM_AVAILABLE");
    tr_log_set_guard(NULL, NULL, NULL);
    tr_log_init(rank, size, TR_LOG_ERROR);
}

/* A file without room behind a mapping: an answer, not a SIGBUS. */
static void test_touch_survives(void **state)
{
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int fd = memfd_create("short", 0);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)page), 0);
    char *p = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(p != MAP_FAILED);
    assert_true(tr_window_touch(p, page));
    p[7] = 1;
    assert_true(tr_window_touch(p, page) && p[7] == 0);
    if (madvise(p, page, MADV_POPULATE_WRITE) == 0) assert_false(tr_window_touch(p, 2 * page));
    munmap(p, 2 * page);
    close(fd);
}

/* Whichever allocation fails on one rank: every rank is told, nobody waits, and nothing is left. */
static void test_allocations(void **state)
{
    (void)state;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    for (size_t m = 0; m < 2; m++) {
        bool opened = false;
        uint64_t n = 0;
        while (!opened) {
            tr_comm *c = NULL;
            if (rank == size - 1) tr_mem_fail_at(n + 1);
            opened = try_mode(&modes[m], 30, &c) == TR_OK;
            tr_mem_fail_at(0);
            int all[2] = {opened, -opened}; /* alike on all ranks: min is max */
            MPI_Allreduce(MPI_IN_PLACE, all, 2, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
            assert_int_equal(all[0], -all[1]);
            if (!opened) assert_int_equal(tr_last_status(), TR_MEMORY);
            tr_comm_close(c);
            assert_int_equal(tr_mem_held(TR_MEM_OTHER), held);
            n += !opened;
        }
        assert_true(n >= (size > 1 ? 6 : 2));
    }
}

/* What MPI says of a window, to be made another than it is. */
static enum { AS_IT_IS, NOTHING, READ_ONLY, ANOTHER } window_is;
static void *another;

int MPI_Win_shared_query(MPI_Win win, int rank, MPI_Aint *size, int *unit, void *base)
{
    const int rc = PMPI_Win_shared_query(win, rank, size, unit, base);
    int local;
    if (rc != MPI_SUCCESS || window_is == AS_IT_IS) return rc;
    if (window_is == NOTHING) return MPI_ERR_OTHER;
    MPI_Comm_rank(MPI_COMM_WORLD, &local);
    if (window_is == ANOTHER && local == 0) return rc;
    const int how = window_is == READ_ONLY ? PROT_READ : PROT_READ | PROT_WRITE;
    another = mmap(NULL, (size_t)*size + TR_PAGE, how, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *(void **)base = another;
    return another == MAP_FAILED ? MPI_ERR_OTHER : rc;
}

/* A window that is not had: the reason is what was met. */
static void test_reasons(void **state)
{
    (void)state;
    static const char *const why[] = {[NOTHING] = "MPI_Win_allocate_shared failed",
                                      [READ_ONLY] = "shared memory ran out on some node",
                                      [ANOTHER] = "gave ranks of some node different memory"};
    for (int i = NOTHING; i <= ANOTHER; i++) {
        window_is = i;
        tr_comm *c = open_mode(&modes[0], 30);
        window_is = AS_IT_IS;
        assert_false(tr_comm_topology(c)->shared);
        if (!strstr(tr_comm_topology(c)->reason, why[i]))
            fail_msg("%s: expected %s", tr_comm_topology(c)->reason, why[i]);
        tr_comm_close(c);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_reasons),
    cmocka_unit_test(test_touch_survives),
    cmocka_unit_test(test_short_memory),
    cmocka_unit_test(test_allocations),
};

RUN_MPI_TESTS(tests)
