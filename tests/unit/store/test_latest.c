/* The checkpoint that a run goes on from: the newest that is whole, sound and of its model. */
#include "folder.h"
#include "tests/unit/few_files.h"

/* As a later program would write it: the checksum over the attributes holds. */
static void write_version(const char *path, uint64_t version)
{
    tr_h5_guard g;
    tr_index ix;
    assert_ok(tr_index_open(path, &ix));
    for (size_t i = 0; i < ix.root.count; i++)
        if (strcmp(ix.root.v[i].name, "format_version") == 0) ix.root.v[i].u = version;
    tr_h5_enter(&g);
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(file >= 0);
    for (size_t i = 0; i < ix.root.count; i++) H5Adelete(file, ix.root.v[i].name);
    H5Adelete(file, "crc32c");
    assert_ok(tr_attrs_write(&ix.root, file, path, "/", false));
    assert_true(H5Fclose(file) >= 0);
    tr_h5_leave(&g);
    tr_index_close(&ix);
}

static void latest(void **state)
{
    fixture *f = *state;
    char *path = (char *)"unset", name[192];
    uint64_t step = 1;
    assert_ok(tr_store_latest("store-nowhere", NULL, NULL, &path, &step));
    assert_null(path);
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step));
    assert_null(path);
    save(f, 9);
    save(f, 100);
    save(f, 100000000); /* nine digits: by number, not by name */
    assert_latest(f, 100000000);
    damage(f, 100000000, 40); /* the superblock's checksum field or its neighbours */
    assert_latest(f, 100);
    damage(f, 100, 12); /* the superblock */
    assert_latest(f, 9);
    snprintf(name, sizeof name, "%s/checkpoints/step-00000010.h5", f->folder);
    assert_int_equal(mkdir(name, 0700), 0); /* a folder of that name */
    snprintf(name, sizeof name, "%s/checkpoints/step-00000011.h5.bak", f->folder);
    close(open(name, O_CREAT | O_WRONLY, 0600));
    assert_latest(f, 9);
}

/* What fails is set aside once and stays counted; what cannot be opened, or only a newer program
 * reads, keeps its name. */
static void damaged_ones(void **state)
{
    fixture *f = *state;
    char *path = NULL, file[128];
    uint64_t step = 0;
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step));
    for (uint64_t s = 1; s <= 3; s++) save(f, s * 100);
    damage(f, 300, 12);
    for (int start = 0; start < 2; start++) {
        assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step));
        assert_int_equal(step, 200);
        tr_free(path);
        assert_false(there(f, "step-00000300.h5"));
        assert_true(there(f, "step-00000300.h5.damaged"));
    }
    damage(f, 200, -1);
    damage(f, 100, 12);
    for (int start = 0; start < 2; start++) {
        assert_error(tr_store_latest(f->folder, NULL, NULL, &path, &step), TR_FILE,
                     "/checkpoints can be read; they are renamed *.damaged; start over");
        assert_non_null(strstr(tr_last_error()->text, "none of the 3 checkpoints in "));
        assert_null(path);
    }
    assert_true(there(f, "step-00000100.h5.damaged"));
    snprintf(file, sizeof file, "%s/checkpoints/step-00000400.h5", f->folder);
    assert_int_equal(symlink("nowhere", file), 0);
    assert_error(tr_store_latest(f->folder, NULL, NULL, &path, &step), TR_FILE,
                 "none of the 4 checkpoints");
    assert_non_null(strstr(tr_last_error()->text, "; 3 of them are renamed *.damaged;"));
    unlink(file);
    save(f, 400);
    write_version(file, TR_FORMAT_VERSION + 1);
    assert_error(tr_store_latest(f->folder, NULL, NULL, &path, &step), TR_FILE, "newer trainer");
    assert_null(path);
    assert_true(there(f, "step-00000400.h5"));
}

/* A pipe or a link to nowhere in the place of all that there is, best.h5 or a step's: nothing is
 * renamed, none is said to be, and no run begins anew. */
