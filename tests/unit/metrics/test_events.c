/* TensorBoard files: frames, checksums and messages, read back by a decoder of their own. */
#include "tests/unit/metrics/folder.h"

typedef struct {
    const unsigned char *p, *end;
} span;

/* By polynomial division over the bits as a number, not as events.c does it. */
static uint32_t crc32c_slow(const unsigned char *p, size_t n)
{
    uint64_t rest = 0;
    for (size_t i = 0; i < n * 8 + 32; i++) {
        uint64_t bit = i < n * 8 ? (p[i / 8] >> (i % 8)) & 1 : 0;
        if (i < 32) bit ^= 1;
        rest = rest << 1 | bit;
        if (rest >> 32) rest ^= 0x11edc6f41ull;
    }
    uint32_t out = 0;
    for (int i = 0; i < 32; i++) out |= (uint32_t)((rest >> i) & 1) << (31 - i);
    return ~out;
}

static uint64_t little(const unsigned char *p, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static uint32_t unmasked(uint32_t m)
{
    m -= 0xa282ead8u;
    return m >> 17 | m << 15;
}

static span next_frame(span *file)
{
    assert_true(file->end - file->p > 16);
    uint64_t n = little(file->p, 8);
    assert_int_equal(unmasked((uint32_t)little(file->p + 8, 4)), crc32c_slow(file->p, 8));
    span out = {file->p + 12, file->p + 12 + n};
    assert_true(out.end + 4 <= file->end);
    assert_int_equal(unmasked((uint32_t)little(out.end, 4)), crc32c_slow(out.p, n));
    file->p = out.end + 4;
    return out;
}

static uint64_t varint(span *s)
{
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(s->p < s->end);
        v |= (uint64_t)(*s->p & 0x7f) << shift;
        if (!(*s->p++ & 0x80)) return v;
    }
}

/* The next field: its number; its bytes (wire type 2) or its bits in *value. */
static int next_field(span *s, span *bytes, uint64_t *value)
{
    uint64_t key = varint(s), n;
    switch (key & 7) {
    case 0:
        *value = varint(s);
        break;
    case 1:
        *value = little(s->p, 8);
        s->p += 8;
        break;
    case 5:
        *value = little(s->p, 4);
        s->p += 4;
        break;
    case 2:
        n = varint(s);
        *bytes = (span){s->p, s->p + n};
        s->p += n;
        break;
    default:
        fail_msg("wire type %d", (int)(key & 7));
    }
    assert_true(s->p <= s->end);
    return (int)(key >> 3);
}

static double as_double(uint64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static float as_float(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float v;
    memcpy(&v, &low, sizeof v);
    return v;
}

static void test_crc(void **state)
{
    (void)state;
    assert_int_equal(crc32c_slow((const unsigned char *)"123456789", 9), 0xe3069283u);
}

/* The bytes that every event file of TensorFlow's own begins with. */
static void test_version(void **state)
{
    (void)state;
    static const unsigned char head[] = {0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22, 0x09};
    unsigned char out[TR_EVENT];
    size_t n = tr_event_version(out, 1.5);
    assert_int_equal(n, 40);
    assert_memory_equal(out, head, sizeof head);
    span file = {out, out + n}, bytes, e = next_frame(&file);
    uint64_t v = 0;
    assert_int_equal(next_field(&e, &bytes, &v), 1);
    assert_true(as_double(v) == 1.5);
    assert_int_equal(next_field(&e, &bytes, &v), 3);
    assert_memory_equal(bytes.p, "brain.Event:2", 13);
    assert_true(e.p == e.end && file.p == file.end);
}

static void expect_scalars(span *file, uint64_t step, const tr_scalar *want, size_t count)
{
    span e = next_frame(file), summary, value, bytes;
    uint64_t v = 0;
    assert_int_equal(next_field(&e, &bytes, &v), 1);
    assert_int_equal(next_field(&e, &bytes, &v), 2);
    assert_int_equal(v, step);
    assert_int_equal(next_field(&e, &summary, &v), 5);
    assert_true(e.p == e.end);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(next_field(&summary, &value, &v), 1);
        assert_int_equal(next_field(&value, &bytes, &v), 1);
        assert_int_equal(bytes.end - bytes.p, strlen(want[i].tag));
        assert_memory_equal(bytes.p, want[i].tag, strlen(want[i].tag));
        assert_int_equal(next_field(&value, &bytes, &v), 2);
        assert_true(as_float(v) == (float)want[i].value);
        assert_true(value.p == value.end);
    }
    assert_true(summary.p == summary.end);
}

static span event_file(const char *folder, glob_t *found)
{
    char *pattern = tr_sprintf("%s/events.out.tfevents.*", folder);
    size_t n;
    assert_int_equal(glob(pattern, 0, NULL, found), 0);
    char *last = found->gl_pathv[found->gl_pathc - 1];
    unsigned char *text = (unsigned char *)file_text(folder, strrchr(last, '/') + 1, &n);
    tr_free(pattern);
    return (span){text, text + n};
}

