/* What inspect and diff say: numbers worked out by hand, JSON that parses, damage shown by name
 * beside the rest. */
#include "fixture.h"
#include "runtime/store/internal.h"

#include <ctype.h>

/* ---- a strict little JSON checker (RFC 8259): returns what follows the value, NULL when it is
 * none */

static const char *json(const char *p);

static const char *space(const char *p)
{
    while (*p == ' ' || *p == '\n') p++;
    return p;
}

static const char *json_text(const char *p)
{
    if (*p++ != '"') return NULL;
    for (; *p != '"'; p++) {
        if ((unsigned char)*p < 0x20) return NULL;
        if (*p != '\\') continue;
        p++;
        if (*p == 'u') {
            for (int i = 0; i < 4; i++)
                if (!isxdigit((unsigned char)*++p)) return NULL;
        } else if (!*p || !strchr("\"\\/bfnrt", *p)) {
            return NULL;
        }
    }
    return p + 1;
}

static const char *json_number(const char *p)
{
    if (*p == '-') p++;
    if (!isdigit((unsigned char)*p)) return NULL;
    if (*p == '0' && isdigit((unsigned char)p[1])) return NULL;
    char *end;
    strtod(p, &end);
    return end;
}

static const char *json_many(const char *p, char close)
{
    p = space(p + 1);
    if (*p == close) return p + 1;
    for (;; p = space(p + 1)) {
        if (close == '}') {
            p = json_text(p);
            if (!p || *(p = space(p)) != ':') return NULL;
            p = space(p + 1);
        }
        p = json(p);
        if (!p) return NULL;
        p = space(p);
        if (*p == close) return p + 1;
        if (*p != ',') return NULL;
    }
}

static const char *json(const char *p)
{
    static const char *const words[] = {"true", "false", "null"};
    if (*p == '{') return json_many(p, '}');
    if (*p == '[') return json_many(p, ']');
    if (*p == '"') return json_text(p);
    for (size_t i = 0; i < TR_COUNT(words); i++)
        if (strncmp(p, words[i], strlen(words[i])) == 0) return p + strlen(words[i]);
    return json_number(p);
}

static void assert_json(const char *text)
{
    const char *end = json(text);
    if (!end || *space(end)) fail_msg("not JSON: %s", text);
}

/* ---- capture --------------------------------------------------------------------------------- */

static char *inspect(const char *path, bool as_json, tr_status want)
{
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    tr_status st = tr_store_inspect(path, as_json, 80, to);
    fclose(to);
    if (st != want) fail_msg("%d: %s", st, tr_last_error()->text);
    return text;
}

static char *diff(const char *a, const char *b, bool as_json, bool *same)
{
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    assert_ok(tr_store_diff(a, b, as_json, to, same));
    fclose(to);
    return text;
}

static void assert_has(const char *text, const char *words)
{
    if (!strstr(text, words)) fail_msg("\"%s\" is not in:\n%s", words, text);
}

/* Values whose statistics are known: bias 1..10 (mean 5.5, variance 8.25, norm sqrt(385)); half of
 * the convolution 0 and half 2 (mean 1, std 1, norm sqrt(54 * 4) = 14.6969). */
static void known_values(fixture *f)
{
    for (int i = 0; i < 10; i++) f->p[i] = (float)(i + 1);
    for (int i = 0; i < 108; i++) f->p[320 + i] = i % 2 ? 2 : 0;
    for (int i = 0; i < 402; i++) f->m1[i] = 0;
    for (int i = 320; i < 428; i++) f->m1[i] = 0;
    for (int i = 304; i < 308; i++) f->m1[i] = 3; /* the only ones: norm 6 */
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
}

