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

/* What programs become while they run (generated kernels, HDF5's and MPI's buffers, stacks) is not known before: an
 * allowance. In whole MiB, for the same program's size differs by pages from start to start. */
size_t tr_program_bytes(tr_space space, size_t rss, int starting, int ranks)
{
    const size_t mib = (size_t)1 << 20;
    if (space == TR_SPACE_DEVICE) return 0;
    return tr_align_up(rss, mib) * (size_t)starting + 32 * mib * (size_t)ranks;
}

/* An explicit limit is of whole processes; what is left for auto is counted without them. */
size_t tr_memory_programs(const tr_config *c, tr_space space, size_t rss, int ranks)
{
    const size_t given = tr_memory_limit_of(c);
    return tr_program_bytes(space, rss, given > 0 && given != TR_MEMORY_AUTO ? ranks : 0, ranks);
}

/* Programs are counted in whole MiB, and with what the system keeps of their files in memory at the time: 15.7 to 16.9 MB
 * in two dozen starts of one, 23.3 to 24.6 below mpirun, so that the next start may count two more. */
size_t tr_choice_least(const tr_choice *c, tr_space space, int ranks)
{
    const size_t mib = (size_t)1 << 20,
                 apart = space == TR_SPACE_HOST ? 2 * mib * (size_t)ranks : 0;
    return tr_align_up(c->need + c->programs + apart, mib);
}

const char *tr_about(tr_space space)
{
    return space == TR_SPACE_HOST ? "about " : "";
}
