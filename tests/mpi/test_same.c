/* ranks: 1 2 3 4 */
/* Texts that must be the same on all ranks: the first line that differs is told, and whose it
 * is. */
#include "modes.h"

#include <string.h>

static char *text_of(const char *line)
{
    char *text = tr_sprintf("seed: 1\ntrain:\n  steps: %s\n  batch: 16\n", line);
    assert_non_null(text);
    return text;
}

/* One rank after the other has another line. */
static void test_one_line(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], 30);
    const tr_topology *t = tr_comm_topology(c);
    for (int other = -1; other < t->size; other++) {
        const bool differs = other >= 0 && t->size > 1;
        char *text = text_of(t->rank == other ? "7" : "6");
        const tr_status st = tr_same_text(c, TR_USAGE, "the resolved config", text);
        tr_free(text);
        if (!differs) {
            assert_int_equal(st, TR_OK);
            continue;
        }
        const char *said = tr_last_error()->text;
        assert_int_equal(st, TR_USAGE); /* all end alike */
        assert_non_null(strstr(said, "the resolved config is not the same on all ranks: rank 0 ("));
        assert_non_null(
            strstr(said, other == 0 ? "has \"  steps: 7\", rank " : "has \"  steps: 6\""));
        assert_non_null(strstr(said, other == 0 ? "has \"  steps: 6\"; unlike rank 0: 1 ("
                                                : "has \"  steps: 7\"; unlike rank 0: "));
        char *whose = tr_sprintf(other == 0 ? "unlike rank 0: 1 (" : "unlike rank 0: %d (", other);
        assert_non_null(whose);
        assert_non_null(strstr(said, whose));
        tr_free(whose);
        assert_null(strstr(said, "batch"));
        assert_false(tr_comm_broken(c));
    }
    tr_comm_close(c);
}

/* A text that goes on where rank 0's ends. */
static void test_longer(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], 30);
    const tr_topology *t = tr_comm_topology(c);
    const tr_status st =
        tr_same_text(c, TR_DATA, "the data", t->rank == t->size - 1 ? "a\nb\n" : "a\n");
    assert_int_equal(st == TR_OK, t->size == 1);
    if (st != TR_OK) assert_non_null(strstr(tr_last_error()->text, "has \"b\"; unlike rank 0: "));
    tr_comm_close(c);
}

/* Of a line that is long what differs is shown, cut between characters. */
static void test_long_line(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], 30);
    const tr_topology *t = tr_comm_topology(c);
    char text[4096] = "names: [";
    for (int i = 0; i < 300; i++) {
        const bool differs = i == 200 && t->rank == t->size - 1;
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s\xC3\xA9%03d", i ? ", " : "",
                 differs ? 999 : i);
    }
    const tr_status st = tr_same_text(c, TR_DIFFERENT, "the data", text);
    assert_int_equal(st == TR_OK, t->size == 1);
    const char *said = tr_last_error()->text;
    if (st != TR_OK) {
        assert_non_null(strstr(said, "\xC3\xA9"
                                     "200, "));
        assert_non_null(strstr(said, "\xC3\xA9"
                                     "999, "));
        assert_non_null(strstr(said, "; unlike rank 0: "));
        for (const char *p = said; (p = strchr(p, '\xA9')) != NULL; p++)
            assert_int_equal(p[-1], '\xC3');
        for (const char *p = said; (p = strchr(p, '\xC3')) != NULL; p++)
            assert_int_equal(p[1], '\xA9');
    }
    tr_comm_close(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_one_line),
    cmocka_unit_test(test_longer),
    cmocka_unit_test(test_long_line),
};

RUN_MPI_TESTS(tests)
