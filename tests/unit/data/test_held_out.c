/* Windows of tokens that are evaluated: each target once, whatever the stride; what data.split
 * holds out. */
#include "token_windows.h"

/* What is evaluated: targets [from, to) count once each, behind their own tokens, and no others.
 * Windows are `stride` apart, and as few as do. `ignored` is the label of those that do not
 * count. */
static void check_once(tr_dataset *d, uint64_t from, uint64_t to, uint64_t stride, int ignored)
{
    uint8_t seen[256] = {0};
    const uint64_t inputs = to - from, most = stride > T ? stride : T;
    assert_int_equal(tr_dataset_samples(d),
                     inputs > most ? (inputs - most + stride - 1) / stride + 1 : 1);
    for (uint64_t i = 0; i < tr_dataset_samples(d); i++)
        for (size_t e = 0; e < T; e++) {
            const uint64_t at = from - 1 + i * stride + e;
            assert_int_equal(input_at(d, 0, i, e), at + 1 < to ? token(at) : 0);
            if (target_at(d, i, e) == ignored) continue;
            assert_true(at + 1 < to);
            assert_int_equal(target_at(d, i, e), token(at + 1));
            seen[at + 1]++;
        }
    for (uint64_t k = 0; k < sizeof seen; k++)
        assert_int_equal(seen[k], k >= from && k < to && (k - from) % stride < T);
    tr_dataset_close(d);
}

static tr_dataset *opens_eval(const world *w)
{
    tr_dataset *d = NULL;
    assert_int_equal(tr_dataset_open(&w->c, &w->c.data.eval, &w->m, &d), TR_OK);
    return d;
}

/* data.eval: all of a file that is longer or shorter than a window, or a part of it. */
static void test_once(void **state)
{
    (void)state;
    for (uint64_t tokens = 2; tokens < 24; tokens++)
        for (uint64_t stride = 0; stride < 7; stride++) {
            const int format = tokens % 2 ? TR_FORMAT_TEXT : TR_FORMAT_TOKENS;
            const uint64_t apart = stride ? stride : T;
            world w;
            open_world(&w, "a", format);
            write_tokens(&w, "a", format == TR_FORMAT_TEXT ? 1 : 2, tokens, "", 0);
            w.c.data.eval = w.c.data.train;
            w.c.data.eval.stride = (int64_t)stride;
            w.c.data.cache_mb = (int64_t)stride % 2;
            check_once(opens_eval(&w), 1, tokens, apart, TR_FILLED_LABEL);
            w.c.model.loss.ignore_index = -100;
            check_once(opens_eval(&w), 1, tokens, apart, -100);
            if (tokens > T + 1 + apart) { /* two whole windows, or more */
                w.c.data.eval.offset = 1;
                check_once(opens_eval(&w), 1 + apart, tokens, apart, -100);
                w.c.data.eval.samples = 1;
                if (tokens > T + 1 + 2 * apart)
                    check_once(opens_eval(&w), 1 + apart, 1 + apart + T, apart, -100);
            }
            world_close(&w);
        }
}

/* data.split holds out the tokens of the last windows, whatever of them training would have made,
 * and evaluates each once; training has no token in common with their inputs and labels but one
 * label. */
static void test_split(void **state)
{
    (void)state;
    for (int64_t stride = 1; stride < 6; stride++)
        for (int64_t apart = 0; apart < 6; apart++) {
            world w;
            tr_dataset *train = NULL;
            open_world(&w, "a", TR_FORMAT_TEXT);
            write_tokens(&w, "a", 1, 200, "", 0);
            w.c.data.train.stride = stride;
            w.c.data.split =
                (tr_split_config){.present = true, .fraction = 0.25, .seed = 3, .stride = apart};
            assert_int_equal(tr_dataset_open(&w.c, &w.c.data.train, &w.m, &train), TR_OK);
            const uint64_t all = (uint64_t)(195 / stride + 1);
            const uint64_t out = (uint64_t)llround((double)all * 0.25),
                           from = (all - out) * (uint64_t)stride;
            const uint64_t kept = tr_dataset_samples(train);
            assert_true((kept - 1) * (uint64_t)stride + T <= from);
            assert_true(kept * (uint64_t)stride + T > from);
            tr_dataset_close(train);
            check_once(opens_eval(&w), from + 1, 200, apart ? (uint64_t)apart : T, TR_FILLED_LABEL);
            w.c.data.train.offset = 3; /* of what is left then */
            const uint64_t rest = (uint64_t)llround((double)(all - 3) * 0.25);
            check_once(opens_eval(&w), (all - rest) * (uint64_t)stride + 1, 200,
                       apart ? (uint64_t)apart : T, TR_FILLED_LABEL);
            world_close(&w);
        }
}

/* One window has no part. */
static void test_split_of_one(void **state)
{
    (void)state;
    for (uint64_t tokens = 2; tokens < T + 2; tokens++)
        for (int percent = 10; percent < 100; percent += 40) {
            world w;
            tr_dataset *d = NULL;
            open_world(&w, "a", TR_FORMAT_TEXT);
            write_tokens(&w, "a", 1, tokens, "", 0);
            w.c.data.split = (tr_split_config){.present = true, .fraction = percent / 100.0};
            assert_int_equal(tr_dataset_open(&w.c, &w.c.data.eval, &w.m, &d), TR_DATA);
            assert_non_null(strstr(tr_last_error()->text, "which data.split cannot part"));
            world_close(&w);
        }
}

/* Labels of what stays in the file are looked at as they are read, also where rows of data.split
 * are held; of what is held at the start, however many labels overlapping windows have. */
static void test_looked_at(void **state)
{
    (void)state;
    enum { LONG = 300000, BAD = 5 };
    static char text[4 * LONG];
    world w;
    open_world(&w, "a", TR_FORMAT_TEXT);
    w.m.classes = 200;
    memset(text, 'a', sizeof text);
    text[BAD] = (char)250;
    for (int fits = 0; fits < 2; fits++) {
        write_bytes(&w, "a", text, fits ? LONG : sizeof text);
        w.c.data.cache_mb = 1;
        w.c.data.train.stride = fits ? 1 : 0;
        w.c.data.split = (tr_split_config){.present = true, .fraction = 0.25, .seed = 3};
        if (fits) {
            fails(&w, TR_DATA, "label 250", "0 to 199", NULL);
            continue;
        }
        tr_dataset *d = opens(&w); /* looks at nothing */
        assert_true(d->held > 0 && !d->targets->kept);
        tr_dataset_close(d);
        w.c.data.split.fraction = 0.9; /* the part that is left would fit */
        d = opens(&w);
        tr_dataset_close(d);
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_of_one),
        cmocka_unit_test(test_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
