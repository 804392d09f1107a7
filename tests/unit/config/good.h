/* A config that is fine, and opening texts, for the tests of this room. */
#ifndef TEST_CONFIG_GOOD_H
#define TEST_CONFIG_GOOD_H

#include "runtime/config/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *const GOOD =
    "name: digits\n"
    "seed: 7\n"
    "output: out/digits\n"
    "device: cpu\n"
    "data:\n"
    "  train: {path: data/digits.h5, inputs: x_train, labels: y_train}\n"
    "  eval: {path: data/digits.h5, inputs: x_test, labels: y_test, samples: 100}\n"
    "  normalize: {mean: 0.5, std: [16.0, 8, 4]}\n"
    "  augment: {crop: 2, flip: true}\n"
    "  workers: 3\n"
    "  drop_last: true\n"
    "model:\n"
    "  input: [3, 8, 8]\n"
    "  layers:\n"
    "    - conv2d: {out: 32, kernel: 3, bias: false}\n"
    "    - batchnorm\n"
    "    - residual:\n"
    "        body: [relu, {linear: {out: 10, name: \"head: 1\"}}]\n"
    "        shortcut: []\n"
    "    - flatten: {}\n"
    "  loss: {cross_entropy: {label_smoothing: 0.1, class_weights: [1, 2, .5]}}\n"
    "  init: xavier\n"
    "train:\n"
    "  epochs: 20\n"
    "  batch: 64\n"
    "  micro_batch: 16\n"
    "  precision: fp16\n"
    "  clip_norm: 1.5\n"
    "  optimizer: {sgd: {lr: 1e-1, momentum: 0.9, nesterov: true}}\n"
    "  schedule: {step: {milestones: [10, 15], warmup: 5}}\n"
    "  recompute: {every: 2}\n"
    "  checkpoint: {every_steps: 200, keep: all}\n"
    "  early_stop: {patience: 4}\n"
    "  on_nonfinite: rollback\n"
    "run: {threads: 2, collectives: shared, wire: bf16, timeout: 20}\n"
    "pipeline: [train]\n";

/* Stages as a program would hand them in: without options, with one, with several. */
typedef struct {
    int64_t rounds;
    double amount;
    char *layer;
} good_prune;
static const tr_field good_prune_fields[] = {
    TR_INT("rounds", offsetof(good_prune, rounds), "3", 1, 9, NULL, "how often"),
    TR_REAL("amount", offsetof(good_prune, amount), NULL, 0, 1, NULL, "share of the weights"),
    TR_TEXT("layer", offsetof(good_prune, layer), "", "this one alone"),
    TR_END,
};
static const tr_field good_bits_fields[] = {
    TR_INT("bits", 0, "8", 1, 16, NULL, "of a weight"),
    TR_END,
};
static const tr_variant_def STAGES[] = {
    {.name = "train", .doc = "Trains"},
    {.name = "prune", .fields = good_prune_fields, .size = sizeof(good_prune), .doc = "Prunes"},
    {.name = "quantize", .fields = good_bits_fields, .size = sizeof(int64_t), .doc = "Rounds"},
    {.name = NULL}};

__attribute__((unused)) static tr_status open_with(const char *text, const char *const *overrides,
                                                   size_t n, tr_config **out)
{
    *out = NULL;
    return tr_config_open("c.yaml", text, strlen(text), overrides, n, STAGES, out);
}

__attribute__((unused)) static tr_config *open_good(const char *override)
{
    tr_config *c = NULL;
    tr_status st = open_with(GOOD, &override, override != NULL, &c);
    if (st != TR_OK) fail_msg("%s", tr_last_error()->text);
    return c;
}

/* The good config with one override fails with exactly this text. */
__attribute__((unused)) static void refuse(const char *text, const char *override,
                                           const char *expected)
{
    tr_config *c = NULL;
    size_t held = tr_mem_held(TR_MEM_OTHER);
    tr_status st = open_with(text, &override, override != NULL, &c);
    if (st == TR_OK) {
        tr_config_close(c);
        fail_msg("accepted, expected: %s", expected);
    }
    assert_string_equal(tr_last_error()->text, expected);
    assert_int_equal(tr_status_exit_code(st), 2);
    assert_null(c);
    assert_int_equal(tr_mem_held(TR_MEM_OTHER), held);
}

/* `text` with the first `from` replaced by `to`; freed by the caller. */
__attribute__((unused)) static char *with(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    assert_non_null(at);
    char *out = tr_sprintf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    assert_non_null(out);
    return out;
}

#endif
