/* The grids that our own kernels are launched with on an H100 (132 multiprocessors), at shapes of
 * real training: launches are captured and never run, and the stand-in notes their geometry. Every
 * kernel of KERNELS.md is launched; each stays within whole rounds of the device, or has one of the
 * reasons of grids_harness.h not to. */
#include "grids_harness.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/loops/arrange.h"
#include "kernels/cuda/loops/attention.h"
#include "kernels/cuda/loops/batchnorm.h"
#include "kernels/cuda/loops/cast.h"
#include "kernels/cuda/loops/dynamic.h"
#include "kernels/cuda/loops/elementwise.h"
#include "kernels/cuda/loops/embedding.h"
#include "kernels/cuda/loops/epilogue.h"
#include "kernels/cuda/loops/filter.h"
#include "kernels/cuda/loops/int8.h"
#include "kernels/cuda/loops/lap.h"
#include "kernels/cuda/loops/groupnorm.h"
#include "kernels/cuda/loops/layernorm.h"
#include "kernels/cuda/loops/linear.h"
#include "kernels/cuda/loops/loss.h"
#include "kernels/cuda/loops/optimizer.h"
#include "kernels/cuda/loops/pool.h"
#include "kernels/cuda/loops/prelu.h"
#include "kernels/cuda/loops/probe.h"
#include "kernels/cuda/loops/quantize.h"
#include "kernels/cuda/loops/quantize_learned.h"
#include "kernels/cuda/loops/recurrent.h"
#include "kernels/cuda/loops/resample.h"
#include "kernels/cuda/loops/rotary.h"
#include "kernels/cuda/loops/sketch.h"
#include "kernels/cuda/loops/take_rows.h"
#include "kernels/cuda/loops/tokens.h"
#include "kernels/cuda/loops/softmax.h"
#include "kernels/cuda/loops/sort.h"
#include "kernels/cuda/loops/wire.h"

/* ---- All launchers, at one size -------------------------------------------------------------- */

/* Never read or written: the launches are not run. */
static void *const at = (void *)(uintptr_t)0x10000;

static void launch_elementwise(cudaStream_t s, tr_dtype t, size_t rows, size_t width)
{
    const size_t n = rows * width;
    void *in[2] = {at, at};
    const size_t parts[2] = {width * 2, width * 2};
    const tr_cuda_dropout_args drop = {
        .x = at, .y = at, .samples = rows, .elements = width, .scale = 1};
    assert_ok(tr_cuda_act_run(t, TR_ACT_GELU, at, at, n, s));
    assert_ok(tr_cuda_act_grad_run(t, TR_ACT_RELU, at, at, at, n, s));
    assert_ok(tr_cuda_add_run(t, TR_ACT_RELU, 2, in, at, n, s));
    assert_ok(
        tr_cuda_elementwise_run(t, (tr_elementwise)0, (tr_numbers){.a = 0.1f}, at, NULL, at, n, s));
    assert_ok(tr_cuda_mul_run(t, at, at, at, rows, 1, width, s));
    assert_ok(tr_cuda_mul_sums_run(t, at, at, at, (rows + 48) / 49, 49, width, s));
    assert_ok(tr_cuda_dropout_run(t, &drop, s));
    assert_ok(tr_cuda_drop_path_run(t, &drop, s));
    for (size_t weights = 1; weights <= width; weights += width - 1) {
        const tr_cuda_prelu_grad_args slopes = {.dy = at,
                                                .x = at,
                                                .weight = at,
                                                .dx = at,
                                                .dweight = at,
                                                .rows = rows,
                                                .channels = width,
                                                .weights = weights,
                                                .partial = at};
        assert_ok(tr_cuda_prelu_run(t, at, at, weights, at, rows, width, s));
        assert_ok(tr_cuda_prelu_grad_run(t, &slopes, s));
    }
    for (int lstm = 0; lstm < 2; lstm++) {
        const tr_cuda_recurrent_args step = {.lstm = lstm,
                                             .samples = rows,
                                             .rows = 64,
                                             .hidden = width,
                                             .product = at,
                                             .state = at,
                                             .kept_gates = at,
                                             .kept = at,
                                             .y = at,
                                             .x = at,
                                             .h = at,
                                             .dy = at,
                                             .through = at,
                                             .dg = at,
                                             .dx = at};
        assert_ok(tr_cuda_recurrent_run(t, &step, 1, false, s));
        assert_ok(tr_cuda_recurrent_grad_run(t, &step, 1, false, false, s));
    }
    assert_ok(tr_cuda_concat_run(false, at, in, parts, 2, rows, s));
    assert_ok(tr_cuda_transpose_run(2, at, at, (rows + 48) / 49, 49, width, s));
    assert_ok(tr_cuda_transpose_run(2, at, at, (rows + 3) / 4, 4, width, s));
    assert_ok(tr_cuda_gather_run(2, at, at, at, (rows + 48) / 49, 49 * width, s));
    assert_ok(tr_cuda_epilogue(s, TR_ACT_RELU, t, t, at, at, at, at, rows, width));
    assert_ok(tr_cuda_cast_to_f32(s, t, at, at, n));
    assert_ok(tr_cuda_cast(s, t, at, at, n));
    assert_ok(tr_cuda_quantize_rows(s, at, at, rows, width));
    const tr_cuda_sketch_args sketch = {
        .learned = at, .rows = rows, .width = width, .learned_rows = rows, .column = width / 2};
    assert_ok(tr_cuda_sketch(s, t, &sketch, at));
    const tr_cuda_learned_args learned = {.dy = at,
                                          .x = at,
                                          .scale = at,
                                          .out = at,
                                          .dscale = at,
                                          .rows = rows,
                                          .D = width,
                                          .partial = at};
    assert_ok(tr_cuda_learned_run(t, &learned, s));
    assert_ok(tr_cuda_learned_grad_run(t, &learned, s));
    assert_ok(tr_cuda_add_to(s, at, at, width));
    assert_ok(tr_cuda_column_sum(s, t, at, rows, width, at, at, true));
}

