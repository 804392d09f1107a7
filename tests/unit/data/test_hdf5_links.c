/* How HDF5 files are met: links and what lies in other files, and the process that looks at a file
 * first. */
#include "hdf5_files.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* What a link leads to in the same file is read, hard or soft; in another file it is refused, also
 * on the way through groups and soft links, and whether that file is there or not. */
static void hdf5_links(void **state)
{
    (void)state;
    world w;
    float x[60];
    int32_t y[10], other[10];
    fill(x, y);
    for (int i = 0; i < 10; i++) other[i] = 2 - y[i];
    world_open(&w, 2, (int64_t[]){2, 3}, 3);
    write_h5(&w, "a.h5", "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, x);
    write_h5(&w, "a.h5", "y", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, y_dims, 0, 0, y);
    write_h5(&w, "b.h5", "y", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, y_dims, 0, 0, other);
    write_h5(&w, "b.h5", "packed", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, y_dims, 4, 1, other);
    hid_t f = H5Fopen(in_folder(&w, "a.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(H5Lcreate_soft("/y", f, "soft", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lcreate_hard(f, "y", f, "hard", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lcreate_external("b.h5", "/y", f, "outside", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lcreate_external("b.h5", "/packed", f, "packed", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lcreate_external("c.h5", "/y", f, "absent", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lcreate_external("b.h5", "/", f, "group", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lcreate_soft("/group/y", f, "around", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    H5Fclose(f);
    static const char *const within[] = {"soft", "hard"};
    static const char *const outside[] = {"outside", "packed", "absent", "group/y", "around"};
    for (size_t k = 0; k < TR_COUNT(within); k++) {
        use(&w, "a.h5", "x", within[k]);
        tr_dataset *d = opens(&w);
        for (uint64_t i = 0; i < 10; i++) assert_true(target_at(d, i, 0) == (double)y[i]);
        tr_dataset_close(d);
    }
    for (size_t k = 0; k < TR_COUNT(outside); k++) {
        use(&w, "a.h5", "x", outside[k]);
        fails(&w, TR_DATA, outside[k], "is an external link, which is not followed",
              k == 2 ? "/y in c.h5" : "in b.h5", NULL);
    }
    /* the path leads to another file than the one that is open */
    tr_data_file file;
    tr_hdf5_sight sight;
    assert_int_equal(tr_data_file_open(in_folder(&w, "a.h5"), &file), TR_OK);
    char moved[128];
    snprintf(moved, sizeof moved, "%s", in_folder(&w, "b.h5"));
    assert_int_equal(rename(moved, in_folder(&w, "a.h5")), 0);
    assert_int_equal(tr_hdf5_look(&file, (const char *[]){"y"}, 1, 60, &sight, NULL), TR_DATA);
    assert_non_null(strstr(tr_last_error()->text, "was replaced by another file"));
    tr_data_file_close(&file);
    world_close(&w);
}

/* Raw bytes in another file, and virtual datasets: HDF5 would fill in what is missing there. */
static void hdf5_elsewhere(void **state)
{
    (void)state;
    world w;
    int32_t y[10] = {0};
    world_open(&w, 2, (int64_t[]){2, 3}, 3);
    write_h5(&w, "a.h5", "y", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, y_dims, 0, 0, y);
    hid_t f = H5Fopen(in_folder(&w, "a.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t space = H5Screate_simple(3, x_dims, NULL), p = H5Pcreate(H5P_DATASET_CREATE);
    assert_true(H5Pset_external(p, "absent.raw", 0, 240) >= 0);
    H5Dclose(H5Dcreate2(f, "outside", H5T_IEEE_F32LE, space, H5P_DEFAULT, p, H5P_DEFAULT));
    H5Pclose(p);
    p = H5Pcreate(H5P_DATASET_CREATE);
    assert_true(H5Pset_virtual(p, space, "absent.h5", "x", space) >= 0);
    H5Dclose(H5Dcreate2(f, "virtual", H5T_IEEE_F32LE, space, H5P_DEFAULT, p, H5P_DEFAULT));
    H5Pclose(p);
    H5Sclose(space);
    H5Fclose(f);
    use(&w, "a.h5", "outside", "y");
    fails(&w, TR_DATA, "dataset outside", "other files", NULL);
    use(&w, "a.h5", "virtual", "y");
    fails(&w, TR_DATA, "dataset virtual", "other files", NULL);
    world_close(&w);
}

/* Values in a dataset's own header, which says how many bytes they are: HDF5 1.10 believes it, and
 * copies what lies behind a buffer of fewer than the shape has. */
static void hdf5_compact(void **state)
{
    (void)state;
    static const uint8_t layout[] = {3, 0, 240, 0}; /* version, class, bytes */
    world w;
    float x[60];
    int32_t y[10];
    uint8_t bytes[16384];
    fill(x, y);
    world_open(&w, 2, (int64_t[]){2, 3}, 3);
    write_h5(&w, "a.h5", "y", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, y_dims, 0, 0, y);
    hid_t f = H5Fopen(in_folder(&w, "a.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t space = H5Screate_simple(3, x_dims, NULL), p = H5Pcreate(H5P_DATASET_CREATE);
    assert_true(H5Pset_layout(p, H5D_COMPACT) >= 0);
    hid_t d = H5Dcreate2(f, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, p, H5P_DEFAULT);
    assert_true(H5Dwrite(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x) >= 0);
    H5Dclose(d);
    H5Pclose(p);
    H5Sclose(space);
    H5Fclose(f);
    use(&w, "a.h5", "x", "y");
    tr_dataset *data = opens(&w);
    for (size_t e = 0; e < 60; e++) assert_true(input_at(data, 0, e / 6, e % 6) == (double)e);
    tr_dataset_close(data);
    FILE *file = fopen(in_folder(&w, "a.h5"), "rb");
    const size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    uint8_t *at = memmem(bytes, n, layout, sizeof layout);
    assert_non_null(at);
    for (int held = 0; held <= 239; held += 239) {
        at[2] = (uint8_t)held;
        write_bytes(&w, "b.h5", bytes, n);
        use(&w, "b.h5", "x", "y");
        fails(&w, TR_DATA, "b.h5: dataset x", NULL);
    }
    world_close(&w);
}

/* A look that blocks is given up: a FIFO that nobody writes stands for a dead file system. */
static void hdf5_blocked(void **state)
{
    (void)state;
    world w;
    tr_hdf5_sight sight;
    world_open(&w, 1, (int64_t[]){1}, 3);
    assert_int_equal(mkfifo(in_folder(&w, "a.h5"), 0600), 0);
    const tr_data_file file = {.path = (char *)in_folder(&w, "a.h5"), .fd = -1};
    assert_int_equal(tr_hdf5_look(&file, (const char *[]){"x"}, 1, 0.25, &sight, NULL), TR_IO);
    assert_non_null(strstr(tr_last_error()->text, "a.h5: dataset x"));
    assert_non_null(strstr(tr_last_error()->text, "within 0.25 seconds"));
    assert_true(waitpid(-1, NULL, WNOHANG) < 0); /* no child is left */
    world_close(&w);
}

/* The process that looks holds none of our files; where none can be started that is an error. */
static void hdf5_apart(void **state)
{
    (void)state;
    world w;
    float x[60];
    int32_t y[10];
    char held[64];
    tr_hdf5_sight sight;
    fill(x, y);
    world_open(&w, 2, (int64_t[]){2, 3}, 3);
    write_h5(&w, "a.h5", "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, x);
    const int fd = open(in_folder(&w, "a.h5"), O_RDONLY); /* no O_CLOEXEC */
    assert_true(fd > 2);
    snprintf(held, sizeof held, "/proc/self/fd/%d", fd);
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    tr_data_file file = {
        .path = held, .fd = -1, .device = info.st_dev, .inode = info.st_ino, .size = 1 << 20};
    assert_int_equal(tr_hdf5_look(&file, (const char *[]){"x"}, 1, 60, &sight, NULL), TR_DATA);
    assert_non_null(strstr(tr_last_error()->text, "cannot be opened: No such file"));
    file.path = (char *)in_folder(&w, "a.h5");
    assert_int_equal(tr_hdf5_look(&file, (const char *[]){"x"}, 1, 60, &sight, NULL), TR_OK);
    assert_true(sight.flat && sight.ndim == 3 && sight.dims[0] == 10 && sight.dims[2] == 3);
    close(fd);
    /* no process: an error, not a look in this one */
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){0, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(tr_hdf5_look(&file, (const char *[]){"x"}, 1, 60, &sight, NULL), TR_IO);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    world_close(&w);
}

/* Several datasets by one process: each as if it were alone, up to the first that fails. */
static void hdf5_several(void **state)
{
    (void)state;
    static const char *const names[] = {"y", "x", "absent", "x"};
    world w;
    float x[60];
    int32_t y[10];
    tr_hdf5_sight sights[TR_COUNT(names)];
    tr_array *arrays[TR_COUNT(names)] = {NULL};
    tr_data_file file;
    tr_failed_set failed = {.at = 9};
    fill(x, y);
    world_open(&w, 2, (int64_t[]){2, 3}, 3);
    write_h5(&w, "a.h5", "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, x);
    write_h5(&w, "a.h5", "y", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, x_dims, 0, 0, y);
    const char *path = in_folder(&w, "a.h5");
    assert_int_equal(tr_data_file_open(path, &file), TR_OK);
    assert_int_equal(tr_hdf5_look(&file, names, 2, 60, sights, NULL), TR_OK);
    assert_true(sights[0].elem == TR_ELEM_I32 && sights[0].ndim == 1 && sights[0].offset > 0);
    assert_true(sights[1].elem == TR_ELEM_F32 && sights[1].ndim == 3 && sights[1].dims[1] == 2);
    assert_int_equal(tr_hdf5_look(&file, names, 4, 60, sights, &failed), TR_DATA);
    assert_int_equal(failed.at, 2);
    assert_non_null(strstr(tr_last_error()->text, "a.h5: has no dataset \"absent\""));
    failed = (tr_failed_set){.at = 9};
    assert_int_equal(tr_hdf5_arrays_open(path, names, 4, arrays, &failed), TR_DATA);
    assert_int_equal(failed.at, 2);
    assert_true(failed.missing);
    assert_null(arrays[0]);
    assert_int_equal(tr_hdf5_arrays_open(path, names, 2, arrays, NULL), TR_OK);
    assert_true(arrays[0]->elem == TR_ELEM_I32 && arrays[1]->elem == TR_ELEM_F32);
    for (size_t i = 0; i < 2; i++) tr_array_close(arrays[i]);
    write_bytes(&w, "b.h5", "none", 4);
    assert_int_equal(tr_hdf5_arrays_open(in_folder(&w, "b.h5"), names, 2, arrays, &failed),
                     TR_DATA);
    assert_true(failed.at == 2 && !failed.missing); /* none of the two */
    tr_data_file_close(&file);
    world_close(&w);
}

/* Too few files that may be open: said to be so, and not that the file is none of HDF5's. */
static void few_files(void **state)
{
    (void)state;
    world w;
    float x[60];
    int32_t y[10];
    tr_hdf5_handles h = tr_hdf5_none;
    tr_hdf5_sight sight;
    tr_data_file file;
    struct rlimit before, few;
    fill(x, y);
    world_open(&w, 2, (int64_t[]){2, 3}, 3);
    write_h5(&w, "a.h5", "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, x);
    assert_int_equal(tr_data_file_open(in_folder(&w, "a.h5"), &file), TR_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const int next = dup(file.fd);
    close(next);
    few = (struct rlimit){(rlim_t)next, before.rlim_max};
    for (int looks = 0; looks < 2; looks++) {
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        const tr_status st = looks ? tr_hdf5_look(&file, (const char *[]){"x"}, 1, 60, &sight, NULL)
                                   : tr_hdf5_open(&file, "x", &h);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_int_equal(st, looks ? TR_IO : TR_DATA);
        assert_non_null(strstr(tr_last_error()->text, "a.h5: cannot be opened: this process has"));
        assert_non_null(strstr(tr_last_error()->text, "(ulimit -n)"));
    }
    tr_hdf5_close(&h);
    tr_data_file_close(&file);
    world_close(&w);
}

/* In the process that looks: ended as the test wants it. */
__attribute__((constructor(102))) static void end_early(int argc, char **argv)
{
    const char *by = getenv("TEST_END_BY");
    if (argc < 2 || strcmp(argv[1], "--look-at-hdf5") != 0 || !by) return;
    raise(atoi(by));
}

/* Who kills the process says nothing of the file. */
static void hdf5_look_killed(void **state)
{
    (void)state;
    static const struct {
        int signal;
        tr_status st;
        const char *text;
    } cases[] = {{SIGKILL, TR_IO, "was ended from outside"},
                 {SIGSEGV, TR_DATA, "the file is damaged"}};
    world w;
    float x[60];
    int32_t y[10];
    char by[16];
    tr_hdf5_sight sight;
    tr_data_file file;
    fill(x, y);
    world_open(&w, 2, (int64_t[]){2, 3}, 3);
    write_h5(&w, "a.h5", "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, x);
    assert_int_equal(tr_data_file_open(in_folder(&w, "a.h5"), &file), TR_OK);
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        snprintf(by, sizeof by, "%d", cases[i].signal);
        setenv("TEST_END_BY", by, 1);
        assert_int_equal(tr_hdf5_look(&file, (const char *[]){"x"}, 1, 60, &sight, NULL),
                         cases[i].st);
        assert_non_null(strstr(tr_last_error()->text, cases[i].text));
    }
    /* who ignores SIGCHLD is not told how it ended */
    signal(SIGCHLD, SIG_IGN);
    assert_int_equal(tr_hdf5_look(&file, (const char *[]){"x"}, 1, 60, &sight, NULL), TR_DATA);
    assert_non_null(strstr(tr_last_error()->text, "HDF5 breaks down on it (no answer)"));
    unsetenv("TEST_END_BY");
    assert_int_equal(tr_hdf5_look(&file, (const char *[]){"x"}, 1, 60, &sight, NULL), TR_OK);
    signal(SIGCHLD, SIG_DFL);
    tr_data_file_close(&file);
    world_close(&w);
}

/* In the process that looks, which is this program: what its environment is, into a file. Runs
 * before the look. */
__attribute__((constructor(101))) static void tell_environment(int argc, char **argv)
{
    const char *to = getenv("TEST_ENVIRONMENT_TO");
    if (argc < 2 || strcmp(argv[1], "--look-at-hdf5") != 0 || !to) return;
    FILE *file = fopen(to, "w");
    for (char **e = environ; file && *e; e++) fprintf(file, "%s\n", *e);
    if (file) fclose(file);
}

/* A process that a launcher's variables made a rank could wait for that launcher, or end the
 * job. */
static void hdf5_is_no_rank(void **state)
{
    (void)state;
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "PRTE_LAUNCHED", "MPI_LOCALRANKID"};
    world w;
    float x[60];
    int32_t y[10];
    char text[1 << 16];
    tr_hdf5_sight sight;
    fill(x, y);
    world_open(&w, 2, (int64_t[]){2, 3}, 3);
    write_h5(&w, "a.h5", "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, x);
    for (size_t i = 0; i < TR_COUNT(names); i++) setenv(names[i], "3", 1);
    setenv("PMIXED", "stays", 1);
    setenv("TEST_ENVIRONMENT_TO", in_folder(&w, "environment"), 1);
    tr_data_file file;
    assert_int_equal(tr_data_file_open(in_folder(&w, "a.h5"), &file), TR_OK);
    assert_int_equal(tr_hdf5_look(&file, (const char *[]){"x"}, 1, 60, &sight, NULL), TR_OK);
    tr_data_file_close(&file);
    FILE *told = fopen(in_folder(&w, "environment"), "r");
    assert_non_null(told);
    text[fread(text, 1, sizeof text - 1, told)] = 0;
    fclose(told);
    assert_non_null(strstr(text, "PMIXED=stays"));
    for (size_t i = 0; i < TR_COUNT(names); i++) {
        assert_null(strstr(text, names[i]));
        assert_string_equal(getenv(names[i]), "3"); /* here they stay */
        unsetenv(names[i]);
    }
    unsetenv("PMIXED");
    unsetenv("TEST_ENVIRONMENT_TO");
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hdf5_links),       cmocka_unit_test(hdf5_elsewhere),
        cmocka_unit_test(hdf5_compact),     cmocka_unit_test(hdf5_blocked),
        cmocka_unit_test(hdf5_apart),       cmocka_unit_test(hdf5_several),
        cmocka_unit_test(few_files),        cmocka_unit_test(hdf5_is_no_rank),
        cmocka_unit_test(hdf5_look_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