/* int8 is shown with its scales. */
static void says_stored_types(void **state)
{
    fixture *f = *state;
    known_values(f);
    f->snapshot.checkpoint = false;
    f->params[0].stored = TR_I8;
    f->params[0].scale = 0;
    f->params[2].stored = TR_F16;
    snprintf(f->states[0].layer, sizeof f->states[0].layer, "conv2d1");
    snprintf(f->states[0].name, sizeof f->states[0].name, TR_SCALE_STATE);
    for (int i = 0; i < 4; i++) f->s[i] = 2.0f / 127;
    for (size_t i = 0; i < f->params[0].count; i++)
        f->p[f->params[0].offset + i] = i % 2 ? 127 * f->s[0] : 0;
    for (size_t i = 0; i < f->params[2].count; i++) f->p[f->params[2].offset + i] = 0.5f;
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    char *text = inspect(f->path, false, TR_OK);
    assert_has(text, "  conv2d1/weight     int8[4,3,3,3]                    1           1   50.0%"
                     "        14.7\n");
    assert_has(text, "  head/weight        float16[10,28]                 0.5           0    0.0%"
                     "       8.367\n");
    free(text);
    text = inspect(f->path, true, TR_OK);
    assert_has(text, "\"dtype\": \"int8\", \"shape\": [4, 3, 3, 3]");
    free(text);
}

static void says_the_numbers(void **state)
{
    fixture *f = *state;
    known_values(f);
    unsetenv("LC_ALL");
    unsetenv("LC_CTYPE");
    setenv("LANG", "C", 1);
    char *text = inspect(f->path, false, TR_OK);
    assert_has(text, "checkpoint of digits, written 20");
    assert_has(text, " by trireme " TR_VERSION);
    assert_has(text, "step 200, epoch 7; 198 updates, 2 skipped, 1 rollback; trained for 12.5 s");
    assert_has(text, "1437 training samples, global batch 64 in 2 micro-batches, seed 7");
    assert_has(text, "best evaluation: loss 0.7 at step 400");
    assert_has(text, "Parameters: 4 arrays, 402 values");
    assert_has(text, "  conv2d1/weight     float32[4,3,3,3]                 1           1   50.0%"
                     "        14.7\n  batchnorm1/weight"); /* in the model's order */
    assert_has(text, "  head/bias          float32[10]                    5.5       2.872    0.0%"
                     "       19.62\n");
    assert_has(text, "2 NOT FINITE");
    assert_has(text, "State: 2 arrays, 8 values\n");
    assert_has(text, "  exp_avg: 4 arrays, 402 values, norm 6\n");
    assert_has(text, "Training loss: 50 records, last 0.04 at step 490\n         2 +*\n");
    assert_has(text, "\n      0.04 +");
    assert_has(text, " step 490\n");
    assert_has(text, "         400          0.7     80.00%          -  best\n");
    assert_has(text, "               0 30  1  2   90.9%\n"); /* 30 of 33 */
    assert_null(strstr(text, "DAMAGED"));
    free(text);
    setenv("LC_ALL", "C.UTF-8", 1);
    text = inspect(f->path, false, TR_OK);
    assert_has(text, "         2 ┤\xe2"); /* braille */
    free(text);
}

static void json_parses(void **state)
{
    fixture *f = *state;
    f->snapshot.config_text =
        "name: \"a\\\"b\\\\c\\x01\"\nx: \xff\xc0\x80 \xed\xa0\x80 \xe2\x82\xac\ty\n";
    known_values(f);
    char *text = inspect(f->path, true, TR_OK);
    assert_json(text);
    assert_has(text, "\"ok\": true,\n \"faults\": []");
    assert_has(text, "\"name\": null"); /* that text is no YAML: the bytes are bad */
    assert_has(text, "\\ufffd\\ufffd\\ufffd \\ufffd\\ufffd\\ufffd \xe2\x82\xac\\u0009y\\n");
    assert_has(text, "\"plateau_best\": null");
    assert_has(text, "\"dtype\": \"float32\", \"shape\": [10]");
    assert_has(text, "\"mean\": 5.5, \"std\": 2.8722813232690143, \"min\": 1, \"max\": 10, "
                     "\"norm\": 19.621416870348583, \"sparsity\": 0, \"nonfinite\": 0}");
    assert_has(text, "\"sparsity\": 0.5, ");
    assert_has(text, "\"eval_top5\": [null, null, null, null, null]");
    assert_has(text, "\"confusion\": [[30, 1, 2], [3, 34, 5], [6, 7, 38]]");
    free(text);
}