static void launch_groups(cudaStream_t s, tr_dtype t, size_t rows, size_t width)
{
    const tr_cuda_groupnorm_shape shape = {
        .samples = rows / 64, .places = 64, .C = width, .groups = width / 2};
    const tr_cuda_groupnorm_grad_args grad = {.dy = at,
                                              .x = at,
                                              .weight = at,
                                              .stats = at,
                                              .dx = at,
                                              .dweight = at,
                                              .dbias = at,
                                              .partial = at};
    assert_ok(tr_cuda_groupnorm_run(t, &shape, at, at, at, 1e-5, at, at, s));
    assert_ok(tr_cuda_groupnorm_grad_run(t, &shape, &grad, s));
}

/* Heads of 64 values, sequences of 256. */
static void launch_sequences(cudaStream_t s, tr_dtype t, size_t rows, size_t width)
{
    const size_t heads = width / 64 + 1, samples = rows / 256 + 1;
    tr_cuda_attention_args attention = {
        .s = {.samples = samples,
              .queries = 256,
              .keys = 256,
              .heads = heads,
              .kv_heads = heads,
              .D = 64,
              .q_pitch = 64 * heads,
              .kv_pitch = 64 * heads},
        .a = {.heads = (int64_t)heads, .kv_heads = (int64_t)heads, .causal = true},
        .q = at,
        .k = at,
        .v = at,
        .y = at,
        .lse = at,
        .dy = at,
        .dq = at,
        .dk = at,
        .dv = at,
        .delta = at};
    const tr_cuda_rotary_args rotary = {.x = at,
                                        .y = at,
                                        .turn = at,
                                        .rows = rows,
                                        .positions = 256,
                                        .heads = heads,
                                        .D = 64,
                                        .pairs = 32,
                                        .sign = 1};
    for (int ways = 0; ways < (t == TR_F32 ? 1 : 2); ways++) {
        attention.matrix = ways == 1;
        for (int backward = 0; backward < 2; backward++)
            assert_ok(tr_cuda_attention_ready(t, 64, backward, &attention.matrix));
        assert_int_equal(attention.matrix, ways == 1);
        assert_ok(tr_cuda_attention_run(t, &attention, s));
        assert_ok(tr_cuda_attention_grad_run(t, &attention, s));
    }
    assert_ok(tr_cuda_rotary_run(t, &rotary, s));
    const tr_cuda_attention_held_args held = {.s = attention.s,
                                              .a = attention.a,
                                              .q = at,
                                              .k = at,
                                              .v = at,
                                              .past = at,
                                              .count = at,
                                              .keys = at,
                                              .values = at,
                                              .cache = 1024,
                                              .y = at};
    assert_ok(tr_cuda_attention_held_run(t, &held, s));
    assert_ok(tr_cuda_place_rows_run(s, t, at, at, 1024, at, at, rows, 1, width));
}