static void test_file(void **state)
{
    glob_t found;
    tr_metrics *m = open_metrics(*state, false, 0);
    tr_step_record s = STEP;
    tr_eval_record e = EVAL;
    e.step = 1000000;
    e.samples = 3;
    assert_int_equal(tr_metrics_step(m, &s), TR_OK);
    assert_int_equal(tr_metrics_eval(m, &e), TR_OK);
    s.step = 11;
    s.idle_ms = 0.5; /* of a GPU */
    s.gpu_utilization = 37;
    assert_int_equal(tr_metrics_step(m, &s), TR_OK);
    s.gpu_memory_mb = 3000;
    assert_int_equal(tr_metrics_step(m, &s), TR_OK);
    tr_metrics_close(m);
    span file = event_file(*state, &found);
    const unsigned char *bytes = file.p;
    assert_int_equal(found.gl_pathc, 1);
    globfree(&found);
    const tr_scalar steps[] = {{"train/loss", s.loss},
                               {"train/lr", s.lr},
                               {"train/grad_norm", s.grad_norm},
                               {"train/loss_scale", s.loss_scale},
                               {"train/epoch", 1},
                               {"speed/samples_per_s", s.samples_per_s},
                               {"speed/step_ms", s.step_ms},
                               {"speed/compute_ms", s.compute_ms},
                               {"speed/comm_wait_ms", s.comm_wait_ms},
                               {"speed/data_wait_ms", s.data_wait_ms},
                               {"speed/idle_ms", 0.5},
                               {"gpu/memory_mb", 3000},
                               {"gpu/utilization", 37}};
    enum { ALL = TR_COUNT(steps), HOST = ALL - 3 };
    tr_scalar less[ALL];
    memcpy(less, steps, sizeof less);
    less[HOST + 1] = steps[HOST + 2]; /* without memory */
    const tr_scalar evals[] = {{"eval/loss", 0.5}, {"eval/accuracy", 0.25}};
    next_frame(&file);
    expect_scalars(&file, 10, steps, HOST);
    expect_scalars(&file, 1000000, evals, TR_COUNT(evals));
    expect_scalars(&file, 11, less, ALL - 1);
    expect_scalars(&file, 11, steps, ALL);
    assert_true(file.p == file.end);
    tr_free((void *)bytes);
}

/* A resume adds a file that voids what the last start wrote past the checkpoint. */
static void test_restart(void **state)
{
    glob_t found;
    tr_metrics_close(open_metrics(*state, false, 0));
    tr_metrics_close(open_metrics(*state, true, 20));
    span file = event_file(*state, &found), bytes, e;
    const unsigned char *text = file.p;
    assert_int_equal(found.gl_pathc, 2);
    globfree(&found);
    uint64_t v = 0;
    next_frame(&file);
    e = next_frame(&file);
    assert_int_equal(next_field(&e, &bytes, &v), 1);
    assert_int_equal(next_field(&e, &bytes, &v), 2);
    assert_int_equal(v, 21);
    assert_int_equal(next_field(&e, &bytes, &v), 7);
    assert_int_equal(next_field(&bytes, &bytes, &v), 1);
    assert_int_equal(v, 1);
    assert_true(file.p == file.end);
    tr_free((void *)text);
}

/* A rollback voids the curve past the step it goes back to, in the same file. */
static void test_rewind(void **state)
{
    glob_t found;
    tr_metrics *m = open_metrics(*state, false, 0);
    tr_step_record s = STEP;
    assert_int_equal(tr_metrics_step(m, &s), TR_OK);
    tr_metrics_rewind(m, 6);
    s.step = 7;
    assert_int_equal(tr_metrics_step(m, &s), TR_OK);
    tr_metrics_close(m);
    tr_metrics_rewind(NULL, 6);
    span file = event_file(*state, &found), bytes, e;
    const unsigned char *text = file.p;
    assert_int_equal(found.gl_pathc, 1);
    globfree(&found);
    uint64_t v = 0;
    next_frame(&file);
    next_frame(&file);
    e = next_frame(&file);
    assert_int_equal(next_field(&e, &bytes, &v), 1);
    assert_int_equal(next_field(&e, &bytes, &v), 2);
    assert_int_equal(v, 7);
    assert_int_equal(next_field(&e, &bytes, &v), 7);
    assert_int_equal(next_field(&bytes, &bytes, &v), 1);
    assert_int_equal(v, 1);
    e = next_frame(&file);
    assert_int_equal(next_field(&e, &bytes, &v), 1);
    assert_int_equal(next_field(&e, &bytes, &v), 2);
    assert_int_equal(v, 7);
    assert_true(file.p == file.end);
    tr_free((void *)text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc),
        cmocka_unit_test(test_version),
        cmocka_unit_test_setup_teardown(test_file, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_restart, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_rewind, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
