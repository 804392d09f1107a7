/* What a limit on memory comes to, in bytes, and what of it goes to programs. */
#include "runtime/config/memory.h"
#include "trainer/plan/choose.h"

size_t tr_memory_limit(const tr_config *c, tr_space space, size_t have)
{
    const size_t limit = tr_memory_limit_of(c), part = have / 20, least = (size_t)512 << 20;
    if (limit > 0 && limit != TR_MEMORY_AUTO) return limit;
    const size_t margin = space == TR_SPACE_DEVICE && part < least ? least : part;
    return have > margin ? have - margin : 0;
}

static const size_t step = (size_t)32 << 20, allowance = (size_t)32 << 20;

/* That differs by a MB or two from start to start, and by ten between a launcher's rank and a
 * program by itself (15.7 to 16.9 MB, 23.3 to 24.6 below mpirun): in steps beyond that, so that the
 * same is chosen but for a program at the edge of one. */
size_t tr_program_start(size_t rss)
{
    return tr_align_up(rss, step);
}

/* What kernels of a shorter model's plans take, in training and in evaluation, of whole shares and
 * of the last ones, with oneDNN's primitives. Measured, of eight
 * such: 10 MB with 5 layers, of LSTM, 35 with the 44 of 4 transformer blocks, 61 with the 124 of
 * 12; while a choice is made, which has more to recompute, up to 70 with the 44, for which the
 * allowance is there, too. */
static size_t shorter_bytes(const tr_model *m)
{
    return m ? m->nshorter * (((size_t)2 << 20) + m->nlayers * ((size_t)140 << 10)) : 0;
}

/* What programs become while they run (generated kernels, HDF5's and MPI's buffers, stacks) is not
 * known before: an allowance. */
size_t tr_program_bytes(tr_space space, const tr_model *m, size_t start, int starting, int ranks)
{
    if (space == TR_SPACE_DEVICE) return 0;
    return start * (size_t)starting + (allowance + shorter_bytes(m)) * (size_t)ranks;
}

/* An explicit limit is of whole processes; what is left for auto is counted without them. */
size_t tr_memory_programs(const tr_config *c, tr_space space, const tr_model *m, size_t start,
                          int ranks)
{
    const size_t given = tr_memory_limit_of(c);
    return tr_program_bytes(space, m, start, given > 0 && given != TR_MEMORY_AUTO ? ranks : 0,
                            ranks);
}

size_t tr_choice_least(const tr_choice *c)
{
    return tr_align_up(c->need + c->programs, (size_t)1 << 20);
}

const char *tr_about(tr_space space)
{
    return space == TR_SPACE_HOST ? "about " : "";
}
