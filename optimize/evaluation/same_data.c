/* Samples that all ranks read. Each opens files of its own, and those of another host may be
 * others: what they hold is compared before any of it is used, so that no number is of two data
 * sets.
 *
 * Where a look at a file takes a process (HDF5), the first rank of each node looks, and hands what
 * it saw to the others there, which then open the same file without one. Who sees another file at
 * that path, in a mount namespace of its own, looks as well. */
#include "optimize/evaluation/evaluation.h"

#include <stdlib.h>

const char *tr_over_source_name(tr_over_source s)
{
    static const char *const names[] = {"data.eval", "data.train", "data.predict"};
    return names[s];
}

const tr_source_config *tr_over_source_config(const tr_config *c, tr_over_source s)
{
    const tr_source_config *const sources[] = {&c->data.eval, &c->data.train, &c->data.predict};
    return sources[s];
}

/* Allocated by open_memstream. */
static tr_status describe(tr_dataset *d, const char *block, uint64_t seed, char **text)
{
    size_t n;
    FILE *to = open_memstream(text, &n);
    if (!to) return TR_FAIL(TR_MEMORY, "no memory to describe the data");
    const tr_status st = tr_dataset_describe(d, block, seed, to);
    if (fclose(to) != 0 && st == TR_OK) return TR_FAIL(TR_MEMORY, "no memory to describe the data");
    return st;
}

/* *Collective.* The first rank of each node says `buf` to the others there. nodes: of each rank;
 * NULL: there is one. */
static tr_status hand_on(tr_comm *comm, const int32_t *nodes, void *buf, size_t nbytes)
{
    const tr_topology *t = tr_comm_topology(comm);
    tr_status st = TR_OK;
    int first = 0;
    if (!nodes) return tr_comm_broadcast(comm, buf, nbytes, 0);
    while (nodes[first] != t->node) first++;
    if (t->rank != first) return tr_comm_receive(comm, buf, nbytes, first);
    for (int r = first + 1; r < t->size; r++)
        if (nodes[r] == t->node) TR_TRY(tr_comm_send(comm, buf, nbytes, r));
out:
    return st;
}

/* *Collective.* *failed: this node's first rank failed, *seen tells it how; then nobody else there
 * needs to try, for minutes where a file system does not answer. */
static tr_status look_first(tr_comm *comm, const tr_config *c, const tr_source_config *s,
                            const tr_model *m, tr_status *seen, bool *failed)
{
    const tr_topology *t = tr_comm_topology(comm);
    const int32_t node = t->node;
    struct {
        uint32_t failed, nbytes;
    } word = {0, 0};
    char known[TR_DATA_KNOWN];
    tr_error why = {.status = TR_OK};
    tr_status st = TR_OK;
    int32_t *nodes = NULL;
    if (t->nodes == t->size) return TR_OK;
    if (t->nodes > 1) {
        nodes = tr_alloc(TR_MEM_OTHER, (size_t)t->size, sizeof *nodes);
        TR_TRY(tr_agree(comm, nodes ? TR_OK : tr_last_status(), NULL));
        TR_TRY(tr_comm_all_gather(comm, &node, nodes, sizeof node));
    }
    if (t->local_rank == 0) {
        tr_comm_busy(comm, TR_BUSY_READS);
        *seen = tr_dataset_look(c, s, m);
        tr_comm_busy(comm, TR_BUSY_NOT);
        if (*seen != TR_OK) why = *tr_last_error();
        word.failed = *seen != TR_OK;
        if (!word.failed) word.nbytes = (uint32_t)tr_data_known_write(known);
    }
    TR_TRY(hand_on(comm, nodes, &word, sizeof word));
    if (word.nbytes) TR_TRY(hand_on(comm, nodes, known, word.nbytes));
    /* bytes that are refused only mean a look of our own */
    if (t->local_rank > 0 && word.nbytes) tr_data_known_take(known, word.nbytes);
    *failed = word.failed;
    if (*seen != TR_OK) tr_set_error(&why);
out:
    tr_free(nodes);
    return st;
}

tr_status tr_same_data_open(tr_comm *comm, const tr_config *c, tr_over_source s, const tr_model *m,
                            tr_dataset **out)
{
    char *text = NULL;
    tr_dataset *d = NULL;
    tr_status st, own = TR_OK;
    bool failed = false;
    TR_TRY(look_first(comm, c, tr_over_source_config(c, s), m, &own, &failed));
    if (!failed) {
        tr_comm_busy(comm, TR_BUSY_READS);
        own = tr_dataset_open(c, tr_over_source_config(c, s), m, &d);
        if (own == TR_OK && tr_comm_topology(comm)->size > 1)
            own = describe(d, tr_over_source_name(s), (uint64_t)c->seed, &text);
        tr_comm_busy(comm, TR_BUSY_NOT);
    }
    TR_TRY(tr_agree(comm, own, NULL));
    if (text) TR_TRY(tr_same_text(comm, TR_DIFFERENT, "the data", text));
    *out = d;
    d = NULL;
out:
    tr_dataset_close(d);
    free(text);
    return st;
}
