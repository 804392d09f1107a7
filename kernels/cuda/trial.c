/* A candidate runs once, which loads its kernels and shows that it does run here: libraries name
 * some that a device, a driver or a short memory then refuses. With `benchmark` it goes on in
 * rounds of some launches in a row, so that the host's calls hide behind the kernels; its time is
 * that of its fastest round, as disturbances can only lengthen one. Blocks are as large as the
 * problem's operands: with other sizes or addresses shared between operands the caches would hide
 * what the candidates differ in.
 *
 * A call that failed is the candidate's own affair as long as the stream can be waited for
 * afterwards. CUDA's errors of the other kind (an illegal address, a fault of the hardware) stay
 * with the context: all later calls give them, so nothing else can be tried. */
#include "kernels/cuda/trial.h"

#include <string.h>

enum { ROUNDS = 2, LAUNCHES = 3, ALIGN = 256 };

/* ---- Memory ---- */

static tr_status lay_out(tr_cuda_trial *t, const size_t nbytes[TR_CUDA_TRIAL_BLOCKS])
{
    size_t at[TR_CUDA_TRIAL_BLOCKS], sum = 0;
    for (int i = 0; i < TR_CUDA_TRIAL_BLOCKS; i++) {
        at[i] = sum;
        sum += tr_align_up(nbytes[i], ALIGN);
    }
    t->memory = tr_cuda_alloc(t->cuda, TR_MEM_WORKSPACE, sum);
    if (!t->memory) return tr_last_status();
    for (int i = 0; i < TR_CUDA_TRIAL_BLOCKS; i++)
        if (nbytes[i] > 0) t->block[i] = (char *)t->memory + at[i];
    return TR_OK;
}

static tr_status reserve(tr_cuda_trial *t, size_t nbytes)
{
    if (nbytes <= t->workspace_bytes) return TR_OK;
    tr_cuda_free(t->cuda, t->workspace);
    t->workspace_bytes = 0;
    t->workspace = tr_cuda_alloc(t->cuda, TR_MEM_WORKSPACE, nbytes);
    if (!t->workspace) return tr_last_status();
    t->workspace_bytes = nbytes;
    return TR_OK;
}

/* Want of memory is no failure: what is trained may fit all the same. */
static tr_status no_room(tr_cuda_trial *t, tr_status st)
{
    if (st != TR_MEMORY) return st;
    tr_cuda_free(t->cuda, t->memory);
    t->memory = NULL;
    tr_log(TR_LOG_WARN, "no device memory to try %s in: %s is taken", t->what,
           t->taken ? "what was best so far" : "the library's first choice");
    return TR_OK;
}

tr_status tr_cuda_trial_open(tr_cuda_trial *t, tr_cuda *cuda, const char *what,
                             const size_t nbytes[TR_CUDA_TRIAL_BLOCKS])
{
    tr_status st = TR_OK;
    *t = (tr_cuda_trial){.cuda = cuda, .what = what};
    TR_TRY(no_room(t, lay_out(t, nbytes)));
    if (!cuda->o.benchmark) goto out;
    TR_CUDA_TRY(cudaEventCreate(&t->from));
    TR_CUDA_TRY(cudaEventCreate(&t->to));
out:
    return st;
}

void tr_cuda_trial_close(tr_cuda_trial *t)
{
    if (!t->cuda) return; /* never opened */
    if (t->to) (void)cudaEventDestroy(t->to);
    if (t->from) (void)cudaEventDestroy(t->from);
    tr_cuda_free(t->cuda, t->workspace);
    tr_cuda_free(t->cuda, t->memory);
    memset(t, 0, sizeof *t);
}

/* ---- Running ---- */

static tr_status time_rounds(const tr_cuda_trial *t, const tr_cuda_candidate *c, float *ms)
{
    tr_status st = TR_OK;
    const cudaStream_t stream = t->cuda->stream;
    for (int round = 0; round < ROUNDS; round++) {
        float took = 0;
        TR_CUDA_TRY(cudaEventRecord(t->from, stream));
        for (int i = 0; i < LAUNCHES; i++) TR_TRY(c->put(c->arg, t));
        TR_CUDA_TRY(cudaEventRecord(t->to, stream));
        TR_CUDA_TRY(cudaEventSynchronize(t->to));
        TR_CUDA_TRY(cudaEventElapsedTime(&took, t->from, t->to));
        if (round == 0 || took < *ms) *ms = took;
    }
out:
    return st;
}

