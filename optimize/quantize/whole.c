/* What a call of the whole network takes in 8 bits and took before, as it is told where no layers are chosen by time
 * (choose.c): a few turns, the least of each op. */
#include "optimize/quantize/choose.h"

#include <math.h>

enum { TURNS = 12, PAIR = 2 };
#define SECONDS 0.1

static tr_status time_both(tr_evaluator *e, const tr_network *const n[PAIR],
                           const tr_config *config, const tr_int8_options *o, double seconds[PAIR])
{
    tr_status st = TR_OK;
    tr_profile_options po[PAIR];
    tr_profile p[PAIR] = {{0}};
    const tr_profile_turns turns = {.turns = TURNS, .seconds = SECONDS, .limit = INFINITY};
    for (int i = 0; i < PAIR; i++) po[i] = tr_quantize_timed(e, n[i], config, o);
    TR_TRY(tr_profile_in_turns(po, PAIR, &turns, p));
    for (int i = 0; i < PAIR; i++) seconds[i] = p[i].seconds;
out:
    for (int i = 0; i < PAIR; i++) tr_profile_free(&p[i]);
    return st;
}

tr_status tr_quantize_compare(tr_evaluator *e, const tr_network *before, const tr_network *after,
                              const tr_config *config, const tr_int8_options *o,
                              tr_int8_story *story)
{
    tr_comm *comm = tr_evaluator_comm(e);
    const bool root = tr_comm_topology(comm)->rank == 0;
    const tr_network *const n[PAIR] = {before, after};
    double seconds[PAIR] = {NAN, NAN};
    tr_status st = TR_OK;
    if (tr_comm_topology(comm)->part) return TR_OK; /* ranks beside it change what it takes */
    if (root) tr_comm_busy(comm, TR_BUSY_MEASURES);
    if (root) st = time_both(e, n, config, o, seconds);
    tr_comm_busy(comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, seconds, sizeof seconds, 0));
    story->float_ms = 1e3 * seconds[0];
    story->int8_ms = 1e3 * seconds[1];
out:
    return st;
}
