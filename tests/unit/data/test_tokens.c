/* Windows of texts and token files, against what they are by hand: strides, documents, lengths, types, what is held out,
 * bad files. */
#include "helpers.h"

enum { T = 4, TOKENS = 19 };

/* Reads (T) ids of 256, has (T, 256) classes. */
static void open_world(world *w, const char *path, int format)
{
    world_open(w, 1, (int64_t[]){T}, 256);
    w->inputs[0].ids = 256;
    w->m.rows = T;
    w->m.outputs = 256 * T;
    w->m.ndim_target = 1;
    w->m.target_dims[0] = T;
    w->c.data.train = (tr_source_config){
        .path = (char *)path, .format = format, .documents = -1, .present = true};
}

static uint32_t token(uint64_t i)
{
    return (uint32_t)(i * 37 % 251);
}

static void write_tokens(const world *w, const char *name, size_t size, uint64_t n,
                         const void *head, size_t nhead)
{
    static uint8_t bytes[8192];
    memcpy(bytes, head, nhead);
    for (uint64_t i = 0; i < n; i++)
        for (size_t b = 0; b < size; b++)
            bytes[nhead + i * size + b] = (uint8_t)((uint64_t)token(i) >> (8 * b));
    write_bytes(w, name, bytes, nhead + n * size);
}

/* Samples are windows of TOKENS tokens. */
static void check_windows(const world *w, uint64_t stride)
{
    tr_dataset *d = opens(w);
    assert_int_equal(tr_dataset_samples(d), (TOKENS - T - 1) / stride + 1);
    for (uint64_t i = 0; i < tr_dataset_samples(d); i++)
        for (size_t e = 0; e < T; e++) {
            assert_int_equal(input_at(d, 0, i, e), token(i * stride + e));
            assert_int_equal(target_at(d, i, e), token(i * stride + e + 1));
        }
    tr_dataset_close(d);
}

static void test_windows(void **state)
{
    (void)state;
    for (int format = TR_FORMAT_TEXT; format <= TR_FORMAT_TOKENS; format++)
        for (int64_t stride = 0; stride < 7; stride++)
            for (int cache = 0; cache < 2; cache++) {
                world w;
                open_world(&w, "a", format);
                write_tokens(&w, "a", format == TR_FORMAT_TEXT ? 1 : 2, TOKENS, "", 0);
                w.c.data.train.stride = stride;
                w.c.data.cache_mb = cache;
                check_windows(&w, stride ? (uint64_t)stride : T);
                world_close(&w);
            }
}

/* llm.c's header. */
static void header(int32_t magic, int32_t version, int32_t count, uint8_t *to)
{
    const int32_t v[3] = {magic, version, count};
    memset(to, 0, 1024);
    for (int i = 0; i < 12; i++) to[i] = (uint8_t)((uint32_t)v[i / 4] >> (8 * (i % 4)));
}

static void test_files(void **state)
{
    (void)state;
    static uint8_t head[1024];
    const char *const dicts[] = {"{'descr': '|u1', 'fortran_order': False, 'shape': (19,), }",
                                 "{'descr': '<u2', 'fortran_order': False, 'shape': (19,), }",
                                 "{'descr': '<u4', 'fortran_order': False, 'shape': (19,), }"};
    static const int types[] = {TR_TOKENS_U8, TR_TOKENS_U16, TR_TOKENS_U32};
    world w;
    open_world(&w, "a", TR_FORMAT_TOKENS);
    header(20240520, 1, TOKENS, head);
    write_tokens(&w, "a", 2, TOKENS, head, sizeof head);
    check_windows(&w, T);
    w.c.data.train.dtype = TR_TOKENS_U32;
    fails(&w, TR_DATA, "a: its tokens are uint16 by its header, expected uint32", NULL);
    w.c.data.train.dtype = TR_TOKENS_AUTO;
    header(20240801, 7, TOKENS, head);
    write_tokens(&w, "a", 4, TOKENS, head, sizeof head);
    check_windows(&w, T);
    for (size_t i = 0; i < TR_COUNT(types); i++) {
        const size_t n = make_npy(head, 1, dicts[i], NULL, 0);
        w.c.data.train.dtype = TR_TOKENS_AUTO;
        write_tokens(&w, "a", (size_t)1 << i, TOKENS, head, n);
        check_windows(&w, T);
        w.c.data.train.dtype = types[i];
        write_tokens(&w, "a", (size_t)1 << i, TOKENS, "", 0);
        check_windows(&w, T);
    }
    world_close(&w);
}

