/* What is written comes back bit for bit, and what does not fit the model is refused by name. */
#include "fixture.h"
#include "runtime/base/crc32c.h"
#include "runtime/store/internal.h"

#include <zlib.h>

static void comes_back(void **state)
{
    fixture *f = *state;
    readback r;
    size_t nbytes = 0;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, &nbytes));
    FILE *file = fopen(f->path, "rb");
    fseek(file, 0, SEEK_END);
    assert_int_equal(ftell(file), nbytes);
    fclose(file);
    assert_ok(tr_store_verify(f->path, NULL));
    assert_ok(read_back(f, f->path, &r));
    assert_true(same_snapshot(f, &r));
    tr_history_free(&r.history);

    char hex[65];
    check_config(f->path, f->snapshot.config_text);
    assert_ok(tr_store_sha256(f->path, hex));
    assert_int_equal(strlen(hex), 64);
}

/* An array of FLAT values as parts that lie in the reverse order; that at `zeros` has no place. */
#define PARTS 7
static tr_flat_parts apart(const float *from, float *at, int zeros, struct tr_flat_part v[PARTS])
{
    static const size_t cuts[PARTS + 1] = {0, 5, 16, 200, 304, 310, 400, FLAT};
    for (int i = PARTS - 1; i >= 0; i--) {
        const size_t n = cuts[i + 1] - cuts[i];
        v[i] = (struct tr_flat_part){{cuts[i], cuts[i + 1]}, i == zeros ? NULL : at, false};
        if (from) memcpy(at, from + cuts[i], n * sizeof *at);
        at += n;
    }
    return (tr_flat_parts){v, PARTS};
}

/* A file of arrays in parts is that of whole ones, and comes back into parts. */
static void in_parts(void **state)
{
    fixture *f = *state;
    readback whole, r;
    float lie[2][FLAT], back[FLAT];
    struct tr_flat_part v[2][PARTS], to[PARTS];
    const tr_range skipped = {200, 304};
    memset(f->m1 + skipped.begin, 0, (skipped.end - skipped.begin) * sizeof *f->m1);
    tr_snapshot s = f->snapshot;
    s.params = s.slots[0] = NULL;
    s.params_parts = apart(f->p, lie[0], -1, v[0]);
    s.slot_parts[0] = apart(f->m1, lie[1], 3, v[1]);
    assert_ok(tr_store_write(f->path, &f->model, &s, NULL));
    assert_ok(read_back(f, f->path, &whole));
    assert_true(same_snapshot(f, &whole));
    tr_history_free(&whole.history);

    memset(&r, 0, sizeof r);
    for (size_t i = 0; i < FLAT; i++) lie[0][i] = 7;
    r.snapshot = (tr_snapshot){.params = r.p,
                               .states = r.s,
                               .nslots = 2,
                               .slot_names = {"exp_avg", "exp_avg_sq"},
                               .slots = {NULL, r.m2},
                               .slot_parts = {apart(NULL, lie[0], 3, to)}};
    assert_ok(tr_store_read(f->path, &f->model, &r.snapshot, &r.history));
    tr_flat_copy(&r.snapshot.slot_parts[0], (tr_range){0, FLAT}, back);
    memcpy(r.m1, back, sizeof back);
    assert_true(same_snapshot(f, &r));
    size_t untouched = 0; /* where the part without a place would be */
    for (size_t i = 0; i < FLAT; i++) untouched += lie[0][i] == 7.0f;
    assert_true(untouched >= skipped.end - skipped.begin);
    tr_history_free(&r.history);

    s.params_parts.count--; /* of which a row has too little */
    assert_error(tr_store_write(f->path, &f->model, &s, NULL), TR_INTERNAL, "conv2d1/weight");
}

