/* Copies between the device's memory and the host's.
 *
 * Pageable memory goes in pieces through two pinned buffers: while one is on its way over the bus,
 * the host fills or empties the other, so that a copy takes the longer of the two and not their
 * sum. Pinned memory and small copies go at once. Set-up, checkpoints and small results only: each
 * call waits. */
#include "kernels/cuda/core.h"

#include <string.h>

enum { PIECE = TR_CUDA_PIECE, SMALL = 1 << 20 };

struct tr_cuda_pieces {
    char *piece[2];       /* PIECE bytes each, pinned */
    cudaEvent_t moved[2]; /* the last copy from or to it is done */
};

/* Large and pageable: worth the pieces. */
static tr_status wants_pieces(const void *host, size_t nbytes, bool *yes)
{
    struct cudaPointerAttributes a;
    *yes = false;
    if (nbytes <= SMALL) return TR_OK;
    const tr_status st =
        tr_cuda_check(cudaPointerGetAttributes(&a, host), "cudaPointerGetAttributes");
    *yes = st == TR_OK && a.type == cudaMemoryTypeUnregistered;
    return st;
}

static size_t piece_size(size_t nbytes, size_t i)
{
    const size_t left = nbytes - i * PIECE;
    return left < PIECE ? left : PIECE;
}

static tr_status upload_pieces(tr_cuda *cuda, char *to, const char *host, size_t nbytes)
{
    tr_status st = TR_OK;
    tr_cuda_pieces *m = cuda->pieces;
    const size_t pieces = (nbytes + PIECE - 1) / PIECE;
    for (size_t i = 0; i < pieces; i++) {
        const size_t n = piece_size(nbytes, i);
        if (i >= 2) TR_CUDA_TRY(cudaEventSynchronize(m->moved[i % 2]));
        memcpy(m->piece[i % 2], host + i * PIECE, n);
        TR_CUDA_TRY(cudaMemcpyAsync(to + i * PIECE, m->piece[i % 2], n, cudaMemcpyHostToDevice,
                                    cuda->stream));
        TR_CUDA_TRY(cudaEventRecord(m->moved[i % 2], cuda->stream));
    }
out:
    return st;
}

static tr_status download_pieces(tr_cuda *cuda, char *host, const char *from, size_t nbytes)
{
    tr_status st = TR_OK;
    tr_cuda_pieces *m = cuda->pieces;
    const size_t pieces = (nbytes + PIECE - 1) / PIECE;
    for (size_t i = 0; i <= pieces; i++) {
        if (i < pieces) { /* this one starts while the host empties the one before */
            TR_CUDA_TRY(cudaMemcpyAsync(m->piece[i % 2], from + i * PIECE, piece_size(nbytes, i),
                                        cudaMemcpyDeviceToHost, cuda->stream));
            TR_CUDA_TRY(cudaEventRecord(m->moved[i % 2], cuda->stream));
        }
        if (i == 0) continue;
        TR_CUDA_TRY(cudaEventSynchronize(m->moved[(i - 1) % 2]));
        memcpy(host + (i - 1) * PIECE, m->piece[(i - 1) % 2], piece_size(nbytes, i - 1));
    }
out:
    return st;
}

tr_status tr_cuda_upload(void *ctx, void *to, const void *host, size_t nbytes)
{
    tr_status st = TR_OK;
    tr_cuda *cuda = ctx;
    bool pieces;
    if (nbytes == 0) return TR_OK;
    TR_TRY(wants_pieces(host, nbytes, &pieces));
    if (pieces) {
        st = upload_pieces(cuda, to, host, nbytes);
        const cudaError_t e = cudaStreamSynchronize(cuda->stream);
        if (st == TR_OK) st = tr_cuda_check(e, "cudaStreamSynchronize");
        return st;
    }
    TR_CUDA_TRY(cudaMemcpyAsync(to, host, nbytes, cudaMemcpyHostToDevice, cuda->stream));
    TR_CUDA_TRY(cudaStreamSynchronize(cuda->stream));
out:
    return st;
}

tr_status tr_cuda_download(void *ctx, void *host, const void *from, size_t nbytes)
{
    tr_status st = TR_OK;
    tr_cuda *cuda = ctx;
    bool pieces;
    if (nbytes == 0) return TR_OK;
    TR_TRY(wants_pieces(host, nbytes, &pieces));
    if (pieces) {
        st = download_pieces(cuda, host, from, nbytes);
        if (st != TR_OK) (void)cudaStreamSynchronize(cuda->stream); /* the pieces are free again */
        return st;
    }
    TR_CUDA_TRY(cudaMemcpyAsync(host, from, nbytes, cudaMemcpyDeviceToHost, cuda->stream));
    TR_CUDA_TRY(cudaStreamSynchronize(cuda->stream));
out:
    return st;
}

tr_status tr_cuda_pieces_open(tr_cuda *cuda)
{
    tr_status st = TR_OK;
    tr_cuda_pieces *m = TR_NEW(TR_MEM_OTHER, tr_cuda_pieces);
    if (!m) return tr_last_status();
    cuda->pieces = m;
    for (int i = 0; i < 2; i++) {
        m->piece[i] = tr_cuda_host_alloc(cuda, TR_MEM_IO, PIECE);
        if (!m->piece[i]) return tr_last_status();
        TR_CUDA_TRY(cudaEventCreateWithFlags(&m->moved[i], cudaEventDisableTiming));
    }
out:
    return st;
}

void tr_cuda_pieces_close(tr_cuda *cuda)
{
    tr_cuda_pieces *m = cuda->pieces;
    if (!m) return;
    for (int i = 0; i < 2; i++) {
        if (m->moved[i]) (void)cudaEventDestroy(m->moved[i]);
        tr_cuda_host_free(cuda, m->piece[i]);
    }
    tr_free(m);
    cuda->pieces = NULL;
}
