/* links: trireme_cpu trireme_plan
 * Attention's gradient: a sample's has the same bits alone, in a batch and for any number of
 * threads, and the workspace holds no more than the heads that threads are at. */
#include "tests/unit/cpu/attention_trial.h"

static const shape batches[] = {
    {"all heads", 8, 4, 4, 1301, 1301, 8, 0, true, false, false, false, 0.1, 0, true},
    {"grouped", 8, 4, 2, 1301, 1301, 8, 0, true, false, true, false, 0, 0, true},
    {"multi-query", 8, 4, 1, 1301, 1301, 8, 0, true, false, true, false, 0, 0, true},
    {"multi-query, both ways", 8, 2, 1, 301, 1301, 8, 0, false, false, false, false, 0, 0, true},
    {"multi-query, window", 8, 2, 1, 1301, 1301, 8, 300, false, false, true, false, 0, 0, true},
    {"one tile", 8, 3, 1, 77, 77, 8, 0, false, false, true, false, 0, 0, true},
};

/* Sample n of a batch, of the tensor `id` that both have. */
static const void *of_batch(const trial *all, int id, const trial *one, int64_t n)
{
    return (const char *)all->h.data[id] + (size_t)n * one->h.tensors[id].nbytes;
}

/* The inputs of sample n, and its place in the run, in those of a run of it alone. */
static void run_again(trial *one, const trial *all, int64_t n)
{
    harness *h = &one->h;
    for (int i = 0; i < h->op.nin; i++)
        if (h->op.in[i] >= 0)
            memcpy(h->data[h->op.in[i]], of_batch(all, h->op.in[i], one, n),
                   h->tensors[h->op.in[i]].nbytes);
    h->run.ordinal = all->h.run.ordinal + (uint64_t)n;
    h_run(h, false);
}

static void same_outputs(const trial *one, const trial *all, int64_t n)
{
    for (int o = 0; o < one->h.op.nout; o++) {
        const int id = one->h.op.out[o];
        assert_memory_equal(one->h.data[id], of_batch(all, id, one, n), one->h.tensors[id].nbytes);
    }
}

static void check_alone(const trial *forward, const trial *backward, tr_precision p, int products,
                        int64_t n)
{
    shape s = *forward->s;
    s.samples = 1;
    for (int threads = 1; threads <= 3; threads += 2) {
        trial f, b;
        run_forward(&f, &s, p, tr_cpu_isa(), threads, products);
        run_again(&f, forward, n);
        same_outputs(&f, forward, n);
        run_backward(&b, &f, p, tr_cpu_isa(), threads, OF_FLOATS);
        run_again(&b, backward, n);
        same_outputs(&b, backward, n);
        close_trial(&f);
        close_trial(&b);
    }
}

static void same_bits_alone_and_in_a_batch(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(batches); i++) FOR_PRECISIONS(p)
    for (int threads = 1; threads <= 3; threads += 2) {
        const int products = p == TR_PRECISION_BF16 && threads > 1 ? OF_PAIRS : OF_FLOATS;
        trial f, b;
        run_forward(&f, &batches[i], p, tr_cpu_isa(), threads, products);
        run_backward(&b, &f, p, tr_cpu_isa(), threads, OF_FLOATS);
        check_alone(&f, &b, p, products, 0);
        check_alone(&f, &b, p, products, 5);
        close_trial(&f);
        close_trial(&b);
    }
}

/* Of a head of keys dq, delta, and q and dy as products read them; of a thread, less than 1 MB. */
static void workspace_is_that_of_heads_at_work(void **state)
{
    (void)state;
    const shape s = {"long", 1, 8, 1, 8192, 8192, 16, 8, true, false, true, false, 0, 0, true};
    const size_t rows = (size_t)(s.heads * s.queries), head = rows * (3 * (size_t)s.D + 1) * 4;
    for (int threads = 1; threads <= 4; threads += 3) {
        trial f, b;
        run_forward(&f, &s, TR_PRECISION_FP32, tr_cpu_isa(), threads, OF_FLOATS);
        run_backward(&b, &f, TR_PRECISION_FP32, tr_cpu_isa(), threads, OF_FLOATS);
        assert_in_range(b.h.kernel->workspace, 1, head + (size_t)threads * 1000000);
        close_trial(&f);
        close_trial(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_alone_and_in_a_batch),
        cmocka_unit_test(workspace_is_that_of_heads_at_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
