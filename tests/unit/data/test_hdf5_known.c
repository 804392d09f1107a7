/* What a look at a dataset found is known from then on, until the file changes: no process is
 * started for it. */
#include "hdf5_files.h"

#include <dlfcn.h>

/* HDF5's, but that it never ends for what TEST_HANGS_AT names, as on a file system that does not
 * answer. */
hid_t H5Dopen2(hid_t at, const char *name, hid_t access)
{
    const char *hangs = getenv("TEST_HANGS_AT");
    hid_t (*theirs)(hid_t, const char *, hid_t);
    *(void **)&theirs = dlsym(RTLD_NEXT, "H5Dopen2");
    while (hangs && strcmp(hangs, name) == 0) pause();
    return theirs(at, name, access);
}

/* In the process that looks, which is this program: what it is asked for, into a file. Runs before
 * the look. */
__attribute__((constructor(103))) static void tell_names(int argc, char **argv)
{
    const char *to = getenv("TEST_NAMES_TO");
    if (argc < 2 || strcmp(argv[1], "--look-at-hdf5") != 0 || !to) return;
    FILE *file = fopen(to, "a");
    for (int i = 4; file && i < argc; i++) fprintf(file, "%s ", argv[i]);
    if (file) fclose(file);
}

/* All that processes were asked for since the last call. */
static void asked(const world *w, const char *expected)
{
    char text[256] = "";
    FILE *file = fopen(in_folder(w, "names"), "r");
    if (file) {
        text[fread(text, 1, sizeof text - 1, file)] = 0;
        fclose(file);
        assert_int_equal(unlink(in_folder(w, "names")), 0);
    }
    assert_string_equal(text, expected);
}

/* a.h5 with x and y, which lie still for long enough to be remembered. */
static void known_open(world *w)
{
    float x[60];
    int32_t y[10];
    fill(x, y);
    world_open(w, 2, (int64_t[]){2, 3}, 3);
    setenv("TEST_NAMES_TO", in_folder(w, "names"), 1);
    write_h5(w, "a.h5", "x", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, x);
    write_h5(w, "a.h5", "y", H5T_STD_I32LE, H5T_NATIVE_INT32, 1, y_dims, 0, 0, y);
    usleep(50000);
}

static void known_close(world *w)
{
    unsetenv("TEST_NAMES_TO");
    world_close(w);
}

/* Of a.h5, opened anew. */
static tr_status look(const world *w, const char *const *names, size_t count, tr_hdf5_sight *sights,
                      tr_failed_set *failed)
{
    tr_data_file file;
    assert_int_equal(tr_data_file_open(in_folder(w, "a.h5"), &file), TR_OK);
    const tr_status st = tr_hdf5_look(&file, names, count, 60, sights, failed);
    tr_data_file_close(&file);
    return st;
}

static void expect_x(const world *w, const char *process)
{
    tr_hdf5_sight s;
    assert_int_equal(look(w, (const char *[]){"x"}, 1, &s, NULL), TR_OK);
    assert_true(s.elem == TR_ELEM_F32 && s.flat && s.ndim == 3 && s.dims[0] == 10 &&
                s.dims[2] == 3);
    asked(w, process);
}

/* Only what is not known is asked for; failures are not kept, and are told of the place among all
 * names. */
static void hdf5_known(void **state)
{
    (void)state;
    static const char *const names[] = {"x", "absent", "y"}, *const both[] = {"y", "x"};
    world w;
    tr_hdf5_sight sights[3];
    tr_failed_set failed = {.at = 9};
    known_open(&w);
    expect_x(&w, "x ");
    expect_x(&w, "");
    for (int again = 0; again < 2; again++) {
        assert_int_equal(look(&w, names, 3, sights, &failed), TR_DATA);
        assert_int_equal(failed.at, 1);
        assert_non_null(strstr(tr_last_error()->text, "a.h5: has no dataset \"absent\""));
        assert_true(failed.missing);
        asked(&w, "absent y ");
    }
    for (int again = 0; again < 2; again++) {
        assert_int_equal(look(&w, both, 2, sights, &failed), TR_OK);
        assert_true(failed.at == 2 && !failed.missing);
        assert_true(sights[0].elem == TR_ELEM_I32 && sights[0].ndim == 1);
        assert_true(sights[1].elem == TR_ELEM_F32 && sights[1].ndim == 3);
        asked(&w, again ? "" : "y ");
    }
    use(&w, "a.h5", "x", "y");
    tr_dataset *d = opens(&w);
    for (size_t e = 0; e < 60; e++) assert_true(input_at(d, 0, e / 6, e % 6) == (double)e);
    tr_dataset_close(d);
    asked(&w, "");
    known_close(&w);
}

