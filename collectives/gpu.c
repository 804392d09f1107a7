/* Which GPU is whose: no two ranks of a node may end at one GPU, which NCCL refuses and which would
 * train at half the speed. A launcher may show all GPUs to every rank, one to each, or some to each
 * (Slurm's --gpu-bind=closest: those of the rank's socket), so GPUs are told apart by the names
 * that backends give them for all processes (where they sit on the PCI bus, and UUIDs, as instances
 * of one GPU sit at one place), not by number, and dealt out by a maximum matching of ranks and the
 * GPUs they see: ranks in local order, each the first of its own that is free, and where none is,
 * others make room along an augmenting path (Kuhn, "The Hungarian method for the assignment
 * problem", 1955). So where all see all, rank i gets GPU i.
 *
 * Every rank gathers what all see and matches every node, hence comes to the same answer: two
 * gathers, 72 bytes a rank and GPU, and at worst ranks^2 * GPUs steps a node.
 *
 *     rank 0 sees A B     takes A, then moves to B
 *     rank 1 sees A       finds A taken; rank 0 has another way: takes A
 *     rank 2 sees C       takes C */
#include "collectives/reducer/reducer.h"

#include <string.h>

typedef struct {
    char text[TR_GPU_ID];
    int64_t without; /* not to be used */
} tr_gpu_id;

enum { NOBODY = -1, NOT_USED = -2 }; /* owners */

typedef struct {
    int32_t node, local_rank, count;
    char host[64], why[256];
} tr_gpu_card;

/* What all ranks see. */
typedef struct {
    int size, most; /* ranks; GPUs that one of them sees at most */
    tr_gpu_card *cards;
    tr_gpu_id *ids; /* [size * most] */
    /* of the node in hand, by local rank: */
    int *rank, *sees; /* its rank in the job; [size * most] its GPUs, by number within the node */
    bool *asked;      /* on the way that is being looked for */
    int ranks, gpus;
    int *owner; /* [size * most] local rank that has this GPU; NOBODY, NOT_USED */
    bool instances;
} tr_gpu_view;

static void forget(tr_gpu_view *v)
{
    tr_free(v->cards);
    tr_free(v->ids);
    tr_free(v->rank);
    tr_free(v->sees);
    tr_free(v->asked);
    tr_free(v->owner);
}

static void look(tr_gpu_card *mine, const tr_topology *t, const tr_backend *gpu)
{
    mine->node = t->node;
    mine->local_rank = t->local_rank;
    memcpy(mine->host, t->host, sizeof mine->host);
    mine->count = gpu->devices(mine->why, sizeof mine->why); /* none: all shall hear why */
}

/* Every rank has one at least? */
static tr_status all_have(tr_gpu_view *v)
{
    int without = 0, first = v->size;
    for (int r = v->size - 1; r >= 0; r--) {
        if (v->cards[r].count <= 0) without++, first = r;
        if (v->cards[r].count > v->most) v->most = v->cards[r].count;
    }
    if (without > 0 && v->size == 1) return TR_FAIL(TR_KERNEL, "no GPU: %s", v->cards[0].why);
    if (without > 0)
        return TR_FAIL(TR_KERNEL, "no GPU for %d of %d ranks, the first of them %d on %s: %s",
                       without, v->size, first, v->cards[first].host, v->cards[first].why);
    return TR_OK;
}

static tr_status id_of(const tr_backend *gpu, int device, tr_gpu_id *out)
{
    if (gpu->device_id) return gpu->device_id(device, out->text, sizeof out->text);
    snprintf(out->text, sizeof out->text, "device %d", device);
    return TR_OK;
}

static tr_status name(const tr_backend *gpu, int count, uint64_t without, tr_gpu_id *mine)
{
    tr_status st = TR_OK;
    for (int k = 0; k < count && st == TR_OK; k++) {
        mine[k].without = k < 64 && (without >> k & 1);
        st = id_of(gpu, k, &mine[k]);
    }
    return st;
}

/* The i-th of all ids is one that a rank of this node gave. */
static bool is_of(const tr_gpu_view *v, int i, int node)
{
    const tr_gpu_card *card = &v->cards[i / v->most];
    return card->node == node && i % v->most < card->count;
}

/* What tells instances apart counts where it is known of all that the ranks of the node see: else
 * one GPU would have two names. */