static void unreadable_ones(void **state)
{
    fixture *f = *state;
    static const char *const names[] = {"step-00000001.h5", "best.h5"};
    char *path = NULL, file[128];
    uint64_t step;
    for (int i = 0; i < 4; i++) {
        const char *name = names[i / 2];
        snprintf(file, sizeof file, "%s/checkpoints/%s", f->folder, name);
        assert_int_equal(i % 2 ? symlink("nowhere", file) : mkfifo(file, 0600), 0);
        assert_error(tr_store_latest(f->folder, NULL, NULL, &path, &step), TR_FILE,
                     "none of the 1 checkpoints");
        assert_non_null(strstr(tr_last_error()->text, "; nothing was changed;"));
        assert_null(path);
        assert_int_equal(unlink(file), 0);
    }
}

static void save_best(fixture *f, uint64_t step)
{
    char best[128];
    snprintf(best, sizeof best, "%s/checkpoints/best.h5", f->folder);
    fixture_values(f, step);
    assert_ok(tr_store_write(best, &f->model, &f->snapshot, NULL));
}

static void unlink_best(const fixture *f)
{
    char best[128];
    snprintf(best, sizeof best, "%s/checkpoints/best.h5", f->folder);
    assert_int_equal(unlink(best), 0);
}

static uint64_t latest_step(const fixture *f, const char *name)
{
    char *path = NULL;
    uint64_t step = 0;
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step));
    assert_non_null(path);
    assert_string_equal(strrchr(path, '/') + 1, name);
    tr_free(path);
    return step;
}

/* best.h5 where files of steps are of no use: the newest that is left, whichever it is. */
static void best_when_others_fail(void **state)
{
    fixture *f = *state;
    char *path = NULL, best[128];
    uint64_t step;
    save_best(f, 350);
    assert_int_equal(latest_step(f, "best.h5"), 350); /* nothing else is there */
    for (uint64_t s = 1; s <= 3; s++) save(f, s * 100);
    assert_int_equal(latest_step(f, "step-00000300.h5"), 300); /* all is well: as ever */
    save_best(f, 250);
    damage(f, 300, 12);
    assert_int_equal(latest_step(f, "best.h5"), 250);
    assert_int_equal(latest_step(f, "best.h5"), 250); /* at the next start, too */
    save_best(f, 150);
    assert_int_equal(latest_step(f, "step-00000200.h5"), 200);
    damage(f, 200, 12);
    damage(f, 100, 12);
    assert_int_equal(latest_step(f, "best.h5"), 150);
    snprintf(best, sizeof best, "%s/checkpoints/best.h5", f->folder);
    assert_int_equal(truncate(best, 1000), 0);
    assert_error(tr_store_latest(f->folder, NULL, NULL, &path, &step), TR_FILE,
                 "none of the 4 checkpoints");
    assert_null(path);
    assert_true(there(f, "best.h5.damaged"));
}

/* Whole, but no run should go on from it: passed over for the newest that is sound, best.h5 among
 * them, and set aside. */
static void unsound_ones(void **state)
{
    fixture *f = *state;
    char *path = NULL;
    uint64_t step;
    save(f, 100);
    save(f, 200);
    save_as(f, 300, true);
    save_as(f, 400, true);
    save_best(f, 150);
    assert_latest(f, 200);
    assert_true(there(f, "step-00000300.h5.unsound") && there(f, "step-00000400.h5.unsound"));
    save_best(f, 250);
    assert_int_equal(latest_step(f, "best.h5"), 250); /* what was set aside before counts */
    save(f, 300);
    assert_latest(f, 300);
    save_as(f, 100, true);
    save_as(f, 200, true);
    save_as(f, 300, true);
    unlink_best(f);
    assert_ok(tr_store_latest(f->folder, NULL, NULL, &path, &step));
    assert_null(path); /* from the start, then */
}