static void empty_history_and_long_config(void **state)
{
    fixture *f = *state;
    readback r;
    size_t n = 300000;
    char *text = malloc(n + 1);
    for (size_t i = 0; i < n; i++) text[i] = (char)('a' + i % 26);
    text[n] = 0;
    f->snapshot.config_text = text;
    f->snapshot.history = NULL;
    f->snapshot.parent_sha256[0] = 0;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    assert_ok(tr_store_verify(f->path, NULL));
    assert_ok(read_back(f, f->path, &r));
    assert_int_equal(r.history.nsteps, 0);
    tr_index ix; /* what was never trained has no columns */
    assert_int_equal(tr_index_open(f->path, &ix), TR_OK);
    assert_null(tr_index_find(&ix, "/history/loss"));
    tr_index_close(&ix);
    assert_int_equal(r.history.classes, 0);
    assert_string_equal(r.snapshot.parent_sha256, "");
    tr_history_free(&r.history);
    check_config(f->path, text);
    free(text);
}

/* Every type that an array may have is known again, without HDF5. */
static void types(void **state)
{
    fixture *f = *state;
    const tr_dtype all[] = {TR_F32, TR_BF16, TR_F16, TR_F64, TR_I32, TR_I64, TR_U8, TR_I8};
    const int64_t dims[2] = {2, 3};
    const double data[6] = {1, 2, 3, 4, 5, 6};
    tr_attrs root = {0};
    tr_image *im;
    tr_index ix;
    assert_ok(tr_attrs_add_text(&root, "format", TR_FORMAT_NAME));
    assert_ok(tr_attrs_add_count(&root, "format_version", TR_FORMAT_VERSION));
    assert_ok(tr_image_open(f->path, false, &im));
    assert_ok(tr_image_attrs(im, "/", &root));
    for (size_t i = 0; i < TR_COUNT(all); i++)
        assert_ok(tr_image_array(im, tr_dtype_name(all[i]), all[i], (int)i % 3, dims, data));
    assert_ok(tr_image_commit(im, NULL));
    tr_image_close(im);
    tr_attrs_free(&root);
    assert_ok(tr_index_open(f->path, &ix));
    for (size_t i = 0; i < TR_COUNT(all); i++) {
        char where[32];
        snprintf(where, sizeof where, "/%s", tr_dtype_name(all[i]));
        const tr_entry *e = tr_index_find(&ix, where);
        assert_non_null(e);
        assert_string_equal(e->fault, "");
        assert_int_equal(e->type, all[i]);
        assert_int_equal(e->ndim, i % 3);
        assert_ok(tr_entry_read(&ix, e, NULL, NULL, NULL));
    }
    tr_index_close(&ix);
}

static void stored_types(void **state)
{
    fixture *f = *state;
    readback r;
    tr_index ix;
    set_stored(f);
    tr_snapshot only = {.params = r.p, .states = r.s};
    for (int kind = 0; kind < 3; kind++) {
        if (kind == 1) { /* the other 16 bits */
            f->params[2].stored = TR_BF16;
            for (size_t i = 0; i < f->params[2].count; i++)
                f->p[f->params[2].offset + i] =
                    tr_bf16_to_f32(tr_f32_to_bf16(0.37f * (float)i - 20));
        }
        f->snapshot.checkpoint = kind == 2; /* which goes on from float32 */
        memset(&r, 0, sizeof r);
        assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
        assert_ok(tr_index_open(f->path, &ix));
        const tr_entry *e = tr_index_find(&ix, "/model/params/conv2d1/weight");
        const tr_entry *h = tr_index_find(&ix, "/model/params/head/weight");
        assert_int_equal(e->type, kind == 2 ? TR_F32 : TR_I8);
        assert_int_equal(e->nbytes, kind == 2 ? 108 * 4 : 108);
        assert_int_equal(h->type, kind == 2 ? TR_F32 : f->params[2].stored);
        tr_index_close(&ix);
        assert_ok(tr_store_read(f->path, &f->model, &only, NULL));
        assert_true(same_params(f, f->p, r.p));
        assert_memory_equal(f->s, r.s, 16);
    }
}