static void make_comparable(tr_gpu_view *v, int node)
{
    const int nids = v->size * v->most;
    bool known = true;
    for (int i = 0; i < nids; i++)
        if (is_of(v, i, node)) known = known && strstr(v->ids[i].text, TR_GPU_ID_APART);
    for (int i = 0; i < nids && !known; i++)
        if (is_of(v, i, node)) v->ids[i].text[strcspn(v->ids[i].text, TR_GPU_ID_APART)] = 0;
}

/* Numbers the GPUs of a node, each once however many ranks see it. The id of number g is where it
 * was seen first: owner[g], until that is said to be nobody's. */
static void number(tr_gpu_view *v, int node)
{
    v->ranks = v->gpus = 0;
    for (int r = 0; r < v->size; r++) {
        if (v->cards[r].node != node) continue;
        const int i = v->cards[r].local_rank;
        v->rank[i] = r;
        v->ranks++;
        for (int k = 0; k < v->cards[r].count; k++) {
            const int at = r * v->most + k;
            int g = 0;
            while (g < v->gpus && strcmp(v->ids[v->owner[g]].text, v->ids[at].text) != 0) g++;
            if (g == v->gpus) v->owner[v->gpus++] = at;
            v->sees[i * v->most + k] = g;
        }
    }
    for (int g = 0; g < v->gpus; g++) v->owner[g] = NOBODY;
    for (int i = 0; i < v->ranks; i++)
        for (int k = 0; k < v->cards[v->rank[i]].count; k++)
            if (v->ids[v->rank[i] * v->most + k].without)
                v->owner[v->sees[i * v->most + k]] = NOT_USED;
}

/* Finds local rank i a GPU; those that have one already keep one. */
static bool place(tr_gpu_view *v, int i)
{
    const int count = v->cards[v->rank[i]].count, *sees = &v->sees[i * v->most];
    v->asked[i] = true;
    for (int k = 0; k < count; k++)
        if (v->owner[sees[k]] == NOBODY) {
            v->owner[sees[k]] = i;
            return true;
        }
    for (int k = 0; k < count; k++) {
        const int other = v->owner[sees[k]];
        if (other < 0 || v->asked[other] || !place(v, other)) continue;
        v->owner[sees[k]] = i;
        return true;
    }
    return false;
}

/* Why local rank i of the node in hand got none. The ranks asked on its behalf see, all together,
 * the GPUs that they have, one fewer than they are (Hall). */
static tr_status refuse(const tr_gpu_view *v, int i)
{
    const tr_gpu_card *card = &v->cards[v->rank[i]];
    if (v->gpus < v->ranks)
        return TR_FAIL(TR_USAGE,
                       "node %s has %d visible GPU%s for %d ranks: start %d rank%s on it (mpirun "
                       "--map-by ppr:%d:node)",
                       card->host, v->gpus, v->gpus == 1 ? "" : "s", v->ranks, v->gpus,
                       v->gpus == 1 ? "" : "s", v->gpus);
    char list[128] = "";
    int crowd = 0;
    for (int k = 0; k < v->ranks; k++) {
        if (!v->asked[k]) continue;
        const size_t n = strlen(list);
        if (crowd++ < 8) snprintf(list + n, sizeof(list) - n, "%s%d", n ? ", " : "", v->rank[k]);
    }
    return TR_FAIL(TR_USAGE,
                   "on node %s ranks %s%s see only %d GPU%s between them, though its %d ranks see "
                   "%d together: show all of the node's GPUs to every rank (srun --gpu-bind=none, "
                   "CUDA_VISIBLE_DEVICES), or to each rank another",
                   card->host, list, crowd > 8 ? ", ..." : "", crowd - 1, crowd == 2 ? "" : "s",
                   v->ranks, v->gpus);
}

/* The index, among those that it sees, of the GPU that a local rank of the node in hand has. */
static int device_of(const tr_gpu_view *v, int i)
{
    int k = 0;
    while (v->owner[v->sees[i * v->most + k]] != i) k++;
    return k;
}

/* Its place, without what tells instances apart. */
static size_t place_of(const tr_gpu_view *v, int i, const char **text)
{
    *text = v->ids[v->rank[i] * v->most + device_of(v, i)].text;
    return strcspn(*text, TR_GPU_ID_APART);
}

