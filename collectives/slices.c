/* Index arithmetic of the reducer and what it costs: pure functions, tested without MPI. */
#include "collectives/reducer.h"

tr_range tr_slice(tr_range whole, int i, int n)
{
    if (i < 0 || i >= n) return (tr_range){whole.end, whole.end};
    size_t units = (whole.end - whole.begin) / TR_SLICE_UNIT, parts = (size_t)n, at = (size_t)i;
    /* units * i / n without the product, which might not fit */
    size_t q = units / parts, rest = units % parts;
    size_t begin = q * at + rest * at / parts, end = q * (at + 1) + rest * (at + 1) / parts;
    return (tr_range){whole.begin + begin * TR_SLICE_UNIT, whole.begin + end * TR_SLICE_UNIT};
}

size_t tr_pieces(size_t count, size_t piece)
{
    return count / piece + (count % piece != 0);
}

/* Parts of a piece are cut in units, so one may be a unit above the average. */
size_t tr_part_floats(int nodes)
{
    return tr_align_up(TR_PIECE / (size_t)nodes + TR_SLICE_UNIT, TR_SLICE_UNIT);
}

size_t tr_exchange_floats(int nodes)
{
    return TR_LANES * (size_t)nodes * tr_part_floats(nodes);
}

void tr_reducer_cost_of(const tr_topology *t, const tr_reducer_options *o, tr_reducer_cost *out)
{
    size_t bytes = o->count * sizeof(float), size = (size_t)t->size, nodes = (size_t)t->nodes;
    size_t ranks = (size_t)t->local_size;
    *out =
        (tr_reducer_cost){.weights = bytes, .gradients = bytes, .slots = bytes * (size_t)o->nslots};
    if (t->size <= 1) return;
    const bool device = tr_reducer_on_device(o);
    if (t->shared && !device) {
        size_t slices = (size_t)(t->slices > 0 ? t->slices : t->local_size), slice = bytes / slices;
        out->weights = bytes / ranks;
        out->slots = out->slots / ranks;
        out->wire_node = bytes / slices * (slices - 1); /* its slices that others read */
        if (ranks > slices) out->wire_node = bytes;
        if (nodes > 1 && t->local_rank < (int)slices) {
            out->wire_network = 2 * (slice / nodes * (nodes - 1)) / (o->wire_bf16 ? 2 : 1);
            out->gradients += tr_exchange_floats(t->nodes) * sizeof(float);
        }
        return;
    }
    size_t ring = 2 * (bytes / size * (size - 1)); /* what a bandwidth-optimal all-reduce sends */
    if (device && !o->nccl) {
        out->pinned = bytes;
        out->gradients += bytes;
    }
    bool half = o->wire_bf16 && nodes > 1 && !device;
    if (half) {
        ring /= 2;
        out->gradients += tr_exchange_floats(t->size) * sizeof(float);
    }
    /* NCCL's rings leave a node once, each by another rank; MPI's may do so at every one. */
    if (device && o->nccl && nodes > 1)
        out->wire_network = ring / ranks, out->wire_node = ring - ring / ranks;
    else if (nodes > 1)
        out->wire_network = ring;
    else
        out->wire_node = ring;
}