/* The look alone, and the opening behind it: one process. */
static void hdf5_looked_first(void **state)
{
    (void)state;
    world w;
    known_open(&w);
    use(&w, "a.h5", "x", "y");
    for (int again = 0; again < 2; again++) {
        assert_int_equal(tr_dataset_look(&w.c, &w.c.data.train, &w.m), TR_OK);
        asked(&w, again ? "" : "y x ");
        tr_dataset_close(opens(&w));
        asked(&w, "");
    }
    use(&w, "a.h5", "xx", "y");
    assert_int_equal(tr_dataset_look(&w.c, &w.c.data.train, &w.m), TR_DATA);
    const tr_error looked = *tr_last_error();
    fails(&w, TR_DATA, looked.text, NULL); /* the same words */
    known_close(&w);
}

/* What data.eval names in the same file is looked at with data.train's; nothing but data.eval fails
 * for it. */
static void hdf5_eval_ahead(void **state)
{
    (void)state;
    static const char *const evals[] = {"x", "xe", "absent", "bad"};
    static const char *const first[] = {"y x ", "y x xe ", "y x absent ", "y x bad "};
    static const char *const then[] = {"", "", "absent ", "bad "};
    for (size_t k = 0; k < TR_COUNT(evals); k++) {
        world w;
        float x[60];
        int32_t y[10];
        tr_dataset *d = NULL;
        fill(x, y);
        known_open(&w);
        write_h5(&w, "a.h5", "xe", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 2, 1, x);
        write_h5(&w, "a.h5", "bad", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, NULL);
        usleep(50000);
        use(&w, "a.h5", "x", "y");
        w.c.data.eval = w.c.data.train;
        w.c.data.eval.inputs = scalar(&w, 1, evals[k]);
        w.c.data.eval.present = true;
        w.c.train.eval.every_steps = 1;
        for (int again = 0; again < 2; again++) {
            tr_dataset_close(opens(&w));
            asked(&w, again ? "" : first[k]);
        }
        const tr_status st = tr_dataset_open(&w.c, &w.c.data.eval, &w.m, &d);
        assert_int_equal(st, k < 2 ? TR_OK : TR_DATA);
        if (k == 2) assert_non_null(strstr(tr_last_error()->text, "has no dataset \"absent\""));
        if (k == 3)
            assert_non_null(strstr(tr_last_error()->text, "dataset bad: was never written"));
        tr_dataset_close(d);
        asked(&w, then[k]);
        known_close(&w);
    }
}

/* Nothing is said of a name that is looked at ahead and is not there. */
static void hdf5_ahead_missing(void **state)
{
    (void)state;
    static const char *const names[] = {"x", "absent"};
    world w;
    tr_data_file file;
    tr_failed_set failed;
    known_open(&w);
    assert_int_equal(tr_data_file_open(in_folder(&w, "a.h5"), &file), TR_OK);
    assert_int_equal(tr_hdf5_look_ahead(&file, names, 1, 2, 60, &failed), TR_OK);
    assert_true(failed.at == 2 && !failed.missing);
    asked(&w, "x absent ");
    assert_int_equal(tr_hdf5_look_ahead(&file, names, 2, 2, 60, &failed), TR_DATA);
    assert_true(failed.at == 1 && failed.missing);
    asked(&w, "absent ");
    tr_data_file_close(&file);
    known_close(&w);
}

/* Nobody waits long for what is looked at ahead: that is for who needs it. */
static void hdf5_ahead_hangs(void **state)
{
    (void)state;
    static const char *const names[] = {"x", "y", "x2"};
    world w;
    tr_data_file file;
    tr_failed_set failed;
    tr_hdf5_sight s;
    known_open(&w);
    assert_int_equal(tr_data_file_open(in_folder(&w, "a.h5"), &file), TR_OK);
    setenv("TEST_HANGS_AT", "y", 1);
    const double from = tr_now();
    assert_int_equal(tr_hdf5_look_ahead(&file, names, 1, 3, 20, &failed), TR_OK);
    assert_true(tr_now() - from < 10);
    asked(&w, "x y x2 ");
    expect_x(&w, "");
    assert_int_equal(tr_hdf5_look(&file, names, 2, 0.25, &s, &failed), TR_IO);
    assert_true(failed.at == 1 && !failed.missing);
    assert_non_null(strstr(tr_last_error()->text, "dataset y: could not be looked at within 0.25"));
    unsetenv("TEST_HANGS_AT");
    tr_data_file_close(&file);
    known_close(&w);
}