static void launch_rows(cudaStream_t s, tr_dtype t, size_t rows, size_t width)
{
    launch_groups(s, t, rows, width);
    launch_sequences(s, t, rows, width);
    const size_t widths[] = {width, 32768};
    for (size_t i = 0; i < TR_COUNT(widths); i++) {
        const size_t D = widths[i];
        const tr_cuda_layernorm_grad_args grad = {.dy = at,
                                                  .x = at,
                                                  .weight = at,
                                                  .stats = at,
                                                  .dx = at,
                                                  .dweight = at,
                                                  .dbias = at,
                                                  .rows = rows,
                                                  .D = D,
                                                  .partial = at};
        const tr_cuda_cross_entropy_args loss = {.logits = at,
                                                 .labels = at,
                                                 .dlogits = at,
                                                 .rows = rows,
                                                 .each = 1,
                                                 .classes = D,
                                                 .pitch = D,
                                                 .weight_sum = (double)D,
                                                 .factor = 1,
                                                 .scale = 1,
                                                 .tally = at,
                                                 .partial = at};
        assert_ok(tr_cuda_softmax_run(t, at, at, rows, D, 0, s));
        assert_ok(tr_cuda_softmax_grad_run(t, at, at, at, rows, D, 0, s));
        assert_ok(tr_cuda_layernorm_run(t, at, at, at, 1e-5, true, at, at, rows, D, 0, s));
        assert_ok(tr_cuda_layernorm_grad_run(t, &grad, s));
        assert_ok(tr_cuda_cross_entropy_run(t, &loss, s));
        assert_ok(tr_cuda_soft_targets_run(t, &loss, at, s));
        const tr_cuda_distill_args teacher = {.x = at,
                                              .teacher = at,
                                              .dx = at,
                                              .rows = rows,
                                              .width = D,
                                              .factor = 1,
                                              .inverse = 1,
                                              .scale = 1,
                                              .tally = at,
                                              .partial = at};
        assert_ok(tr_cuda_soft_loss_run(t, &teacher, s));
        assert_ok(tr_cuda_feature_loss_run(t, &teacher, s));
    }
    const tr_elementwise_loss_attrs squares = {.kind = TR_LOSS_MSE};
    const tr_cuda_elementwise_loss_args mse = {.y = at,
                                               .target = at,
                                               .dy = at,
                                               .count = rows * width,
                                               .samples = rows,
                                               .scale = 1,
                                               .tally = at,
                                               .partial = at,
                                               .loss = &squares};
    assert_ok(tr_cuda_elementwise_loss_run(t, &mse, s));
    assert_ok(tr_cuda_embedding_run(s, t, at, at, at, rows, width));
}

static void launch_images(cudaStream_t s, tr_dtype t, size_t rows, size_t width)
{
    const unsigned batch = (unsigned)((rows + 48) / 49);
    const tr_cuda_pool p = {.type = t,
                            .batch = batch,
                            .channels = (unsigned)width,
                            .size = {7, 7},
                            .result = {7, 7},
                            .kernel = {3, 3},
                            .stride = {1, 1},
                            .padding = {1, 1}};
    const tr_cuda_resampling twice = {.type = t,
                                      .batch = batch,
                                      .channels = (unsigned)width,
                                      .from = {7, 7},
                                      .to = {14, 14},
                                      .begin = {at, at},
                                      .taps = {at, at}};
    const tr_bn_map sums = tr_bn_map_of(rows, width, t, TR_BN_RUN),
                    each = tr_bn_map_of(rows, width, t, 4);
    const tr_bn_norm norm = {.weight = at, .bias = at, .stats = at, .eps = 1e-5};
    const tr_bn_grads grads = {.dy = at, .x = at, .stats = at, .sums = at, .eps = 1e-5};
    assert_ok(tr_cuda_max_pool(s, &p, at, at, at));
    assert_ok(tr_cuda_max_pool_grad(s, &p, at, at, at));
    assert_ok(tr_cuda_avg_pool(s, &p, at, at));
    tr_cuda_pool steps = p;
    steps.type = TR_U8;
    assert_ok(tr_cuda_avg_pool_steps(s, &steps, true, 1, at, at));
    assert_ok(tr_cuda_avg_pool_grad(s, &p, at, at));
    assert_ok(tr_cuda_resample_run(s, &twice, at, at));
    assert_ok(tr_cuda_class_token_run(s, t, at, at, at, batch, 196, width));
    const tr_cuda_rows taken = {.a.mean = true, .samples = batch, .rows = 49, .features = width};
    assert_ok(tr_cuda_take_rows_run(s, t, &taken, at, NULL, at));
    assert_ok(tr_cuda_take_rows_grad_run(s, t, &taken, at, NULL, at));
    assert_ok(tr_cuda_global_pool(s, t, at, at, batch, 49, width));
    assert_ok(tr_cuda_global_pool_grad(s, t, at, at, batch, 49, width));
    assert_ok(tr_bn_stats(s, t, &sums, at, at, at));
    assert_ok(tr_bn_running(s, at, at, width, at));
    assert_ok(tr_bn_merge_stats(s, at, 8, width, at));
    assert_ok(tr_bn_merge_sums(s, at, 8, 2 * width, at));
    assert_ok(tr_bn_apply(s, t, &each, TR_ACT_RELU, at, at, &norm, at));
    assert_ok(tr_bn_grad_stats(s, t, &sums, &grads, at));
    assert_ok(tr_bn_grad_input(s, t, &each, at, at, at, at, at, 1e-5, at));
    assert_ok(tr_cuda_filter_pack(s, t, false, at, at, width, width, 9));
    assert_ok(tr_cuda_filter_unpack(s, t, at, at, width, width, 9, true));
}