/* A model in fewer bits is a smaller file, from which the same comes back; all else is as it always
 * was. */
static void packed(void **state)
{
    fixture *f = *state;
    readback r;
    tr_index ix;
    char text[4000];
    size_t plain, nbytes;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + tr_philox_at(1, TR_RNG_TEST, 5, i, 0).v[0] % 5);
    text[sizeof text - 1] = 0;
    f->snapshot.config_text = text;
    f->snapshot.checkpoint = false;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, &plain));
    assert_ok(tr_index_open(f->path, &ix));
    assert_int_equal(tr_attrs_get(&ix.root, "format_version")->u, TR_FORMAT_PLAIN);
    assert_false(tr_index_find(&ix, "/model/params/head/bias")->together);
    tr_index_close(&ix);
    set_stored(f);
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, &nbytes));
    check_config(f->path, text);
    if (!(nbytes + 3000 < plain)) fail_msg("%zu bytes of %zu", nbytes, plain);
    assert_ok(tr_index_open(f->path, &ix));
    assert_int_equal(tr_attrs_get(&ix.root, "format_version")->u, TR_FORMAT_PACKED);
    assert_true(tr_index_find(&ix, "/model/params/head/bias")->together);
    tr_index_close(&ix);
    tr_snapshot only = {.params = r.p, .states = r.s};
    memset(&r, 0, sizeof r);
    assert_ok(tr_store_read(f->path, &f->model, &only, &r.history));
    assert_true(same_params(f, f->p, r.p));
    assert_int_equal(r.history.nsteps, NSTEPS);
    assert_memory_equal(r.history.steps, f->steps, sizeof f->steps);
    tr_history_free(&r.history);
}

/* Deflated texts: what would not be believed is not written, and what was not written is not
 * believed. */
static void deflated(void **state)
{
    char text[9000], *back = NULL;
    uint8_t bomb[5000];
    void *bytes = NULL;
    size_t n = 0;
    (void)state;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + tr_philox_at(1, TR_RNG_TEST, 5, i, 0).v[0] % 5);
    text[sizeof text - 1] = 0;
    assert_ok(tr_text_deflate(text, &bytes, &n));
    assert_non_null(bytes);
    assert_true(n < 5000);
    assert_ok(tr_text_inflate(bytes, n, 1 << 20, &back));
    assert_string_equal(back, text);
    tr_free(back);
    assert_ok(tr_text_inflate(bytes, n, sizeof text - 2, &back)); /* one byte too few */
    assert_null(back);
    assert_ok(tr_text_inflate(bytes, n - 1, 1 << 20, &back));
    assert_null(back);
    memcpy(bomb, bytes, n);
    bomb[n] = 0; /* something behind it */
    assert_ok(tr_text_inflate(bomb, n + 1, 1 << 20, &back));
    assert_null(back);
    tr_free(bytes);
    memset(text, 'x', sizeof text - 1);
    assert_ok(tr_text_deflate(text, &bytes, &n));
    assert_null(bytes); /* too much of too few bytes: written as it is */
    uLongf made = sizeof bomb;
    assert_int_equal(compress(bomb, &made, (const Bytef *)text, sizeof text), Z_OK);
    assert_ok(tr_text_inflate(bomb, made, 1 << 20, &back));
    assert_null(back);
    text[127] = 0;
    assert_ok(tr_text_deflate(text, &bytes, &n));
    assert_null(bytes); /* too short */
}