/* Where an object begins in its file. */
static haddr_t header_of(hid_t f, const char *name)
{
#if H5_VERSION_GE(1, 12, 0)
    H5O_info1_t info;
    assert_true(H5Oget_info_by_name1(f, name, &info, H5P_DEFAULT) >= 0);
#else
    H5O_info_t info;
    assert_true(H5Oget_info_by_name(f, name, &info, H5P_DEFAULT) >= 0);
#endif
    return info.addr;
}

/* Of names that lead through groups it is known, too, whether they are there. */
static void hdf5_missing(void **state)
{
    (void)state;
    static const struct {
        const char *name, *said;
        bool missing;
    } cases[] = {{"g/absent", "a.h5: has no dataset \"g/absent\"", true},
                 {"absent/x", "a.h5: has no dataset \"absent/x\"", true},
                 {"/g//h/x", "a.h5: has no dataset \"/g//h/x\"", true},
                 {"x/x", "a.h5: has no dataset \"x/x\"", true},
                 {"g/./absent", "a.h5: has no dataset \"g/./absent\"", true},
                 {"./absent", "a.h5: has no dataset \"./absent\"", true},
                 {"s/absent", "a.h5: has no dataset \"s/absent\"", true},
                 {"s/h/absent", "a.h5: has no dataset \"s/h/absent\"", true},
                 {"s/x/x", "a.h5: has no dataset \"s/x/x\"", true},
                 {"s", "a.h5: dataset s: cannot be opened", true},
                 {"g/.", "a.h5: dataset g/.: cannot be opened", true},
                 {"g", "a.h5: dataset g: cannot be opened", true},
                 {"g/h", "a.h5: dataset g/h: cannot be opened", true},
                 {"g/hangs", "a.h5: dataset g/hangs: cannot be opened", false},
                 {"g/hangs/x", "a.h5: dataset g/hangs/x: cannot be opened", false},
                 {"loop/x", "a.h5: dataset loop/x: cannot be opened", false},
                 {"d/x", "a.h5: dataset d/x: cannot be opened", false},
                 {"g/bad", "a.h5: dataset g/bad: was never written", false}};
    world w;
    tr_hdf5_sight s;
    known_open(&w);
    const hid_t f = H5Fopen(in_folder(&w, "a.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    H5Gclose(H5Gcreate2(f, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Gclose(H5Gcreate2(f, "g/h", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    assert_true(H5Lcreate_soft("nowhere", f, "g/hangs", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lcreate_soft("/g", f, "s", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lcreate_soft("/loop", f, "loop", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    H5Gclose(H5Gcreate2(f, "d", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    const haddr_t at = header_of(f, "d"); /* which is damaged below */
    assert_true(H5Lcreate_hard(f, "x", f, "g/x", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    H5Fclose(f);
    write_h5(&w, "a.h5", "g/bad", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, NULL);
    const int fd = open(in_folder(&w, "a.h5"), O_WRONLY);
    assert_int_equal(pwrite(fd, "damaged", 7, (off_t)at), 7);
    close(fd);
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        tr_failed_set failed;
        const char *const names[] = {"g/x", cases[i].name};
        tr_hdf5_sight both[2];
        assert_int_equal(look(&w, names, 2, both, &failed), TR_DATA);
        if (!strstr(tr_last_error()->text, cases[i].said)) fail_msg("%s", tr_last_error()->text);
        assert_true(failed.at == 1 && failed.missing == cases[i].missing);
    }
    assert_int_equal(look(&w, (const char *[]){"/g/x"}, 1, &s, NULL), TR_OK);
    asked(&w, "g/x g/absent absent/x /g//h/x x/x g/./absent ./absent s/absent s/h/absent s/x/x s "
              "g/. g g/h g/hangs g/hangs/x loop/x d/x g/bad /g/x ");
    known_close(&w);
}

/* Why a dataset of a list cannot be read is kept without file and name, however long that is. */
static void hdf5_faults(void **state)
{
    (void)state;
    world w;
    tr_hdf5_listed *v = NULL;
    char bad[TR_HDF5_NAME];
    size_t n;
    memset(bad, 'b', sizeof bad);
    bad[sizeof bad - 1] = 0;
    known_open(&w);
    write_h5(&w, "a.h5", bad, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 3, x_dims, 0, 0, NULL);
    const hid_t f = H5Fopen(in_folder(&w, "a.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    H5Gclose(H5Gcreate2(f, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    assert_true(H5Lcreate_soft("nowhere", f, "hangs", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    H5Fclose(f);
    assert_int_equal(tr_hdf5_list(in_folder(&w, "a.h5"), &v, &n), TR_OK);
    assert_int_equal(n, 4);
    assert_string_equal(v[0].fault, "was never written");
    assert_int_equal(strncmp(v[1].fault, "cannot be opened: HDF5: ", 24), 0);
    assert_true(!v[2].fault[0] && !v[3].fault[0]);
    tr_free(v);
    known_close(&w);
}

/* One process looks at datasets that lie otherwise: nothing of one is taken for the next one's. */
static void hdf5_layouts_together(void **state)
{
    (void)state;
    static const char *const names[] = {"chunked", "compact", "flat"};
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                    {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    world w;
    float x[60];
    int32_t y[10];
    known_open(&w);
    fill(x, y);
    const hid_t f = H5Fopen(in_folder(&w, "a.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    for (int i = 0; i < 3; i++) {
        const H5D_layout_t layouts[] = {H5D_CHUNKED, H5D_COMPACT, H5D_CONTIGUOUS};
        const hid_t space = H5Screate_simple(3, x_dims, NULL);
        const hid_t how = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_layout(how, layouts[i]);
        if (i == 0) H5Pset_chunk(how, 3, (hsize_t[]){4, 2, 3});
        const hid_t d =
            H5Dcreate2(f, names[i], H5T_IEEE_F32LE, space, H5P_DEFAULT, how, H5P_DEFAULT);
        assert_true(H5Dwrite(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x) >= 0);
        H5Dclose(d);
        H5Pclose(how);
        H5Sclose(space);
    }
    H5Fclose(f);
    for (size_t k = 0; k < TR_COUNT(orders); k++) {
        const char *ordered[4] = {"y"};
        tr_hdf5_sight s[4];
        for (int i = 0; i < 3; i++) ordered[i + 1] = names[orders[k][i]];
        tr_hdf5_forget_new();
        assert_int_equal(utimensat(AT_FDCWD, in_folder(&w, "a.h5"), NULL, 0), 0);
        assert_int_equal(look(&w, ordered, 4, s, NULL), TR_OK);
        for (int i = 0; i < 3; i++) {
            const tr_hdf5_sight *at = &s[i + 1];
            assert_int_equal(at->chunk_bytes, orders[k][i] == 0 ? 4 * 2 * 3 * sizeof *x : 0);
            assert_true(at->flat == (orders[k][i] == 2) && (at->offset > 0) == at->flat);
            assert_int_equal(at->ndim, 3);
        }
        tr_hdf5_forget_new();
        for (int i = 0; i < 3; i++) {
            use(&w, "a.h5", names[i], "y");
            tr_dataset *d = opens(&w);
            for (size_t e = 0; e < 60; e++) assert_true(input_at(d, 0, e / 6, e % 6) == (double)e);
            tr_dataset_close(d);
        }
    }
    known_close(&w);
}

/* Written in place, with its old time put back, or another file in its place. */
static void hdf5_changed(void **state)
{
    (void)state;
    world w;
    float x[60] = {3};
    char other[192];
    known_open(&w);
    expect_x(&w, "x ");
    struct stat before;
    assert_int_equal(stat(in_folder(&w, "a.h5"), &before), 0);
    hid_t f = H5Fopen(in_folder(&w, "a.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t d = H5Dopen2(f, "x", H5P_DEFAULT);
    assert_true(H5Dwrite(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x) >= 0);
    H5Dclose(d);
    H5Fclose(f);
    usleep(50000);
    expect_x(&w, "x ");
    expect_x(&w, "");
    const struct timespec times[] = {before.st_atim, before.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, in_folder(&w, "a.h5"), times, 0), 0);
    usleep(50000);
    expect_x(&w, "x ");
    snprintf(other, sizeof other, "cp -p %s/a.h5 %s/b.h5", w.folder, w.folder);
    assert_int_equal(system(other), 0);
    snprintf(other, sizeof other, "%s/b.h5", w.folder);
    assert_int_equal(rename(other, in_folder(&w, "a.h5")), 0);
    usleep(50000);
    expect_x(&w, "x ");
    expect_x(&w, "");
    known_close(&w);
}

/* Where another write might leave the same time, what is known goes with the opening that
 * looked. */
static void hdf5_just_written(void **state)
{
    (void)state;
    world w;
    tr_data_file file;
    tr_hdf5_state now;
    const tr_hdf5_sight made_up = {.elem = TR_ELEM_F32, .ndim = 1, .dims = {10}};
    tr_hdf5_sight s;
    bool quick = false;
    known_open(&w);
    assert_int_equal(tr_data_file_open(in_folder(&w, "a.h5"), &file), TR_OK);
    for (int tries = 0; tries < 1000 && !quick; tries++) { /* this thread may lose its core */
        const double from = tr_now();
        assert_int_equal(utimensat(AT_FDCWD, in_folder(&w, "a.h5"), NULL, 0), 0);
        assert_true(tr_hdf5_state_of(&file, &now));
        tr_hdf5_remember(&file, &now, "made up", &made_up);
        assert_true(tr_hdf5_known(&now, "made up", &s));
        tr_hdf5_forget_new();
        quick = tr_now() - from < 5e-3;
        if (quick) assert_false(tr_hdf5_known(&now, "made up", &s));
    }
    assert_true(quick);
    expect_x(&w, "x ");
    expect_x(&w, "");
    use(&w, "a.h5", "x", "y");
    tr_dataset_close(opens(&w));
    asked(&w, "y ");
    usleep(50000);
    tr_hdf5_remember(&file, &now, "made up", &made_up);
    assert_true(tr_hdf5_known(&now, "made up", &s));
    assert_true(s.dims[0] == 10);
    tr_hdf5_forget_new();
    assert_true(tr_hdf5_known(&now, "made up", &s));
    /* it has changed since the look began */
    tr_hdf5_state earlier = now;
    earlier.written[1] ^= 1;
    tr_hdf5_remember(&file, &earlier, "other", &made_up);
    assert_false(tr_hdf5_known(&now, "other", &s) || tr_hdf5_known(&earlier, "other", &s));
    tr_data_file_close(&file);
    known_close(&w);
}

/* Handed on, it is known where it was not; cut or absurd bytes are refused, all of them. The room
 * is for so many. */
static void hdf5_handed_on(void **state)
{
    (void)state;
    world w;
    static char bytes[TR_DATA_KNOWN], bad[TR_DATA_KNOWN];
    tr_data_file file;
    tr_hdf5_state now;
    tr_hdf5_sight s;
    char name[32];
    known_open(&w);
    expect_x(&w, "x ");
    const size_t n = tr_data_known_write(bytes);
    assert_in_range(n, 1, sizeof bytes);
    assert_int_equal(tr_data_file_open(in_folder(&w, "a.h5"), &file), TR_OK);
    assert_true(tr_hdf5_state_of(&file, &now));
    const tr_hdf5_sight made_up = {.elem = TR_ELEM_F32, .ndim = 1, .dims = {10}};
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "made up %d", i);
        tr_hdf5_remember(&file, &now, name, &made_up);
    }
    assert_true(tr_hdf5_known(&now, "made up 999", &s) && !tr_hdf5_known(&now, "made up 9", &s));
    assert_false(tr_hdf5_known(&now, "x", &s)); /* the oldest went */
    assert_in_range(tr_data_known_write(bad), 1, sizeof bad);

    for (size_t most = 0; most < n; most++) assert_false(tr_data_known_take(bytes, most));
    assert_false(tr_data_known_take(bytes, n + 1));
    size_t refused = 0;
    for (size_t at = 0; at < n; at++) {
        memcpy(bad, bytes, n);
        bad[at] = (char)0xff;
        refused += !tr_data_known_take(bad, n);
        if (tr_hdf5_known(&now, "x", &s)) assert_int_equal(tr_hdf5_believe(&file, "x", &s), TR_OK);
    }
    assert_in_range(refused, 8 + 16, n); /* the heading, and more of each sight */
    assert_true(tr_data_known_take(bytes, n));
    expect_x(&w, "");
    tr_data_file_close(&file);
    known_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hdf5_known),         cmocka_unit_test(hdf5_looked_first),
        cmocka_unit_test(hdf5_eval_ahead),    cmocka_unit_test(hdf5_layouts_together),
        cmocka_unit_test(hdf5_ahead_hangs),   cmocka_unit_test(hdf5_missing),
        cmocka_unit_test(hdf5_faults),        cmocka_unit_test(hdf5_changed),
        cmocka_unit_test(hdf5_just_written),  cmocka_unit_test(hdf5_handed_on),
        cmocka_unit_test(hdf5_ahead_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
