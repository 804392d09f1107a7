/* Which grid each of our own kernels may be launched with, and what the stand-in noted of those
 * that were. */
#ifndef TR_TEST_CUDA_GRIDS_HARNESS_H
#define TR_TEST_CUDA_GRIDS_HARNESS_H

#include "core_harness.h"

#include <stdio.h>
#include <unistd.h>

#include "kernels/cuda/loops/batchnorm.h"
#include "kernels/cuda/loops/loss.h"
#include "kernels/cuda/loops/optimizer.h"

enum { SMS = 132, ROUNDS = 24 * SMS };

typedef enum {
    ROUND, /* blocks stride: large shapes take exactly ROUNDS blocks, others no more */
    BATCH, /* batchnorm's rounds of its own: at most 12 blocks a multiprocessor, in whole tiles */
    PIECE, /* a short block a piece, dealt out as others end; any number */
    SUMS,  /* blocks leave partial sums that are added in turn: their number is fixed by the shape
              alone, and is part of the result's bits */
    FEW,   /* next to nothing to do: within one round */
} reason;

static const struct {
    const char *kernel;
    reason why;
    unsigned most; /* SUMS: blocks */
} known[] = {
    {"activation", PIECE, 0},
    {"activation_grad", PIECE, 0},
    {"add", PIECE, 0},
    {"add_to_kernel", PIECE, 0},
    {"attention", PIECE, 0},
    {"attention_delta", PIECE, 0},
    {"attention_held", PIECE, 0},
    {"attention_matrix", PIECE, 0},
    {"attention_matrix_grad_keys", PIECE, 0},
    {"attention_matrix_grad_queries", PIECE, 0},
    {"attention_grad_keys", PIECE, 0},
    {"attention_grad_queries", PIECE, 0},
    {"avg_grad_kernel", ROUND, 0},
    {"avg_kernel", ROUND, 0},
    {"avg_steps", ROUND, 0},
    {"bn_apply", BATCH, 0},
    {"bn_grad_chunks", FEW, 0},
    {"bn_grad_input", BATCH, 0},
    {"bn_grad_stats", SUMS, TR_BN_SUM_BLOCKS},
    {"bn_merge_stats", FEW, 0},
    {"bn_merge_sums", FEW, 0},
    {"bn_running", FEW, 0},
    {"bn_stats", SUMS, TR_BN_SUM_BLOCKS},
    {"bn_stats_merge", FEW, 0},
    {"cast_kernel", ROUND, 0},
    {"column_chunk_kernel", SUMS, 8 * SMS + 32},
    {"column_total_kernel", PIECE, 0},
    {"concat", PIECE, 0},
    {"cross_entropy_held", SUMS, TR_LOSS_BLOCKS},
    {"cross_entropy_long", SUMS, TR_LOSS_BLOCKS},
    {"decide", FEW, 0},
    {"dots", ROUND, 0},
    {"drop_path", PIECE, 0},
    {"dropout", PIECE, 0},
    {"elementwise", PIECE, 0},
    {"elementwise_loss", SUMS, TR_LOSS_BLOCKS},
    {"embedding", PIECE, 0},
    {"embedding_chunks", SUMS, 32 * 4096 / 8},
    {"embedding_merge", SUMS, 32 * 4096},
    {"embedding_rows", PIECE, 0},
    {"epilogue_kernel", ROUND, 0},
    {"feature_loss", SUMS, TR_LOSS_BLOCKS},
    {"find_nonfinite", ROUND, 0},
    {"from_steps", ROUND, 0},
    {"gather", PIECE, 0},
    {"global_grad_kernel", ROUND, 0},
    {"global_kernel", PIECE, 0},
    {"groupnorm", ROUND, 0},
    {"groupnorm_grad_channels", ROUND, 0},
    {"groupnorm_grad_input", ROUND, 0},
    {"lap_kernel", FEW, 0},
    {"largest", PIECE, 0},
    {"hold_rows", PIECE, 0},
    {"layernorm_grad_columns", SUMS, 8192},
    {"layernorm_grad_held", SUMS, 8192},
    {"layernorm_grad_long", ROUND, 0},
    {"layernorm_grad_sum", PIECE, 0},
    {"layernorm_held", ROUND, 0},
    {"layernorm_long", ROUND, 0},
    {"max_grad_kernel", ROUND, 0},
    {"max_kernel", ROUND, 0},
    {"measure", PIECE, 0},
    {"mul", PIECE, 0},
    {"mul_sums", PIECE, 0},
    {"nothing", FEW, 0},
    {"pack_kernel", PIECE, 0},
    {"pack_parts", ROUND, 0},
    {"pack_steps", PIECE, 0},
    {"quantize_learned", PIECE, 0},
    {"quantize_learned_grad", PIECE, 0},
    {"quantize_learned_sum", PIECE, 0},
    {"place_rows", ROUND, 0},
    {"prelu", PIECE, 0},
    {"prelu_grad_each", SUMS, 4 * 8 * SMS},
    {"prelu_grad_one", SUMS, 8 * SMS},
    {"prelu_total", PIECE, 0},
    {"class_token", ROUND, 0},
    {"quantize_rows", PIECE, 0},
    {"recurrent", PIECE, 0},
    {"recurrent_grad", PIECE, 0},
    {"requantize", ROUND, 0},
    {"rescale", ROUND, 0},
    {"resample_kernel", ROUND, 0},
    {"rotary", PIECE, 0},
    {"round_rows", PIECE, 0},
    {"soft_loss", SUMS, TR_LOSS_BLOCKS},
    {"soft_targets", SUMS, TR_LOSS_BLOCKS},
    {"sketch_kernel", ROUND, 0},
    {"softmax_grad_held", ROUND, 0},
    {"softmax_grad_long", ROUND, 0},
    {"softmax_held", ROUND, 0},
    {"settle", FEW, 0},
    {"softmax_long", ROUND, 0},
    {"store_steps", ROUND, 0},
    {"take_grad_kernel", ROUND, 0},
    {"take_kernel", PIECE, 0},
    {"sum_chunks", SUMS, TR_SQUARES_PARTS},
    {"sum_parts", FEW, 0},
    {"sum_squares", SUMS, TR_SQUARES_PARTS},
    {"swap_ema", PIECE, 0},
    {"tally_add", FEW, 0},
    {"to_f32_kernel", ROUND, 0},
    {"to_steps", ROUND, 0},
    {"transpose_gather", PIECE, 0},
    {"transpose_tiles", PIECE, 0},
    {"unpack_kernel", PIECE, 0},
    {"unpack_parts", ROUND, 0},
    {"update", PIECE, 0},
    {"window_rows", ROUND, 0},
};

