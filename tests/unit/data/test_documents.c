/* Windows of documents: where each begins and ends, their lengths, separators, what their index
 * takes. */
#include "token_windows.h"

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
    /* a file's end is a document's, whether a separator is there or behind, or none, or the file
     * has one token */
    check_documents("ab\0cd\0", 6, 3, 2, (const char *[]){"ab", "cd"},
                    (const char *[]){"b\0", "d\0"});
    check_documents("\0ab\0cd", 6, 3, 2, (const char *[]){"\0a", "\0c"},
                    (const char *[]){"ab", "cd"});
    check_documents("abcdefg", 7, 2, 2, (const char *[]){"a", "cdef"},
                    (const char *[]){"b", "defg"});
    check_documents("abcd", 4, 1, 1, (const char *[]){"bc"}, (const char *[]){"cd"});
    /* empty documents make none, wherever they are: of separators in a row the last is an input,
     * the first a label */
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

/* Where documents begin takes what it needs and no more, once for all arrays, whether the file is
 * held or not. */
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
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_separators),
        cmocka_unit_test(test_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
