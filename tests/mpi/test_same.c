/* ranks: 1 2 3 4 */
/* Texts that must be the same on all ranks: the first line that differs is told, and whose it
 * is. Resolved configs are such. */
#include "modes.h"

#include <string.h>
#include <unistd.h>

#include "trainer/pipeline/job.h"

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

static tr_config *config_of(const char *rate, const char *folder)
{
    char *text = tr_sprintf(
        "name: same\noutput: %s\nseed: 1\ndata: {train: {format: synthetic, samples: 6, classes: "
        "3}}\nmodel: {input: [5], layers: [{linear: {out: 3}}], loss: cross_entropy}\n"
        "train: {steps: 1, batch: 4, optimizer: {sgd: {lr: %s}}}\n",
        folder, rate);
    tr_config *c = NULL;
    assert_non_null(text);
    assert_int_equal(tr_config_open("same.yaml", text, strlen(text), NULL, 0, NULL, &c), TR_OK);
    tr_free(text);
    return c;
}

/* What each rank's program made of the config, before a job writes anything. */
static void test_config(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], 30);
    const tr_topology *t = tr_comm_topology(c);
    char folder[64];
    snprintf(folder, sizeof folder, "same-config-%d", t->size);
    for (int other = 0; other <= t->size; other++) { /* the last time: nobody */
        const bool differs = other < t->size && t->size > 1;
        bool agreed = false;
        tr_settled settled;
        tr_config *config = config_of(t->rank == other ? "0.25" : "0.5", folder);
        tr_status st = tr_settled_open(c, config, NULL, &settled);
        tr_settled_close(&settled);
        assert_int_equal(st, differs ? TR_USAGE : TR_OK);
        if (differs) {
            const tr_job job = {.comm = c, .config = config, .quiet = true};
            const char *said = tr_last_error()->text;
            st = tr_job_run(&job, &agreed);
            assert_int_equal(st, TR_USAGE);
            assert_true(agreed);
            assert_non_null(strstr(said, "the resolved config is not the same on all ranks: "));
            assert_non_null(strstr(said, other == 0 ? "lr: 0.25\", rank " : "lr: 0.5\", rank "));
            assert_non_null(strstr(said, other == 0 ? "lr: 0.5\"; unlike" : "lr: 0.25\"; unlike"));
            assert_int_equal(access(folder, F_OK), -1);
        }
        tr_config_close(config);
    }
    tr_comm_close(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_one_line),
    cmocka_unit_test(test_longer),
    cmocka_unit_test(test_long_line),
    cmocka_unit_test(test_config),
};

RUN_MPI_TESTS(tests)