static void values_that_a_type_does_not_hold(void **state)
{
    fixture *f = *state;
    set_stored(f);
    float *conv = f->p + f->params[0].offset, *head = f->p + f->params[2].offset;
    const float one = conv[40], other = head[7];
    const float bad[] = {nextafterf(one, 10), NAN, -0.0f, 129 * f->s[1], INFINITY};
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        conv[40] = bad[i];
        assert_error(tr_store_write(f->path, &f->model, &f->snapshot, NULL), TR_FILE,
                     "conv2d1/weight: element 40");
        assert_int_equal(access(f->path, F_OK), -1);
    }
    conv[40] = one;
    head[7] = 0.1f;
    assert_error(tr_store_write(f->path, &f->model, &f->snapshot, NULL), TR_FILE,
                 "which float16 does not hold");
    head[7] = other;
    const float scales[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < TR_COUNT(scales); i++) {
        f->s[0] = scales[i];
        assert_error(tr_store_write(f->path, &f->model, &f->snapshot, NULL), TR_FILE,
                     "is no scale");
    }
}

/* A file of one type is no file of another, but for float32. */
static void another_stored_type(void **state)
{
    fixture *f = *state;
    readback r;
    tr_snapshot only = {.params = r.p};
    set_stored(f);
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    f->params[2].stored = TR_BF16;
    assert_error(tr_store_read(f->path, &f->model, &only, NULL), TR_FILE,
                 "expected bfloat16[10,28], found float16[10,28]");
    f->params[2].stored = TR_F32;
    assert_error(tr_store_read(f->path, &f->model, &only, NULL), TR_FILE,
                 "expected float32[10,28], found float16[10,28]");
}

static void a_model_has_no_slots(void **state)
{
    fixture *f = *state;
    readback r;
    f->snapshot.checkpoint = false;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    assert_error(read_back(f, f->path, &r), TR_FILE, "/optimizer/exp_avg: missing");
    tr_snapshot only = {.params = r.p, .states = NULL};
    assert_ok(tr_store_read(f->path, &f->model, &only, NULL));
    assert_true(same_params(f, f->p, r.p));
    assert_false(only.checkpoint);
}

/* What a read says on stderr, in `said`. */
static tr_status read_listening(const fixture *f, tr_snapshot *s, char *said, size_t size)
{
    int ends[2], err = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    tr_status st = tr_store_read(f->path, &f->model, s, NULL);
    dup2(err, STDERR_FILENO);
    close(err);
    close(ends[1]);
    ssize_t n = read(ends[0], said, size - 1);
    close(ends[0]);
    said[n > 0 ? n : 0] = 0;
    return st;
}

/* Another optimizer's checkpoint: refused where something is missing, else said with both lists. */
static void another_optimizer(void **state)
{
    fixture *f = *state;
    readback r;
    char said[1024];
    tr_snapshot *s = &r.snapshot;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    r.snapshot = (tr_snapshot){.checkpoint = true,
                               .params = r.p,
                               .nslots = 2,
                               .slot_names = {"exp_avg_sq", "exp_avg"},
                               .slots = {r.m2, r.m1}};
    assert_ok(read_listening(f, s, said, sizeof said));
    assert_string_equal(said, "");
    s->nslots = 1;
    s->slot_names[0] = "exp_avg";
    assert_ok(read_listening(f, s, said, sizeof said));
    assert_non_null(strstr(said, "a.h5: was another optimizer's: it has exp_avg, exp_avg_sq, this "
                                 "run's keeps exp_avg; not used: exp_avg_sq\n"));
    s->nslots = 0;
    assert_ok(read_listening(f, s, said, sizeof said));
    assert_non_null(strstr(said, "keeps nothing; not used: exp_avg, exp_avg_sq\n"));
    s->checkpoint = false; /* only looked at */
    assert_ok(read_listening(f, s, said, sizeof said));
    assert_string_equal(said, "");
    s->nslots = 2;
    s->slot_names[1] = "exp"; /* not the beginning of a name either */
    assert_error(tr_store_read(f->path, &f->model, s, NULL), TR_FILE,
                 "a.h5: /optimizer/exp: missing: this run's optimizer keeps exp_avg, exp, the file "
                 "has exp_avg, exp_avg_sq");
}