static tr_status run(const tr_cuda_trial *t, const tr_cuda_candidate *c, float *ms)
{
    tr_status st = TR_OK;
    TR_TRY(c->put(c->arg, t));
    TR_TRY(tr_cuda_finish(t->cuda));
    if (t->from) TR_TRY(time_rounds(t, c, ms));
out:
    return st;
}

bool tr_cuda_survives(const tr_cuda *cuda)
{
    (void)cudaGetLastError();
    return cudaStreamSynchronize(cuda->stream) == cudaSuccess;
}

/* The failure just recorded is the candidate's alone where the context survived it. */
static tr_status pass_over(tr_cuda_trial *t, const char *name)
{
    memcpy(t->why, tr_last_error()->text, sizeof t->why);
    if (!tr_cuda_survives(t->cuda)) return tr_fail_before(TR_KERNEL, "%s, tried: ", name);
    if (tr_cuda_recall(t->cuda, name, strlen(name))) return TR_OK; /* said already */
    tr_log(TR_LOG_WARN, "%s does not run here, another one is taken: %s", name, t->why);
    return tr_cuda_remember(t->cuda, name, strlen(name), 0);
}

tr_status tr_cuda_trial_run(tr_cuda_trial *t, const tr_cuda_candidate *c, bool *best)
{
    tr_status st = TR_OK;
    float ms = 0;
    *best = false;
    if (t->memory) TR_TRY(no_room(t, reserve(t, c->workspace)));
    if (!t->memory && t->taken) goto out; /* one that did not run cannot be the fastest */
    if (t->memory && run(t, c, &ms) != TR_OK) return pass_over(t, c->name);
    if (t->taken && ms >= t->least) goto out;
    *best = t->taken = true;
    t->least = ms;
out:
    return st;
}

bool tr_cuda_trial_goes_on(const tr_cuda_trial *t)
{
    return !t->taken || (t->memory && t->from);
}

tr_status tr_cuda_trial_kernels(tr_cuda *cuda, const char *what,
                                const size_t nbytes[TR_CUDA_TRIAL_BLOCKS],
                                tr_status (*put)(void *kernel, const tr_cuda_trial *t),
                                tr_kernel *const *way, int ways, int *best)
{
    tr_status st = TR_OK;
    tr_cuda_trial t;
    TR_TRY(tr_cuda_trial_open(&t, cuda, what, nbytes));
    for (int i = 0; i < ways; i++) {
        const tr_cuda_candidate c = {way[i]->impl, way[i]->workspace, put, way[i]};
        bool faster;
        TR_TRY(tr_cuda_trial_run(&t, &c, &faster));
        if (faster) *best = i;
    }
out:
    tr_cuda_trial_close(&t);
    return st;
}

/* ---- What was found ---- */

struct tr_cuda_memo {
    tr_cuda_memo *next;
    int value;
    size_t nbytes;
    unsigned char key[];
};

const int *tr_cuda_recall(const tr_cuda *cuda, const void *key, size_t nbytes)
{
    for (const tr_cuda_memo *m = cuda->memos; m; m = m->next)
        if (m->nbytes == nbytes && memcmp(m->key, key, nbytes) == 0) return &m->value;
    return NULL;
}

tr_status tr_cuda_remember(tr_cuda *cuda, const void *key, size_t nbytes, int value)
{
    tr_cuda_memo *m = tr_alloc(TR_MEM_OTHER, sizeof *m + nbytes, 1);
    if (!m) return tr_last_status();
    m->value = value;
    m->nbytes = nbytes;
    memcpy(m->key, key, nbytes);
    m->next = cuda->memos;
    cuda->memos = m;
    return TR_OK;
}

void tr_cuda_forget(tr_cuda *cuda)
{
    while (cuda->memos) {
        tr_cuda_memo *next = cuda->memos->next;
        tr_free(cuda->memos);
        cuda->memos = next;
    }
}