/* Files that count as one, of any of the formats, in the order given or by name. */
static void test_several(void **state)
{
    (void)state;
    static uint8_t head[1024];
    static const char *const ways[] = {"a0,a1, a2", "a?", "a[0-1],a2", "a0,a[12]"};
    static const uint64_t ends[] = {0, 7, 8, TOKENS};
    world w;
    open_world(&w, "a", TR_FORMAT_TOKENS);
    for (int k = 0; k < 3; k++) {
        const uint64_t n = ends[k + 1] - ends[k];
        uint8_t bytes[2 * TOKENS];
        for (uint64_t i = 0; i < n; i++) {
            bytes[2 * i] = (uint8_t)token(ends[k] + i);
            bytes[2 * i + 1] = 0;
        }
        header(20240520, 1, (int32_t)n, head);
        static uint8_t all[1024 + 2 * TOKENS];
        const size_t front = k == 1 ? 0 : 1024;
        memcpy(all, head, front);
        memcpy(all + front, bytes, (size_t)(2 * n));
        write_bytes(&w, (const char *[]){"a0", "a1", "a2"}[k], all, front + (size_t)(2 * n));
    }
    for (size_t i = 0; i < TR_COUNT(ways); i++)
        for (int cache = 0; cache < 2; cache++)
            for (int64_t stride = 1; stride < 6; stride++) {
                w.c.data.train.path = (char *)ways[i];
                w.c.data.train.stride = stride;
                w.c.data.cache_mb = cache;
                check_windows(&w, (uint64_t)stride);
            }
    w.c.data.train.stride = 0;
    w.m.classes = 200; /* token 6 is 222, the last of the first file */
    fails(&w, TR_DATA, "window 1, from ", "a0: sample 5 (byte 1034): element 1: label 222", NULL);
    w.m.classes = 256;
    w.c.data.train.path = (char *)"a0,a3";
    write_tokens(&w, "a3", 4, TOKENS, head, 0);
    header(20240801, 7, TOKENS, head);
    write_tokens(&w, "a3", 4, TOKENS, head, sizeof head);
    fails(&w, TR_DATA, "a3: its tokens are uint32, expected uint16, as those of ", "a0", NULL);
    header(20240520, 1, INT32_MAX, head);
    write_tokens(&w, "a3", 2, TOKENS, head, sizeof head);
    fails(&w, TR_DATA, "a3: has 1062 bytes, expected ", "cut short", NULL);
    w.c.data.train.path = (char *)"a0,b*";
    fails(&w, TR_DATA, "data.train.path: no file is like ", "b*", NULL);
    w.c.data.train.path = (char *)"a0,,a1";
    fails(&w, TR_CONFIG, "data.train.path: a file name between commas is missing", NULL);
    write_tokens(&w, "a[0],", 2, TOKENS, "", 0); /* is called so */
    w.c.data.train.path = (char *)"a[0],";
    check_windows(&w, T);
    world_close(&w);
}

/* Of a large file any third that has numbers tells. */
static void wide_somewhere(world *w)
{
    enum { THIRD = 1 << 16 };
    static uint8_t bytes[3 * THIRD];
    for (int k = 0; k < 3; k++) {
        memset(bytes, 0, sizeof bytes);
        for (size_t i = 0; i < THIRD; i += 4) bytes[(size_t)k * THIRD + i] = (uint8_t)(1 + i % 200);
        write_bytes(w, "a", bytes, sizeof bytes);
        fails(w, TR_DATA, "a: looks like tokens of 32 bits, which dtype has to say", NULL);
    }
}

/* What is 32 or 64 bits a number is not taken for 16, which is read where nobody says; of these, small ids beside each other
 * are none. */
static void test_widths(void **state)
{
    (void)state;
    enum { MANY = 40 };
    static const struct {
        size_t size;
        uint64_t tokens;
        int type;
        const char *why;
    } cases[] = {
        {4, MANY, TR_TOKENS_AUTO, "a: looks like tokens of 32 bits, which dtype has to say"},
        {8, MANY, TR_TOKENS_AUTO, "a: looks like numbers of 64 bits, expected tokens of 8, 16"},
        {4, MANY, TR_TOKENS_U32, NULL},
        {4, MANY, TR_TOKENS_U16, NULL},
        {8, MANY, TR_TOKENS_U16, NULL},
        {2, 2 * MANY, TR_TOKENS_AUTO, NULL},
        {4, TOKENS, TR_TOKENS_AUTO, NULL}}; /* too few to tell */
    world w;
    open_world(&w, "a", TR_FORMAT_TOKENS);
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        write_tokens(&w, "a", cases[i].size, cases[i].tokens, "", 0);
        w.c.data.train.dtype = cases[i].type;
        if (cases[i].why)
            fails(&w, TR_DATA, cases[i].why, NULL);
        else
            tr_dataset_close(opens(&w));
    }
    uint8_t bases[4 * MANY] = {0};
    for (size_t i = 0; i < sizeof bases; i += 2) bases[i] = (uint8_t)(token(i) % 5);
    w.c.data.train.dtype = TR_TOKENS_AUTO;
    write_bytes(&w, "a", bases, sizeof bases);
    tr_dataset_close(opens(&w));
    wide_somewhere(&w);
    world_close(&w);
}