static void launch_int8(cudaStream_t s, tr_dtype t, size_t rows, size_t width)
{
    const size_t wide = tr_align_up(width, TR_INT8_ALIGN), piece = rows < 8192 ? rows : 8192;
    const tr_cuda_window w = {.channels = (unsigned)width,
                              .size = {7, 7},
                              .result = {7, 7},
                              .kernel = {1, 1},
                              .stride = {1, 1},
                              .dilation = {1, 1}};
    const tr_cuda_int8_weights to = {.weights = at, .factor = at, .shift = at, .sums = at};
    const tr_cuda_int8_result r = {
        .acc = at, .w = to, .residual = at, .type = t, .y = at, .out = width, .outputs = wide};
    const tr_cuda_dynamic_args rounded = {
        .x = at, .y = at, .scales = at, .is_signed = true, .rows = rows, .D = width, .parts = at};
    const tr_cuda_rescale_args sums = {
        .x = at, .scales = at, .y = at, .rows = rows, .channels = width, .places = 1};
    assert_ok(tr_cuda_dynamic_run(s, t, &rounded));
    assert_ok(tr_cuda_requantize(s, true, false, 1, at, at, rows, width, width));
    assert_ok(tr_cuda_rescale_run(s, t, &sums));
    assert_ok(tr_cuda_to_steps(s, t, true, 1, at, at, rows * width));
    assert_ok(tr_cuda_from_steps(s, t, false, 1, at, at, rows * width));
    assert_ok(tr_cuda_window_rows(s, &w, true, at, at, 0, rows, wide));
    assert_ok(tr_cuda_int8_pack(s, at, at, at, 1, 1, width, width, 9, wide,
                                tr_align_up(9 * width, TR_INT8_ALIGN), &to));
    assert_ok(tr_cuda_int8_store(s, &r, rows));
    assert_ok(tr_cuda_int8_dots(s, at, at, at, piece, wide, wide));
}

static void launch_update(cudaStream_t s, tr_dtype t, size_t count)
{
    const size_t chunks = (count + TR_UPDATE_CHUNK - 1) / TR_UPDATE_CHUNK;
    const tr_update_plan plan = {
        .u = {.kind = TR_UPDATE_ADAMW, .w = at, .g = at, .m = at, .v = at, .ema = at},
        .chunks = at,
        .nchunks = chunks};
    tr_update_plan norms = plan;
    norms.u.kind = TR_UPDATE_LAMB;
    norms.u.nrows = 3;
    void *cells = NULL; /* the one that is written at once */
    assert_int_equal(cudaMalloc(&cells, 3 * TR_NORM_CELLS * sizeof(double)), cudaSuccess);
    norms.u.norms = cells;
    assert_ok(tr_measure_begin(s, &norms));
    assert_ok(tr_measure_launch(s, &norms, at));
    assert_ok(tr_measure_end(s, &norms));
    assert_int_equal(cudaFree(cells), cudaSuccess);
    assert_ok(tr_update_launch(s, &plan, at));
    assert_ok(tr_swap_launch(s, &plan, NULL));
    assert_ok(tr_decide_launch(s, &plan, at));
    assert_ok(tr_sum_squares_launch(s, at, count, at, at));
    assert_ok(tr_chunk_squares_launch(s, at, at, chunks, at, at));
    assert_ok(tr_wire_launch(s, t, at, (count + TR_WIRE_CHUNK - 1) / TR_WIRE_CHUNK, false));
    assert_ok(tr_wire_launch(s, t, at, (count + TR_WIRE_CHUNK - 1) / TR_WIRE_CHUNK, true));
    assert_ok(tr_lap_launch(s, at, 0));
}