/* Names from a file must not command the terminal. */
static void terminal_is_safe(void **state)
{
    fixture *f = *state;
    f->snapshot.config_text = "name: \"\\e[2J\\x07\\x9bH\"\n";
    assert_ok(tr_store_write(f->path, &f->model, &f->snapshot, NULL));
    char *text = inspect(f->path, false, TR_OK);
    assert_has(text, "checkpoint of \\x1b[2J\\x07\\x9bH, written");
    assert_null(strchr(text, 0x1b));
    assert_null(strchr(text, 0x07));
    free(text);
    text = inspect(f->path, true, TR_OK);
    assert_json(text);
    assert_has(text, "\"name\": \"\\u001b[2J\\u0007");
    free(text);
}

static void flip(fixture *f, const char *where)
{
    tr_index ix;
    assert_ok(tr_index_open(f->path, &ix));
    const tr_entry *e = tr_index_find(&ix, where);
    assert_non_null(e);
    FILE *file = fopen(f->path, "r+b");
    fseek(file, (long)e->offset, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, (long)e->offset, SEEK_SET);
    fputc(byte ^ 0x40, file);
    fclose(file);
    tr_index_close(&ix);
}

static void shows_damage_and_the_rest(void **state)
{
    fixture *f = *state;
    known_values(f);
    flip(f, "/model/params/head/bias");
    char *text = inspect(f->path, false, TR_FILE);
    assert_non_null(strstr(tr_last_error()->text, "/model/params/head/bias: damaged: checksum"));
    assert_has(text, "  head/bias          DAMAGED\n");
    assert_has(text, "50.0%        14.7\n");
    assert_has(text, "90.9%\n");
    assert_has(text, "\nDAMAGED: 1\n  /model/params/head/bias: damaged: checksum ");
    free(text);
    flip(f, "/history/loss");
    flip(f, "/optimizer/exp_avg/head/weight");
    text = inspect(f->path, false, TR_FILE);
    assert_has(text, "\nDAMAGED: 3\n");
    assert_has(text, "norm 6, 1 DAMAGED\n");
    assert_has(text, "the history is not shown: /history/loss: damaged");
    free(text);
    text = inspect(f->path, true, TR_FILE);
    assert_json(text);
    assert_has(text, "\"ok\": false");
    assert_has(text, "\"ok\": false, \"fault\": \"/model/params/head/bias: damaged: checksum ");
    free(text);
}

/* What is wrong is said without the file's name, however long that is. */
static void damage_behind_a_long_path(void **state)
{
    fixture *f = *state;
    char path[4 * TR_ERROR_TEXT];
    size_t n = (size_t)snprintf(path, sizeof path, "%s/", f->folder);
    while (n < 2 * TR_ERROR_TEXT) n += (size_t)snprintf(path + n, 3, "./");
    snprintf(path + n, sizeof path - n, "a.h5");
    known_values(f);
    flip(f, "/history/loss");
    char *text = inspect(path, true, TR_FILE);
    assert_json(text);
    assert_has(text, "\"faults\": [\"/history/loss: damaged: checksum ");
    free(text);
}