static char notes[] = "/tmp/trireme-grids-XXXXXX";
static unsigned launched[TR_COUNT(known)]; /* times; of ROUND kernels with all their blocks: */
static unsigned filled[TR_COUNT(known)];

static size_t find(const char *kernel)
{
    for (size_t i = 0; i < TR_COUNT(known); i++)
        if (strcmp(known[i].kernel, kernel) == 0) return i;
    fail_msg("%s: this kernel has no line in the table of %s", kernel, __FILE__);
    return 0;
}

static void check_launch(const char *line, bool large)
{
    char kernel[64];
    unsigned g[3], d[3];
    size_t shared;
    assert_int_equal(sscanf(line, "%63s %ux%ux%u %ux%ux%u %zu", kernel, &g[0], &g[1], &g[2], &d[0],
                            &d[1], &d[2], &shared),
                     8);
    const size_t i = find(kernel), blocks = (size_t)g[0] * g[1] * g[2];
    const size_t most[] = {[ROUND] = ROUNDS,
                           [BATCH] = TR_BN_BLOCKS,
                           [PIECE] = INT32_MAX,
                           [SUMS] = known[i].most,
                           [FEW] = 8 * SMS};
    const unsigned threads = d[0] * d[1] * d[2];
    if (blocks < 1 || blocks > most[known[i].why] || threads < 1 || threads > 1024 ||
        shared > 227 * 1024)
        fail_msg("%s: %zu blocks of %u threads, %zu bytes; at most %zu blocks are expected", kernel,
                 blocks, threads, shared, most[known[i].why]);
    launched[i]++;
    if (large && blocks == ROUNDS) filled[i]++;
}

static void check_notes(bool large)
{
    char line[256];
    FILE *f = fopen(notes, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) check_launch(line, large);
    fclose(f);
    assert_int_equal(truncate(notes, 0), 0);
}

#endif