/* In the node in hand, among those that are somebody's. */
static bool instances_of_one(const tr_gpu_view *v)
{
    for (int i = 0; i < v->ranks; i++)
        for (int k = 0; k < i; k++) {
            const char *a, *b;
            const size_t n = place_of(v, i, &a);
            if (place_of(v, k, &b) == n && strncmp(a, b, n) == 0) return true;
        }
    return false;
}

static tr_status match(tr_gpu_view *v, const tr_topology *t, int *device)
{
    for (int node = 0; node < t->nodes; node++) {
        make_comparable(v, node);
        number(v, node);
        for (int i = 0; i < v->ranks; i++) {
            memset(v->asked, 0, (size_t)v->ranks * sizeof *v->asked);
            if (!place(v, i)) return refuse(v, i);
        }
        v->instances = v->instances || instances_of_one(v);
        if (node == t->node) *device = device_of(v, t->local_rank);
    }
    return TR_OK;
}

tr_status tr_gpu_choose(tr_comm *c, const tr_backend *gpu, uint64_t without, tr_gpu_choice *out)
{
    tr_status st = TR_OK;
    const tr_topology *t = &c->topology;
    const size_t size = (size_t)t->size;
    tr_gpu_card card = {0};
    tr_gpu_id *mine = NULL;
    tr_gpu_view v = {.size = t->size};
    int found = 0;
    look(&card, t, gpu);
    v.cards = tr_alloc(TR_MEM_OTHER, size, sizeof *v.cards);
    TR_TRY(tr_agree(c, v.cards ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_comm_all_gather(c, &card, v.cards, sizeof card));
    TR_TRY(all_have(&v));

    const size_t most = (size_t)v.most;
    mine = tr_alloc(TR_MEM_OTHER, most, sizeof *mine);
    v.ids = tr_alloc(TR_MEM_OTHER, size, most * sizeof *v.ids);
    v.rank = tr_alloc(TR_MEM_OTHER, size, sizeof *v.rank);
    v.sees = tr_alloc(TR_MEM_OTHER, size, most * sizeof *v.sees);
    v.asked = tr_alloc(TR_MEM_OTHER, size, sizeof *v.asked);
    v.owner = tr_alloc(TR_MEM_OTHER, size, most * sizeof *v.owner);
    st = mine && v.ids && v.rank && v.sees && v.asked && v.owner
             ? name(gpu, card.count, without | c->gpus_without, mine)
             : tr_last_status();
    TR_TRY(tr_agree(c, st, NULL));
    TR_TRY(tr_comm_all_gather(c, mine, v.ids, most * sizeof *mine));
    TR_TRY(match(&v, t, &found));
    *out = (tr_gpu_choice){found, v.instances};
out:
    tr_free(mine);
    forget(&v);
    return st;
}

tr_status tr_gpu_part(tr_comm *group, const tr_backend *gpu, int device)
{
    tr_status st = TR_OK;
    const size_t size = (size_t)group->topology.size;
    char why[256];
    tr_gpu_id mine = {{0}, 0}, seen, *theirs = tr_alloc(TR_MEM_OTHER, size, sizeof *theirs);
    group->gpus_without = UINT64_MAX;
    st = theirs ? TR_OK : tr_last_status();
    if (st == TR_OK && gpu) st = id_of(gpu, device, &mine);
    TR_TRY(tr_agree(group, st, NULL));
    if (!gpu) goto out;
    TR_TRY(tr_comm_all_gather(group, &mine, theirs, sizeof mine));
    const int count = gpu->devices(why, sizeof why);
    for (int k = 0; k < count && k < 64 && st == TR_OK; k++) {
        st = id_of(gpu, k, &seen);
        for (size_t i = 0; i < size; i++)
            if (strcmp(theirs[i].text, seen.text) == 0) group->gpus_without &= ~((uint64_t)1 << k);
    }
    TR_TRY(tr_agree(group, st, NULL));
out:
    tr_free(theirs);
    return st;
}

tr_status tr_gpu_link_open(const tr_gpu_reducers *gpu, tr_comm *c, const tr_gpu_link_options *o,
                           tr_gpu_link **out)
{
    *out = NULL;
    return c->topology.size > 1 ? gpu->connect(c, o, out) : TR_OK;
}

void tr_gpu_link_close(tr_gpu_link *l)
{
    if (l) l->by->disconnect(l);
}
