/* links: trireme_cpu trireme_plan
 * Which way attention goes: a plan of cuDNN's, where there is one that runs; with `benchmark` the
 * faster of it and our own kernels; and what a dry context says of the workspace. */
#include "tests/unit/cuda/mirror.h"
#include "tests/unit/cpu/attention_trial.h"

#include <stdlib.h>

#include "kernels/cuda/internal.h"

static const shape some = {"some", 2, 2, 2, 96, 96, 64, 0, true, false, true, false, 0, 0, true};

static void expect_way(bool backward, const char *impl)
{
    trial t;
    (backward ? prepare_backward : prepare_forward)(&t, &some, TR_PRECISION_BF16, 0, 1, false);
    assert_string_equal(t.h.kernel->impl, impl);
    close_trial(&t);
}

static void with(const char *name, const char *value, const char *impl)
{
    setenv(name, value, 1);
    for (int backward = 0; backward < 2; backward++) expect_way(backward, impl);
    unsetenv(name);
}

/* Refused by the heuristics, failing when it is run; a call that fails is a refusal, too. */
static void by_what_there_is(void **state)
{
    (void)state;
    for (int benchmark = 0; benchmark < 2; benchmark++) {
        mirror_options.deterministic = false;
        mirror_options.benchmark = benchmark;
        if (!benchmark) with("NOTHING", "", "cuDNN engine 6");
        with("FAKEGPU_CUDNN_NO_GRAPH", "attention", "own, tensor cores");
        with("FAKEGPU_BROKEN", "cudnn:6", "own, tensor cores");
    }
    mirror_options.benchmark = false;
}

static void by_time(void **state)
{
    (void)state;
    mirror_options.deterministic = false;
    mirror_options.benchmark = true;
    with("FAKEGPU_BROKEN", "cudnn:6~", "own, tensor cores");
    expect_way(true, "cuDNN engine 6"); /* one piece of work for two */
    mirror_options.benchmark = false;
}

/* The sums of the gradient of queries are added up in no fixed order: our own kernels with
 * `deterministic`. */
static void workspace_holds_what_is_taken(void **state)
{
    (void)state;
    for (int deterministic = 0; deterministic < 2; deterministic++)
        for (int backward = 0; backward < 2; backward++) {
            const bool plan = !backward || !deterministic;
            trial t;
            size_t taken, planned;
            mirror_options.deterministic = deterministic;
            (backward ? prepare_backward : prepare_forward)(&t, &some, TR_PRECISION_BF16, 0, 1,
                                                            false);
            assert_string_equal(t.h.kernel->impl, plan ? "cuDNN engine 6" : "own, tensor cores");
            taken = t.h.kernel->workspace;
            assert_true(backward && !deterministic ? taken > 2 * 2 * 96 * 64 * sizeof(float)
                                                   : taken < 2 * 2 * 96 * 64 * sizeof(float));
            const mirror_kernel *k = (const mirror_kernel *)t.h.kernel;
            const tr_backend_options o = {
                .dry = true, .deterministic = deterministic, .workspace = mirror_options.workspace};
            void *dry = NULL;
            tr_kernel *kernel = NULL;
            mirror_try(tr_cuda_backend.open(&o, &dry), "open");
            mirror_try(tr_cuda_backend.kernels->prepare(dry, k->g, k->op, &kernel), "prepare");
            planned = kernel->workspace;
            kernel->close(kernel);
            tr_cuda_backend.close(dry);
            close_trial(&t);
            assert_in_range(planned, taken, taken + 16000000);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(by_what_there_is),
                                       cmocka_unit_test(by_time),
                                       cmocka_unit_test(workspace_holds_what_is_taken)};
    setenv("FAKEGPU_CLOCK", "work", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
