/* Windows of texts and token files, against what they are by hand: strides, types, several files as
 * one, bad files. */
#include "token_windows.h"

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

/* What is 32 or 64 bits a number is not taken for 16, which is read where nobody says; of these,
 * small ids beside each other are none. */
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

/* What begins as a header that is damaged or cut is told as that, and is no tokens. */
static void bad_headers(world *w)
{
    static uint8_t head[1024];
    header(20240520, 1, -1, head);
    write_tokens(w, "a", 2, TOKENS, head, sizeof head);
    fails(w, TR_DATA, "a: byte 8: a count of -1 tokens", "there are 19", NULL);
    write_bytes(w, "a", head, 700);
    fails(w, TR_DATA, "a: has 700 bytes", "whose header has 1024: it is cut short", NULL);
    header(20240521, 1, TOKENS, head);
    write_tokens(w, "a", 2, TOKENS, head, sizeof head);
    fails(w, TR_DATA, "a: byte 0: 20240521", "expected the magic 20240520", NULL);
    w->c.data.train.dtype = TR_TOKENS_U16; /* who says so has it read */
    fails(w, TR_DATA, "a: window 0 (from byte 2, token 1): element 0: label 308", NULL);
    w->c.data.train.dtype = TR_TOKENS_AUTO;
    head[1023] = 1; /* numbers */
    write_tokens(w, "a", 2, TOKENS, head, sizeof head);
    fails(w, TR_DATA, "a: window 0 (from byte 2, token 1): element 0: label 308", NULL);
    header(20240521, 1, TOKENS + 1, head);
    write_tokens(w, "a", 2, TOKENS, head, sizeof head);
    fails(w, TR_DATA, "a: window 0 (from byte 2, token 1): element 0: label 308", NULL);
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
    bad_headers(&w);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),   cmocka_unit_test(test_files),
        cmocka_unit_test(test_several),   cmocka_unit_test(test_widths),
        cmocka_unit_test(test_bad_files), cmocka_unit_test(test_changing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