static void differences(void **state)
{
    fixture *f = *state;
    char other[96];
    bool same;
    known_values(f);
    char *text = diff(f->path, f->path, false, &same);
    assert_true(same);
    assert_has(text, "Attributes\n  identical\n");
    assert_has(text, "Same: 25 arrays identical, 0 not\n");
    free(text);

    /* another wall time and parent: still the same */
    snprintf(other, sizeof other, "%s/b.h5", f->folder);
    f->snapshot.train.seconds = 99;
    f->snapshot.parent_sha256[0] = 0;
    f->steps[3].seconds = 77;
    assert_ok(tr_store_write(other, &f->model, &f->snapshot, NULL));
    text = diff(f->path, other, false, &same);
    assert_true(same);
    assert_has(text, "/train@seconds: 12.5 | 99  (does not count)\n");
    assert_has(text, "Same: 24 arrays identical, 0 not, 1 that does not count\n");
    free(text);

    /* conv: norm sqrt(216); 3 added to one element: max 3, relative 3 / 14.697 = 0.2041 */
    f->p[320] += 3;
    f->snapshot.train.step = 201;
    f->snapshot.config_text = "name: digits\nseed: 8\n";
    assert_ok(tr_store_write(other, &f->model, &f->snapshot, NULL));
    text = diff(f->path, other, false, &same);
    assert_false(same);
    assert_has(text,
               "/model/params/conv2d1/weight                 differs: max abs 3, relative norm "
               "0.2041\n");
    assert_has(text, "/train@step: 200 | 201\n");
    assert_has(text, "/@config: line 2: seed: 7 | seed: 8\n");
    assert_has(
        text,
        "Different: 23 arrays identical, 1 not, 1 that does not count; 3 attributes differ\n");
    free(text);
    text = diff(f->path, other, true, &same);
    assert_json(text);
    assert_false(same);
    assert_has(text, "{\"path\": \"/model/params/conv2d1/weight\", \"status\": \"differs\", "
                     "\"max_abs\": 3, \"relative_norm\": 0.2041");
    assert_has(text, "\"same\": false}");
    free(text);

    f->params[3].dims[0] = 5;
    f->snapshot.checkpoint = false;
    assert_ok(tr_store_write(other, &f->model, &f->snapshot, NULL));
    text = diff(f->path, other, false, &same);
    assert_false(same);
    assert_has(text, "shape: float32[10] | float32[5]\n");
    assert_has(text, "/optimizer/exp_avg/head/bias                 only in the first\n");
    assert_has(text, "/@kind: checkpoint | model\n");
    free(text);

    flip(f, "/model/state/batchnorm1/running_var");
    text = diff(f->path, f->path, true, &same);
    assert_json(text);
    assert_false(same); /* two damaged arrays are not the same, even the same two */
    assert_has(text, "\"/model/state/batchnorm1/running_var\", \"status\": \"damaged\"");
    free(text);
    assert_int_equal(tr_store_diff(f->path, "store-nowhere.h5", false, stdout, &same), TR_IO);
    assert_false(same);
}

static void plots(void **state)
{
    (void)state;
    const double x[] = {0, 1, 2, NAN, 4}, y[] = {0, 10, NAN, 3, 5};
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    assert_ok(tr_plot(x, y, 5, 21, 3, false, "x", to));
    fclose(to);
    assert_string_equal(text, "        10 +  *******\n" /* from (1, 10) to (4, 5) */
                              "         5 + *       *\n"
                              "         0 +*\n"
                              "           +----------\n"
                              "            0      x 4\n");
    free(text);
    /* 20 x 8 dots: the row is 7 - floor(7 k / 19) in column k */
    const double up[] = {0, 1};
    to = open_memstream(&text, &n);
    assert_ok(tr_plot(up, up, 2, 22, 2, true, "x", to));
    fclose(to);
    assert_string_equal(text, "         1 ┤     ⢀⣀⠤⠔⠊\n"
                              "         0 ┤⣀⡠⠤⠒⠊⠁\n"
                              "           └──────────\n"
                              "            0      x 1\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(says_stored_types, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(says_the_numbers, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(json_parses, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(terminal_is_safe, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(shows_damage_and_the_rest, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(damage_behind_a_long_path, fixture_open, fixture_close),
        cmocka_unit_test_setup_teardown(differences, fixture_open, fixture_close),
        cmocka_unit_test(plots),
    };
    return cmocka_run_group_tests_name("store: inspect", tests, NULL, NULL);
}
