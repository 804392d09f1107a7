/* ranks: 1 2 3 4 */
/* standin */
/* tr_reducer_sum_owned of devices, by NCCL and by MPI through the host: what each rank has of the
 * ranges that it owns comes to one sum over the model, each range counted once, the same bits on
 * every rank; as it comes, recorded and replayed. */
#include "gpu_bench.h"

enum { COUNT = 37 };

/* Of element e: something that only one owner may count. */
static double part(size_t e, int i)
{
    return (double)((e + (size_t)i) % 1021) + 1;
}

static void fill(const bench *b, double *own, int step)
{
    for (int i = 0; i < COUNT; i++) {
        own[i] = 0;
        for (size_t r = 0; r < b->p->nowned; r++)
            for (size_t e = b->p->owned[r].begin; e < b->p->owned[r].end; e++)
                own[i] += part(e, i + step);
    }
}

static void check_sums(bench *b, const double *values, int step)
{
    double got[COUNT];
    check(b, gpu->memory->download(b->ctx, got, values, sizeof got));
    for (int i = 0; i < COUNT; i++) {
        double want = 0; /* whole numbers: exact in any order */
        for (size_t e = 0; e < b->count; e++) want += part(e, i + step);
        if (got[i] != want)
            fail_msg("%s, %s, step %d: sum %d is %.17g, expected %.17g", b->k->name, b->l->name,
                     step, i, got[i], want);
    }
}

/* `recorded`: steps of a section, of which the third and later ones are replayed. */
static void check_kind(const kind *k, const layout *l, bool recorded)
{
    bench b = open_bench(k, l, 30);
    double own[COUNT];
    double *values = gpu->memory->alloc(b.ctx, TR_MEM_OTHER, sizeof own);
    assert_non_null(values);
    b.sums = values;
    b.nsums = COUNT;
    int host = 0;
    for (int step = 0; step < 5; step++) {
        bool replay = false;
        fill(&b, own, step);
        check(&b, feed(&b, step));
        check(&b, gpu->memory->upload(b.ctx, values, own, sizeof own));
        if (recorded) check(&b, gpu->sections->begin(b.sections, 5, &replay));
        tr_status st = replay ? TR_OK : run(&b, b.t->rank % 4);
        host += !replay;
        if (recorded) st = gpu->sections->end(b.sections, st);
        check(&b, st);
        check_step(&b, step);
        check_sums(&b, values, step);
    }
    assert_int_equal(host, recorded ? 2 : 5);
    gpu->memory->free(b.ctx, values);
    close_bench(&b);
}

static void test_sums(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(kinds); k++) check_kind(&kinds[k], &layouts[1], false);
}

static void test_recorded(void **state)
{
    (void)state;
    for (size_t k = 0; k < TR_COUNT(kinds); k++)
        if (kinds[k].nccl) check_kind(&kinds[k], &layouts[2], true);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_sums),
    cmocka_unit_test(test_recorded),
};

int main(int argc, char **argv)
{
    int rank, size, failed;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    tr_log_init(rank, size, TR_LOG_ERROR);
    failed = RUN_RANK_TESTS(tests);
    MPI_Finalize();
    return failed;
}