/* Sorting asks CUB, which looks at its memory: this one is real, and runs. */
static void launch_embedding_grad(tr_cuda *cuda, size_t rows, size_t D, size_t num)
{
    size_t sort = 0;
    assert_ok(tr_cuda_sort_workspace(false, rows, num, &sort));
    const size_t work = tr_cuda_embedding_grad_workspace(rows, D, sort);
    void *const dy = b->memory->alloc(cuda, TR_MEM_OTHER, rows * D * 4),
                *const ids = b->memory->alloc(cuda, TR_MEM_OTHER, rows * 4),
                *const table = b->memory->alloc(cuda, TR_MEM_OTHER, num * D * 4),
                *const scratch = b->memory->alloc(cuda, TR_MEM_OTHER, work);
    assert_ok(b->memory->zero(cuda, ids, rows * 4));
    assert_ok(b->memory->zero(cuda, dy, rows * D * 4));
    const tr_cuda_embedding_grad_args a = {.dy = dy,
                                           .ids = ids,
                                           .dtable = table,
                                           .rows = rows,
                                           .num = num,
                                           .D = D,
                                           .workspace = scratch,
                                           .sort_bytes = sort};
    assert_ok(tr_cuda_embedding_grad_run(cuda->stream, TR_F32, &a));
    assert_ok(b->stream->finish(cuda));
    b->memory->free(cuda, dy);
    b->memory->free(cuda, ids);
    b->memory->free(cuda, table);
    b->memory->free(cuda, scratch);
}

/* ---- The tests ------------------------------------------------------------------------------- */

static void test_grids(void **state)
{
    static const tr_dtype types[] = {TR_BF16, TR_F32};
    /* of ResNet-50 and of a transformer; odd ones; next to nothing */
    static const struct {
        size_t rows, width;
        bool large;
    } shapes[] = {{802816, 64, true},   {802816, 256, true}, {200704, 512, true},
                  {131072, 1024, true}, {12544, 2048, true}, {4096, 4096, true},
                  {8192, 1000, true},   {50001, 33, false},  {49, 3, false},
                  {1, 2, false}};
    (void)state;
    tr_cuda *cuda = open_with(false);
    assert_int_equal(cuda->sms, SMS);
    for (size_t i = 0; i < TR_COUNT(shapes); i++)
        for (size_t t = 0; t < TR_COUNT(types); t++) {
            const size_t rows = shapes[i].rows, width = shapes[i].width;
            cudaGraph_t graph = NULL;
            assert_int_equal(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeRelaxed), 0);
            launch_elementwise(cuda->stream, types[t], rows, width);
            launch_rows(cuda->stream, types[t], rows, width);
            launch_images(cuda->stream, types[t], rows, width);
            launch_int8(cuda->stream, types[t], rows, width);
            launch_update(cuda->stream, types[t], rows * width);
            assert_int_equal(cudaStreamEndCapture(cuda->stream, &graph), 0);
            assert_int_equal(cudaGraphDestroy(graph), 0);
            check_notes(shapes[i].large);
        }
    launch_embedding_grad(cuda, 300, 64, 16);
    close_with(cuda);
    check_notes(false);
    for (size_t i = 0; i < TR_COUNT(known); i++) {
        if (!launched[i]) fail_msg("%s is never launched here", known[i].kernel);
        if (known[i].why == ROUND && !filled[i])
            fail_msg("%s: no large shape takes whole rounds, %d blocks", known[i].kernel, ROUNDS);
    }
}

/* KERNELS.md has a row for each kernel (unit/kernel_table sees to that). */
static void test_all_kernels(void **state)
{
    char line[512], file[64], kernel[64];
    size_t seen = 0;
    (void)state;
    FILE *f = fopen(TR_SOURCE_DIR "/kernels/cuda/KERNELS.md", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "| %63s | %63s | %*u |", file, kernel) != 2 || !strchr(line, '/'))
            continue;
        if (strcmp(file, "file") == 0 || file[0] == '-') continue;
        find(kernel);
        seen++;
    }
    fclose(f);
    assert_int_equal(seen, TR_COUNT(known));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grids),
        cmocka_unit_test(test_all_kernels),
    };
    const int fd = mkstemp(notes);
    if (fd < 0 || close(fd) != 0) return 1;
    setenv("FAKEGPU_LAUNCHES", notes, 1); /* before the first launch */
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(notes);
    return failed;
}
