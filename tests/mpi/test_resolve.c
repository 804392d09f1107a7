/* ranks: 2 */
/* What is found in data for the config (normalize: auto, class_weights: balanced), where one rank's
 * allocations fail in turn: all ranks hear of it, and none keeps anything. */
#include "modes.h"

#include <string.h>

#include "trainer/loop/resolve.h"
#include "trainer/models/train_model.h"

static const char text[] =
    "name: found\noutput: out\nseed: 1\ndata:\n  normalize: auto\n"
    "  train: {format: synthetic, samples: 6, classes: 3}\n"
    "model: {input: [5], layers: [{linear: {out: 3}}], loss: {cross_entropy: {class_weights: "
    "balanced}}}\ntrain: {steps: 1, batch: 4, optimizer: {sgd: {lr: 0.1}}}\n";

static size_t held(void)
{
    size_t sum = 0;
    for (int k = 0; k < TR_MEM_KINDS; k++) sum += tr_mem_held((tr_mem_kind)k);
    return sum;
}

static void nothing_is_left(void **state)
{
    (void)state;
    tr_comm *c = open_mode(&modes[0], 30);
    const tr_topology *t = tr_comm_topology(c);
    tr_config *config = NULL, *resolved = NULL;
    tr_model *m = NULL;
    assert_int_equal(tr_config_open("found.yaml", text, strlen(text), NULL, 0, NULL, &config),
                     TR_OK);
    assert_int_equal(tr_train_model(config, &m), TR_OK);
    assert_int_equal(tr_data_resolve(c, config, m, NULL, &resolved), TR_OK);
    assert_non_null(resolved);
    tr_config_close(resolved);
    const size_t before = held();
    int failed = 0;
    for (uint64_t n = 1;; n++) {
        if (t->rank == t->size - 1) tr_mem_fail_at(n);
        const tr_status st = tr_data_resolve(c, config, m, NULL, &resolved);
        tr_mem_fail_at(0);
        if (st == TR_OK) break;
        failed++;
        if (st != (t->rank == t->size - 1 ? TR_MEMORY : TR_PEER))
            fail_msg("allocation %d: %s", (int)n, tr_last_error()->text);
        if (held() != before)
            fail_msg("allocation %d: %zd bytes are left", (int)n, (ssize_t)(held() - before));
    }
    assert_true(failed > 20);
    tr_config_close(resolved);
    assert_true(held() == before);
    tr_model_close(m);
    tr_config_close(config);
    tr_comm_close(c);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_left)};
RUN_MPI_TESTS(tests)
