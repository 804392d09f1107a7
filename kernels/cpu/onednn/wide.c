/* Convolutions of bfloat16 in float32, where the CPU's own of bfloat16 are no faster
 * (!tr_cpu.bf16_faster): a block of samples at a time is copied to float32 in the workspace, and
 * its result from there; weights have one copy of rounded float32, so that they count as they do
 * elsewhere (and as they reach ranks that hold a share of them alone). Blocks depend on the shapes
 * alone; sums over blocks are added in their order. */
#include "kernels/cpu/onednn/onednn.h"
#include "kernels/cpu/loops/loops.h"

/* Of float32 values in a block, all in all: what is copied is still in a second-level cache when it
 * is read. */
enum { BLOCK = 1 << 18, PIECE = 65536 };

tr_status tr_dnnl_wide_open(tr_cpu *cpu, int64_t rows, int64_t columns, int64_t least,
                            tr_dnnl_wide **out)
{
    tr_dnnl_wide *w = NULL;
    const int64_t blocks = rows * columns / BLOCK + 1;
    const tr_status st = tr_dnnl_open_more(cpu, sizeof *w, &w);
    if (st != TR_OK) return st;
    w->rows = rows;
    w->block = (rows + blocks - 1) / blocks;
    if (w->block < least) w->block = least < rows ? least : rows;
    if (w->block < 1) w->block = 1; /* samples are divided by it */
    *out = w;
    return TR_OK;
}

int64_t tr_dnnl_wide_rows(const tr_dnnl_wide *w, bool last)
{
    return last ? w->rows % w->block : w->block;
}

size_t tr_dnnl_wide_place(tr_dnnl_wide *w, tr_call_place place, int operand, int64_t columns)
{
    tr_dnnl_wide_array *a = &w->arrays[w->narrays++];
    a->result = place == TR_AT_OUT;
    a->operand = operand;
    a->columns = columns;
    a->at = tr_dnnl_reserve(&w->k, (size_t)(w->block * columns) * sizeof(float));
    return a->at;
}

void tr_dnnl_round(const tr_cpu *cpu, const float *from, float *to, size_t count)
{
    const tr_cpu_loops *loops = cpu->loops;
    const size_t pieces = (count + PIECE - 1) / PIECE;
    const int threads = cpu->threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && pieces > 1)
    for (size_t i = 0; i < pieces; i++) {
        const size_t at = i * PIECE, n = count - at < PIECE ? count - at : PIECE;
        loops->round_bf16(to + at, from + at, n);
    }
}

/* Rows [row, row + rows) of an array to float32, or from it. */
static void copy(const tr_dnnl_wide *w, const tr_dnnl_wide_array *a, int64_t row, int64_t rows)
{
    const tr_binding *b = &w->k.bound;
    const tr_cpu_loops *loops = w->k.cpu->loops;
    const size_t count = (size_t)(rows * a->columns), pieces = (count + PIECE - 1) / PIECE;
    float *wide = (float *)(void *)((char *)b->workspace + a->at);
    tr_bf16 *narrow = (tr_bf16 *)(a->result ? b->out : b->in)[a->operand] + row * a->columns;
    const int threads = w->k.cpu->threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && pieces > 1)
    for (size_t i = 0; i < pieces; i++) {
        const size_t at = i * PIECE, n = count - at < PIECE ? count - at : PIECE;
        if (!a->result) {
            loops->cast_f32(wide + at, narrow + at, n);
            continue;
        }
        if (w->act != TR_ACT_NONE) loops->act(TR_F32, w->act, wide + at, wide + at, n);
        loops->cast_bf16(narrow + at, wide + at, n);
    }
}

static tr_status run_blocks(tr_kernel *base, const tr_run *run)
{
    tr_dnnl_wide *w = (tr_dnnl_wide *)base;
    bool add = tr_run_adds(run, &w->k.bound, 0);
    tr_status st = TR_OK;
    tr_dnnl_use(w->k.cpu);
    for (int64_t row = 0; row < w->rows; row += w->block) {
        const int64_t rows = w->rows - row < w->block ? w->rows - row : w->block;
        for (int i = 0; i < w->narrays; i++)
            if (!w->arrays[i].result) copy(w, &w->arrays[i], row, rows);
        for (int i = 0; i < w->k.ncalls; i++) {
            const tr_dnnl_call *c = &w->k.calls[i];
            if (w->last[i] != (rows < w->block)) continue;
            if (c->when == TR_CALL_ALWAYS || c->when == (add ? TR_CALL_ADD : TR_CALL_OVERWRITE))
                TR_TRY(tr_dnnl_execute(&w->k, c));
        }
        for (int i = 0; i < w->narrays; i++)
            if (w->arrays[i].result) copy(w, &w->arrays[i], row, rows);
        add = true;
    }
    if (w->k.after) w->k.after(&w->k, run);
out:
    return st;
}

void tr_dnnl_wide_finish(tr_dnnl_wide *w, const char *impl)
{
    tr_dnnl_finish(&w->k, impl);
    w->k.base.run = run_blocks;
}