static void test_bad_files(void **state)
{
    (void)state;
    static uint8_t head[1024];
    world w;
    open_world(&w, "a", TR_FORMAT_TOKENS);
    header(20240520, 1, TOKENS + 1, head);
    write_tokens(&w, "a", 2, TOKENS, head, sizeof head);
    fails(&w, TR_DATA,
          "a: has 1062 bytes, expected 1064 by its header (20 of 2 bytes each, from byte 1024)",
          "cut short", NULL);
    header(20240520, 3, TOKENS, head);
    write_tokens(&w, "a", 2, TOKENS, head, sizeof head);
    fails(&w, TR_DATA, "a: byte 4: version 3", "expected 1", NULL);
    write_bytes(&w, "a", "abc", 3);
    fails(&w, TR_DATA, "a: has 3 bytes, expected a multiple of 2", "uint16", NULL);
    write_bytes(&w, "a", "", 0);
    fails(&w, TR_DATA, "a: is empty", NULL);
    write_tokens(&w, "a", 2, T, "", 0);
    fails(&w, TR_DATA, "a: has 4 tokens, expected at least 5", NULL);
    const size_t n = make_npy(head, 1, "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }",
                              "0123456701234567", 16);
    write_bytes(&w, "a", head, n);
    fails(&w, TR_DATA, "int64", "one dimension of uint8, uint16 or uint32", NULL);
    write_tokens(&w, "a", 2, TOKENS, "", 0);
    w.m.classes = 200; /* token 10 is 119, token 6 is 222 */
    fails(&w, TR_DATA, "a: window 1 (from byte 10, token 5)", "element 1: label 222", "0 to 199",
          NULL);
    w.m.rows = 1;
    fails(&w, TR_CONFIG, "data.train.format", "a class for each position", NULL);
    world_close(&w);
}

/* What changes, or ends, while it is read. */
static void test_changing(void **state)
{
    (void)state;
    char scratch[64];
    const void *raw;
    world w;
    open_world(&w, "a", TR_FORMAT_TEXT);
    write_tokens(&w, "a", 1, TOKENS, "", 0);
    w.c.data.cache_mb = 0;
    tr_dataset *d = opens(&w);
    assert_int_equal(truncate(in_folder(&w, "a"), 9), 0);
    assert_int_equal(tr_array_at(d->inputs[0], 2, scratch, &raw), TR_DATA);
    assert_non_null(strstr(tr_last_error()->text, "a: ends at byte 9"));
    tr_dataset_close(d);
    world_close(&w);
}

/* Separators are 0. cut > 0: that many bytes are in a file of their own. */
static void check_documents(const char *text, size_t n, size_t cut, size_t samples,
                            const char *const *inputs, const char *const *labels)
{
    world w;
    open_world(&w, cut ? "b?" : "a", cut ? TR_FORMAT_TOKENS : TR_FORMAT_TEXT);
    w.m.ninputs = 2;
    w.inputs[1] = (tr_input){.name = "lengths", .ndim = 1, .dims = {1}, .ids = T + 1};
    w.c.data.train.documents = 0;
    if (cut) w.c.data.train.dtype = TR_TOKENS_U8;
    write_bytes(&w, cut ? "b1" : "a", text, cut ? cut : n);
    if (cut) write_bytes(&w, "b2", text + cut, n - cut);
    fails(&w, TR_CONFIG, "data.train.documents", "ignore_index", NULL);
    w.c.model.loss.ignore_index = -100;
    tr_dataset *d = opens(&w);
    assert_int_equal(tr_dataset_samples(d), samples);
    for (size_t i = 0; i < samples; i++) {
        const size_t count = (size_t)input_at(d, 1, i, 0);
        for (size_t e = 0; e < T; e++) {
            assert_int_equal(input_at(d, 0, i, e), e < count ? inputs[i][e] : 0);
            assert_int_equal(target_at(d, i, e), e < count ? labels[i][e] : -100);
        }
        assert_true(count >= 1 && count <= T);
    }
    tr_dataset_close(d);
    world_close(&w);
}

