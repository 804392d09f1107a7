/* The NCCL communicator of one rank: non-blocking calls are settled before the next one, also while
 * a stream is recorded; recordings replay; aborting ends it. What more ranks do is in tests/mpi. On
 * a real GPU this shows that the library keeps to what its documentation says of non-blocking
 * communicators. */
#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
/* after those it needs */
#include <cmocka.h>
#include <string.h>

#include "collectives/nccl/internal.h"

enum { N = 5000 };

typedef struct {
    tr_comm *c;
    tr_nccl *n;
    cudaStream_t stream, beside;
    cudaEvent_t fork, join;
    float *data, *out;
} bench;

static void ok(cudaError_t e)
{
    if (e != cudaSuccess) fail_msg("%s", cudaGetErrorString(e));
}

static void good(tr_status st)
{
    if (st != TR_OK) fail_msg("%s", tr_last_error()->text);
}

static void *room(void)
{
    void *p = NULL;
    ok(cudaMalloc(&p, N * sizeof(float)));
    return p;
}

static bench open_bench(void)
{
    bench b = {0};
    const tr_comm_options o = {.timeout = 20};
    ok(cudaSetDevice(0));
    good(tr_comm_open(&o, &b.c));
    good(tr_nccl_open(b.c, 0, &b.n));
    ok(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking));
    ok(cudaStreamCreateWithFlags(&b.beside, cudaStreamNonBlocking));
    ok(cudaEventCreateWithFlags(&b.fork, cudaEventDisableTiming));
    ok(cudaEventCreateWithFlags(&b.join, cudaEventDisableTiming));
    b.data = room();
    b.out = room();
    return b;
}

static void close_bench(bench *b)
{
    ok(cudaStreamSynchronize(b->stream));
    tr_nccl_close(b->n);
    tr_comm_close(b->c);
    ok(cudaFree(b->data));
    ok(cudaFree(b->out));
    ok(cudaEventDestroy(b->fork));
    ok(cudaEventDestroy(b->join));
    ok(cudaStreamDestroy(b->stream));
    ok(cudaStreamDestroy(b->beside));
}

/* stream -> beside: data is all-reduced in two operations of a group -> stream: out is a copy. */
static void reduce(bench *b)
{
    ok(cudaEventRecord(b->fork, b->stream));
    ok(cudaStreamWaitEvent(b->beside, b->fork, 0));
    good(tr_nccl_check(b->n, ncclGroupStart(), "ncclGroupStart"));
    good(tr_nccl_check(
        b->n, ncclAllReduce(b->data, b->data, N / 2, ncclFloat32, ncclSum, b->n->comm, b->beside),
        "ncclAllReduce"));
    good(tr_nccl_check(b->n,
                       ncclAllReduce(b->data + N / 2, b->data + N / 2, N / 2, ncclFloat32, ncclSum,
                                     b->n->comm, b->beside),
                       "ncclAllReduce"));
    good(tr_nccl_settle(b->n, ncclGroupEnd(), "ncclGroupEnd"));
    ok(cudaEventRecord(b->join, b->beside));
    ok(cudaStreamWaitEvent(b->stream, b->join, 0));
    ok(cudaMemcpyAsync(b->out, b->data, N * sizeof(float), cudaMemcpyDeviceToDevice, b->stream));
}

static void feed(bench *b, float first)
{
    float host[N];
    for (int i = 0; i < N; i++) host[i] = first + (float)i;
    ok(cudaMemcpyAsync(b->data, host, sizeof host, cudaMemcpyHostToDevice, b->stream));
    ok(cudaStreamSynchronize(b->stream));
}

static void expect(bench *b, float first)
{
    float host[N];
    ok(cudaMemcpyAsync(host, b->out, sizeof host, cudaMemcpyDeviceToHost, b->stream));
    ok(cudaStreamSynchronize(b->stream));
    for (int i = 0; i < N; i++)
        if (host[i] != first + (float)i)
            fail_msg("[%d] = %g, expected %g", i, (double)host[i], (double)(first + (float)i));
}

static void test_order(void **state)
{
    (void)state;
    bench b = open_bench();
    assert_non_null(b.n->comm);
    for (int i = 0; i < 10; i++) {
        feed(&b, (float)i);
        reduce(&b);
        good(tr_nccl_look(b.n));
        expect(&b, (float)i);
    }
    close_bench(&b);
}

static void test_recorded(void **state)
{
    (void)state;
    bench b = open_bench();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    feed(&b, 0);
    reduce(&b); /* connects, which must not be recorded */
    ok(cudaStreamSynchronize(b.stream));
    ok(cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal));
    reduce(&b);
    ok(cudaStreamEndCapture(b.stream, &graph));
    ok(cudaGraphInstantiate(&exec, graph, 0));
    ok(cudaGraphDestroy(graph));
    for (int i = 0; i < 5; i++) {
        feed(&b, 100.0f * (float)i);
        ok(cudaGraphLaunch(exec, b.stream));
        expect(&b, 100.0f * (float)i);
        if (i == 2) reduce(&b); /* one that is not recorded, between */
    }
    ok(cudaStreamSynchronize(b.stream));
    ok(cudaGraphExecDestroy(exec)); /* before the communicator: it would wait for it */
    close_bench(&b);
}

static void test_abort(void **state)
{
    (void)state;
    bench b = open_bench();
    feed(&b, 0);
    reduce(&b);
    tr_nccl_abort(b.n);
    assert_null(b.n->comm);
    good(tr_nccl_look(b.n));
    tr_nccl_abort(b.n);
    close_bench(&b);
}

/* What the library refuses is said in its words. */
static void test_errors(void **state)
{
    (void)state;
    bench b = open_bench();
    tr_status st = tr_nccl_check(b.n, ncclGroupEnd(), "ncclGroupEnd()"); /* of none */
    assert_int_equal(st, TR_KERNEL);
    assert_non_null(strstr(tr_last_error()->text, "ncclGroupEnd(...): "));
    assert_non_null(strstr(tr_last_error()->text, "(ncclInvalidUsage)"));
    assert_int_equal(tr_nccl_check(b.n, ncclInProgress, "x"), TR_OK);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_errors),
    };
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        print_message("skipped: no CUDA device\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
