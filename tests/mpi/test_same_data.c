/* ranks: 1 2 3 4 */
/* Data that all ranks read: the first rank of each node looks at an HDF5 file, in a process of its
 * own, and the others there go by what it saw; what it fails at is the failure of its node. */
#include "modes.h"

#include "optimize/evaluation/evaluation.h"
#include "trainer/models/train_model.h"

#include <fcntl.h>
#include <hdf5.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char common[64], counted[64]; /* the file; what each process that looks adds a byte to */

/* In the process that looks, which is this program: a byte for each, and what the test wants of it.
 * Runs before the look. */
__attribute__((constructor(104))) static void count_look(int argc, char **argv)
{
    const char *to = getenv("TEST_LOOKS_TO"), *late = getenv("TEST_LOOK_LATE");
    if (argc < 2 || strcmp(argv[1], "--look-at-hdf5") != 0 || !to) return;
    const int fd = open(to, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd < 0 || write(fd, "x", 1) != 1) _exit(1);
    close(fd);
    if (late) usleep((useconds_t)atoi(late));
    if (getenv("TEST_LOOK_BREAKS")) abort();
}

static void write_set(hid_t f, const char *name, hid_t type, int ndim, const hsize_t *dims,
                      const void *v)
{
    const hid_t space = H5Screate_simple(ndim, dims, NULL);
    const hid_t d = H5Dcreate2(f, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Dwrite(d, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, v) >= 0);
    H5Dclose(d);
    H5Sclose(space);
}

static void write_file(const char *path)
{
    float x[8][3];
    int y[8];
    for (int i = 0; i < 8; i++) {
        y[i] = i % 2;
        for (int k = 0; k < 3; k++) x[i][k] = (float)(3 * i + k);
    }
    unlink(path);
    const hid_t f = H5Fcreate(path, H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(f >= 0);
    write_set(f, "x", H5T_NATIVE_FLOAT, 2, (const hsize_t[]){8, 3}, x);
    write_set(f, "y", H5T_NATIVE_INT, 1, (const hsize_t[]){8}, y);
    assert_true(H5Fclose(f) >= 0);
}

/* The file is new for each test, and lies still for long enough to be remembered. Forgets how many
 * looks there were. */
static void renew(tr_comm *c)
{
    const tr_topology *t = tr_comm_topology(c);
    snprintf(common, sizeof common, "same-data-%d.h5", t->size);
    snprintf(counted, sizeof counted, "same-data-%d-looks", t->size);
    setenv("TEST_LOOKS_TO", counted, 1);
    tr_comm_busy(c, TR_BUSY_WRITES); /* a test's timeout is short */
    if (t->rank == 0) write_file(common);
    if (t->rank == 0) unlink(counted);
    tr_comm_busy(c, TR_BUSY_NOT);
    assert_int_equal(tr_comm_barrier(c), TR_OK);
    usleep(50000);
    assert_int_equal(tr_comm_barrier(c), TR_OK);
}

/* By all ranks so far. */
static int looks(tr_comm *c)
{
    struct stat s = {.st_size = 0};
    assert_int_equal(tr_comm_barrier(c), TR_OK);
    if (stat(counted, &s) != 0) s.st_size = 0;
    assert_int_equal(tr_comm_barrier(c), TR_OK);
    return (int)s.st_size;
}

static tr_status open_data(tr_comm *c, const char *path, const char *inputs)
{
    tr_config *config = NULL;
    tr_model *m = NULL;
    tr_dataset *d = NULL;
    char *text =
        tr_sprintf("name: same\noutput: out\nseed: 1\n"
                   "data: {train: {path: %s, inputs: %s, labels: y}}\n"
                   "model: {input: [3], layers: [{linear: {out: 2}}], loss: cross_entropy}\n"
                   "train: {steps: 1, batch: 4, optimizer: {sgd: {lr: 0.1}}}\n",
                   path, inputs);
    assert_non_null(text);
    tr_status st = tr_config_open("same.yaml", text, strlen(text), NULL, 0, NULL, &config);
    if (st != TR_OK) fail_msg("%s", tr_last_error()->text);
    assert_int_equal(tr_train_model(config, &m), TR_OK);
    st = tr_same_data_open(c, config, TR_OVER_TRAIN, m, &d);
    if (st == TR_OK) {
        assert_int_equal(tr_dataset_samples(d), 8);
        tr_dataset_close(d);
    }
    tr_model_close(m);
    tr_config_close(config);
    tr_free(text);
    return st;
}

static const test_mode *const kinds[] = {&modes[0], &modes[1], &modes[2],
                                         &modes[3], &modes[5], &modes[6]},
                              *const few[] = {&modes[0], &modes[3]};

/* A look for each node; none where the file was opened before. */
static void test_looks(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(kinds); k++) {
        tr_comm *c = open_mode(kinds[k], 30);
        const tr_topology *t = tr_comm_topology(c);
        renew(c);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(open_data(c, common, "x"), TR_OK);
            assert_int_equal(looks(c), t->nodes);
        }
        tr_comm_close(c);
    }
}

/* Who sees another file looks by itself. */
static void test_own_file(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], 30);
    const tr_topology *t = tr_comm_topology(c);
    char path[64];
    snprintf(path, sizeof path, "same-data-%d-of-%d.h5", t->rank, t->size);
    write_file(path);
    renew(c);
    assert_int_equal(open_data(c, path, "x"), TR_OK);
    assert_int_equal(looks(c), t->size);
    unlink(path);
    tr_comm_close(c);
}

/* The others of a node hear of what its first rank failed at, and do not try. */
static void fails(tr_comm *c, const char *inputs, tr_status first, tr_status others,
                  const char *why)
{
    const tr_topology *t = tr_comm_topology(c);
    const bool own = t->local_rank == 0 || t->nodes == t->size;
    renew(c);
    assert_int_equal(open_data(c, common, inputs), own ? first : others);
    const tr_error *e = tr_last_error();
    if (!strstr(e->text, why)) fail_msg("%s", e->text);
    assert_int_equal(e->hearsay, !own);
    if (!own) assert_non_null(strstr(e->text, "a peer failed: rank 0 ("));
    assert_int_equal(looks(c), t->nodes);
    assert_false(tr_comm_broken(c));
}

static void test_failures(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(few); k++) {
        tr_comm *c = open_mode(few[k], 30);
        fails(c, "absent", TR_DATA, TR_PEER, "has no dataset \"absent\"");
        setenv("TEST_LOOK_BREAKS", "1", 1);
        fails(c, "x", TR_DATA, TR_PEER, "HDF5 breaks down on it (Aborted)");
        unsetenv("TEST_LOOK_BREAKS");
        assert_int_equal(open_data(c, common, "x"), TR_OK); /* it was not the file */
        tr_comm_close(c);
    }
}

/* A look that takes longer than ranks wait for each other. */
static void test_slow(void **state)
{
    (void)state;
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (size_t k = 0; k < TR_COUNT(few) && size > 1; k++) {
        tr_comm *c = open_mode(few[k], 1);
        const tr_topology *t = tr_comm_topology(c);
        renew(c);
        setenv("TEST_LOOK_LATE", "2500000", 1);
        assert_int_equal(open_data(c, common, "x"), TR_OK);
        unsetenv("TEST_LOOK_LATE");
        assert_int_equal(looks(c), t->nodes);
        tr_comm_close(c);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_looks),
    cmocka_unit_test(test_own_file),
    cmocka_unit_test(test_failures),
    cmocka_unit_test(test_slow),
};

RUN_MPI_TESTS(tests)