static void test_documents(void **state)
{
    (void)state;
    /* separators behind documents, before them, two in a row, at both ends */
    check_documents("ab\0cdefgh\0i", 11, 0, 4, (const char *[]){"ab", "\0cde", "fgh", "\0"},
                    (const char *[]){"b\0", "cdef", "gh\0", "i"});
    check_documents("\0ab\0\0cdefg\0", 11, 0, 3, (const char *[]){"\0ab", "\0cde", "fg"},
                    (const char *[]){"ab\0", "cdef", "g\0"});
    check_documents("abcdefghi", 9, 0, 2, (const char *[]){"abcd", "efgh"},
                    (const char *[]){"bcde", "fghi"});
    /* a file's end is a document's, whether a separator is there or behind, or none, or the file has one token */
    check_documents("ab\0cd\0", 6, 3, 2, (const char *[]){"ab", "cd"},
                    (const char *[]){"b\0", "d\0"});
    check_documents("\0ab\0cd", 6, 3, 2, (const char *[]){"\0a", "\0c"},
                    (const char *[]){"ab", "cd"});
    check_documents("abcdefg", 7, 2, 2, (const char *[]){"a", "cdef"},
                    (const char *[]){"b", "defg"});
    check_documents("abcd", 4, 1, 1, (const char *[]){"bc"}, (const char *[]){"cd"});
    /* empty documents make none, wherever they are: of separators in a row the last is an input, the first a label */
    check_documents("\0\0ab\0\0\0cd\0\0", 11, 0, 2, (const char *[]){"\0ab", "\0cd"},
                    (const char *[]){"ab\0", "cd\0"});
}

/* A separator that the tokens' type does not hold, or the embedding has no row for. */
static void test_separators(void **state)
{
    (void)state;
    static const struct {
        int type;
        int64_t id, rows, most;
        const char *why;
    } cases[] = {{TR_TOKENS_U8, 256, 300, 255, "a has tokens of uint8"},
                 {TR_TOKENS_AUTO, 65536, 70000, 65535, "a has tokens of uint16"},
                 {TR_TOKENS_AUTO, 65536, 256, 65535, "a has tokens of uint16"},
                 {TR_TOKENS_U32, INT32_MAX, 256, 255, "reads it has 256 rows"},
                 {TR_TOKENS_AUTO, 256, 256, 255, "reads it has 256 rows"}};
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        char range[80];
        world w;
        open_world(&w, "a", TR_FORMAT_TOKENS);
        write_tokens(&w, "a", 4, TOKENS, "", 0);
        w.c.model.loss.ignore_index = -100;
        w.c.data.train.dtype = cases[i].type;
        w.inputs[0].ids = cases[i].rows;
        w.c.data.train.documents = cases[i].id;
        snprintf(range, sizeof range, "found %" PRId64 ", expected an id from 0 to %" PRId64 ": ",
                 cases[i].id, cases[i].most);
        fails(&w, TR_CONFIG, "test.yaml:1:1: data.train.documents: ", range, cases[i].why, NULL);
        world_close(&w);
    }
}

/* What is evaluated: targets [from, to) count once each, behind their own tokens, and no others. Windows are `stride` apart,
 * and as few as do. `ignored` is the label of those that do not count. */
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

/* data.split holds out the tokens of the last windows, whatever of them training would have made, and evaluates each once;
 * training has no token in common with their inputs and labels but one label. */
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

/* Labels of what stays in the file are looked at as they are read, also where rows of data.split are held; of what is
 * held at the start, however many labels overlapping windows have. */
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

/* Where documents begin takes what it needs and no more, once for all arrays, whether the file is held or not. */
static void test_index(void **state)
{
    (void)state;
    enum { PIECES = 1500 };
    static char text[2 * PIECES + 1];
    for (size_t i = 0; i < sizeof text; i++) text[i] = i % 2 ? 'a' : 0;
    for (int cache = 0; cache < 2; cache++) {
        world w;
        open_world(&w, "a", TR_FORMAT_TEXT);
        w.c.data.train.documents = 0;
        w.c.data.cache_mb = cache;
        w.c.model.loss.ignore_index = -100;
        write_bytes(&w, "a", text, sizeof text);
        const size_t before = tr_mem_held(TR_MEM_DATA);
        tr_dataset *d = opens(&w);
        assert_int_equal(tr_dataset_samples(d), PIECES);
        const size_t held =
            PIECES * (sizeof(uint64_t) + sizeof(uint32_t)) + (cache ? sizeof text : 0);
        assert_int_equal(tr_dataset_held(d), held);
        assert_int_equal(tr_mem_held(TR_MEM_DATA) - before, held);
        tr_dataset_close(d);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),      cmocka_unit_test(test_files),
        cmocka_unit_test(test_bad_files),    cmocka_unit_test(test_changing),
        cmocka_unit_test(test_documents),    cmocka_unit_test(test_split),
        cmocka_unit_test(test_once),         cmocka_unit_test(test_looked_at),
        cmocka_unit_test(test_index),        cmocka_unit_test(test_several),
        cmocka_unit_test(test_split_of_one), cmocka_unit_test(test_separators),
        cmocka_unit_test(test_widths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