static void another_model(void **state)
{
    fixture *f = *state;
    readback r;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    f->params[0].dims[0] = 5;
    assert_error(read_back(f, f->path, &r), TR_FILE,
                 "a.h5: /model/params/conv2d1/weight: expected float32[5,3,3,3], found "
                 "float32[4,3,3,3]");
    f->params[0].dims[0] = 4;
    snprintf(f->params[3].name, TR_NAME, "offset");
    assert_error(read_back(f, f->path, &r), TR_FILE,
                 "/model/params/head/offset: expected float32[10], found nothing");
    f->model.nparams = 3;
    assert_error(read_back(f, f->path, &r), TR_FILE,
                 "/model/params/head/bias: the model of the config has no such array");
    f->model.nparams = 4;
    snprintf(f->params[3].name, TR_NAME, "bias");
    f->model.nstates = 1;
    assert_error(read_back(f, f->path, &r), TR_FILE,
                 "/model/state/batchnorm1/running_var: the model of the config has no such array");
    f->model.nstates = 2;
    assert_ok(read_back(f, f->path, &r));
    tr_history_free(&r.history);
}

/* RFC 3720, B.4, and the two ways against each other at every length and alignment. */
static void checksums(void **state)
{
    (void)state;
    unsigned char b[300];
    memset(b, 0, 32);
    assert_int_equal(tr_crc32c(0, b, 32), 0x8a9136aa);
    assert_int_equal(tr_crc32c_portable(0, b, 32), 0x8a9136aa);
    memset(b, 0xff, 32);
    assert_int_equal(tr_crc32c(0, b, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) b[i] = (unsigned char)i;
    assert_int_equal(tr_crc32c(0, b, 32), 0x46dd794e);
    assert_int_equal(tr_crc32c(0, "123456789", 9), 0xe3069283);
    for (size_t i = 0; i < sizeof b; i++) b[i] = (unsigned char)(i * 37 + i / 7);
    for (size_t from = 0; from < 9; from++)
        for (size_t n = 0; n < 280; n++) {
            uint32_t whole = tr_crc32c_portable(0, b + from, n);
            assert_int_equal(tr_crc32c(0, b + from, n), whole);
            size_t cut = n / 3;
            assert_int_equal(tr_crc32c(tr_crc32c(0, b + from, cut), b + from + cut, n - cut),
                             whole);
        }
}

/* What a file of before lacks is what it was not known to be. */
static void earlier_versions(void **state)
{
    (void)state;
    tr_train_state t = {.epoch_samples = 32, .epoch_targets = 64, .epoch_seconds = 2, .threads = 4};
    for (int within = 1; within >= 0; within--) {
        tr_train_state back;
        tr_attrs a = {0};
        if (!within) t.epoch_samples = t.epoch_targets = 0;
        assert_ok(tr_train_to_attrs(&t, &a));
        assert_ok(tr_train_from_attrs("a file", &a, &back));
        assert_memory_equal(&t, &back, sizeof t);
        tr_attrs_remove(&a, "epoch_seconds");
        tr_attrs_remove(&a, "epoch_targets");
        tr_attrs_remove(&a, "threads");
        assert_ok(tr_train_from_attrs("a file", &a, &back));
        assert_int_equal(back.threads, 0);
        assert_int_equal(back.epoch_targets, t.epoch_samples);
        assert_int_equal(isnan(back.epoch_seconds), within);
        tr_attrs_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(comes_back, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(in_parts, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(empty_history_and_long_config, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(types, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(stored_types, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(values_that_a_type_does_not_hold, fixture_open,
                                        fixture_close),
        cmocka_unit_test_setup_teardown(another_stored_type, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(a_model_has_no_slots, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(another_model, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(another_optimizer, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(packed, fixture_open, fixture_close),
        cmocka_unit_test(earlier_versions),
        cmocka_unit_test(deflated),
        cmocka_unit_test(checksums),
    };
    return cmocka_run_group_tests_name("store: round trip", tests, NULL, NULL);
}