/* A whole file of another model is passed over and moved aside where one fits; where none does,
 * nothing is touched: the config may be what is wrong. */
static void another_models(void **state)
{
    fixture *f = *state;
    char *path = NULL;
    uint64_t step = 0;
    save(f, 100);
    save(f, 200);
    f->model.nparams--;
    save(f, 300);
    assert_error(tr_store_latest(f->folder, &f->model,
                                 &(tr_snapshot){.nslots = 1, .slot_names = {"other"}}, &path,
                                 &step),
                 TR_FILE, "3 whole checkpoints");
    assert_null(path);
    assert_true(there(f, "step-00000300.h5"));
    f->model.nparams++;
    assert_ok(tr_store_latest(f->folder, &f->model, &f->snapshot, &path, &step));
    assert_int_equal(step, 200);
    tr_free(path);
    assert_false(there(f, "step-00000300.h5"));
    assert_true(there(f, "step-00000300.h5.other"));
    assert_true(there(f, "step-00000200.h5"));
}

/* Too few files that may be open, at whichever of them: told, and no file is passed over, renamed
 * or called damaged. */
static void few_files(void **state)
{
    fixture *f = *state;
    char *path = NULL;
    uint64_t step = 0;
    bool all = false;
    int failed = 0;
    save(f, 100);
    save(f, 200);
    for (int more = 0; !all && more < 9; more++) {
        const struct rlimit before = few_files_left(more);
        const tr_status st = tr_store_latest(f->folder, NULL, NULL, &path, &step);
        more_files(before);
        all = st == TR_OK;
        failed += !all;
        if (!all) assert_few_files("checkpoints");
        if (all) assert_int_equal(step, 200);
    }
    assert_true(all && failed >= 1);
    tr_free(path);
    tr_index ix;
    path = tr_store_checkpoint_path(f->folder, 200);
    struct rlimit before = few_files_left(0);
    assert_int_equal(tr_index_open(path, &ix), TR_IO);
    more_files(before);
    assert_true(ix.starved);
    assert_few_files("step-00000200.h5");
    tr_status st = TR_IO;
    for (int more = 0; st != TR_OK && more < 9; more++) { /* and where one is written */
        before = few_files_left(more);
        st = tr_store_write(path, &f->model, &f->snapshot, NULL);
        more_files(before);
        if (st != TR_OK) assert_few_files("step-00000200.h5");
        failed += st != TR_OK;
    }
    assert_int_equal(st, TR_OK);
    assert_true(failed >= 3);
    FILE *to = tmpfile();
    assert_non_null(to);
    before = few_files_left(0);
    assert_int_equal(tr_store_inspect(path, false, 80, to), TR_IO);
    more_files(before);
    assert_few_files("step-00000200.h5");
    fclose(to);
    tr_free(path);
    assert_true(there(f, "step-00000100.h5") && there(f, "step-00000200.h5"));
}

/* best.h5 is all there is: no reason to begin at the start. */
static void few_files_for_best(void **state)
{
    fixture *f = *state;
    char *path = NULL;
    uint64_t step;
    bool all = false;
    int failed = 0;
    save_best(f, 100);
    for (int more = 0; !all && more < 9; more++) {
        const struct rlimit before = few_files_left(more);
        const tr_status st = tr_store_latest(f->folder, NULL, NULL, &path, &step);
        more_files(before);
        all = st == TR_OK;
        failed += !all;
        if (all) assert_non_null(path);
        if (!all) assert_few_files("checkpoints");
    }
    assert_true(all && failed >= 1);
    tr_free(path);
    unlink_best(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(latest, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(damaged_ones, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(unreadable_ones, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(best_when_others_fail, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(unsound_ones, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(another_models, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(few_files, folder_open, fixture_close),
        cmocka_unit_test_setup_teardown(few_files_for_best, folder_open, fixture_close),
    };
    return cmocka_run_group_tests_name("store: latest", tests, NULL, NULL);
}
