/* What the stand-in for cuBLASLt ends the process for (status 99), and calls of it that fail: this
 * program anew, `test_blas_violations_standin NAME`. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/cuda/blas_call.h"

/* ---- Violations ---- */

static void misaligned(call *c)
{
    c->at_d += 32;
    multiply(c);
}

static void overlap_a(call *c)
{
    c->at_d = c->at_a + 256;
    multiply(c);
}

static void workspace_on_d(call *c)
{
    c->at_d = c->workspace;
    multiply(c);
}

static void freed(call *c)
{
    b->memory->free(c->cuda, c->at_b);
    multiply(c);
}

static void host_pointer(call *c)
{
    static _Alignas(256) char here[K * M * 2];
    c->at_a = here;
    multiply(c);
}

static void bias_less_aligned(call *c)
{
    set_epilogue(c, CUBLASLT_EPILOGUE_BIAS);
    set_bias(c, c->bias);
    need(ask(c));
    set_bias(c, c->bias + 4);
    multiply(c);
}

static void too_short(call *c)
{
    c->at_b += 256;
    multiply(c);
}

static void destroyed_layout(call *c)
{
    cublasLtMatrixLayoutDestroy(c->b);
    multiply(c);
}

static void destroyed_twice(call *c)
{
    cublasLtMatmulDescDestroy(c->desc);
    cublasLtMatmulDescDestroy(c->desc);
}

static void wrong_kind(call *c)
{
    cublasLtMatrixLayoutDestroy((cublasLtMatrixLayout_t)(void *)c->desc);
}

static void unmodelled(call *c)
{
    void *p = c->bias;
    cublasLtMatmulDescSetAttribute(c->desc, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, &p, sizeof p);
}

static void aux_less_aligned(call *c)
{
    set_aux(c, CUBLASLT_EPILOGUE_GELU_AUX, c->workspace, M);
    need(ask(c));
    set_aux(c, CUBLASLT_EPILOGUE_GELU_AUX, c->workspace + 16, M);
    multiply(c);
}

static void aux_on_d(call *c)
{
    set_aux(c, CUBLASLT_EPILOGUE_DGELU, c->at_d, M);
    need(ask(c));
    multiply(c);
}

static void aux_on_b(call *c)
{
    set_aux(c, CUBLASLT_EPILOGUE_GELU_AUX, c->at_b, M);
    need(ask(c));
    multiply(c);
}

static void aux_too_short(call *c)
{
    set_aux(c, CUBLASLT_EPILOGUE_DGELU, c->bias, M);
    need(ask(c));
    multiply(c);
}

/* Nothing else is left over. */
static void leaked(call *c)
{
    cublasLtMatrixLayout_t l;
    call_close(c);
    need(cublasLtMatrixLayoutCreate(&l, CUDA_R_16F, 1, 1, 1));
    exit(0);
}

static const struct {
    const char *name;
    void (*run)(call *);
    const char *text;
} violations[] = {
    {"misaligned", misaligned, "is not aligned to 256 bytes"},
    {"overlap_a", overlap_a, "D overlaps A"},
    {"workspace_on_d", workspace_on_d, "the workspace overlaps D"},
    {"freed", freed, "freed device memory"},
    {"host_pointer", host_pointer, "is not in device memory"},
    {"bias_less_aligned", bias_less_aligned, "bias"},
    {"too_short", too_short, "do not lie inside one allocation"},
    {"aux_less_aligned", aux_less_aligned, "the auxiliary matrix"},
    {"aux_on_d", aux_on_d, "D overlaps the auxiliary matrix"},
    {"aux_on_b", aux_on_b, "the auxiliary matrix overlaps B"},
    {"aux_too_short", aux_too_short, "do not lie inside one allocation"},
    {"destroyed_layout", destroyed_layout, "no live cuBLASLt matrix layout"},
    {"destroyed_twice", destroyed_twice, "no live cuBLASLt operation descriptor"},
    {"wrong_kind", wrong_kind, "no live cuBLASLt matrix layout"},
    {"unmodelled", unmodelled, "not modelled"},
    {"leaked", leaked, "a cuBLASLt matrix layout was never destroyed"},
};

static char self[4096];

/* This program again, for one of the cases; what it says is looked through for the text. */
static void check_violation(size_t i)
{
    char command[4200], said[4096] = "";
    snprintf(command, sizeof command, "'%s' %s 2>&1", self, violations[i].name);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    const size_t n = fread(said, 1, sizeof said - 1, p);
    said[n] = 0;
    const int status = pclose(p);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 99)
        fail_msg("%s: ended with %d, saying: %s", violations[i].name, status, said);
    if (!strstr(said, violations[i].text))
        fail_msg("%s: \"%s\" is not in: %s", violations[i].name, violations[i].text, said);
}

static void test_violations(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(violations); i++) check_violation(i);
}

/* ---- Faults ---- */

static const struct {
    const char *call;
    bool told;   /* else what fails is cleaning up, or */
    bool passed; /* an algorithm, and another one is taken */
} faults[] = {{"cublasLtCreate", true, false},
              {"cublasLtDestroy", false, false},
              {"cublasLtMatmulDescCreate", true, false},
              {"cublasLtMatmulDescDestroy", false, false},
              {"cublasLtMatmulDescSetAttribute", true, false},
              {"cublasLtMatrixLayoutCreate", true, false},
              {"cublasLtMatrixLayoutDestroy", false, false},
              {"cublasLtMatmulPreferenceCreate", true, false},
              {"cublasLtMatmulPreferenceDestroy", false, false},
              {"cublasLtMatmulPreferenceSetAttribute", true, false},
              {"cublasLtMatmulAlgoGetHeuristic", true, false},
              {"cublasLtMatmul", false, true}};

/* A product from beginning to end, with timing; 1 and the error's text where something failed. */
static int try_product(void)
{
    void *ctx = NULL;
    tr_cuda_product *p = NULL;
    const tr_backend_options o = {.workspace = 1 << 20, .benchmark = true};
    const tr_cuda_problem q = {.m = M,
                               .n = N,
                               .k = K,
                               .lda = K,
                               .ldb = N,
                               .ldd = N,
                               .type = TR_BF16,
                               .out = TR_F32,
                               .epilogue = TR_EPILOGUE_BIAS,
                               .align_a = 256,
                               .align_b = 256,
                               .align_d = 256,
                               .align_vector = 64};
    void *part[5] = {NULL};
    tr_status st = TR_OK;
    TR_TRY(b->open(&o, &ctx));
    TR_TRY(tr_cuda_product_open(ctx, &q, &p));
    for (size_t i = 0; i < TR_COUNT(part); i++) {
        part[i] =
            b->memory->alloc(ctx, TR_MEM_OTHER, i == 4 ? tr_cuda_product_workspace(p) + 1 : 2048);
        TR_NEED(part[i], TR_MEMORY, "no memory");
    }
    TR_TRY(tr_cuda_product_run(p, &(tr_cuda_product_args){.a = part[0],
                                                          .b = part[1],
                                                          .d = part[2],
                                                          .vector = part[3],
                                                          .alpha = 1,
                                                          .workspace = part[4]}));
    TR_TRY(b->stream->finish(ctx));
out:
    if (st != TR_OK) printf("%s\n", tr_last_error()->text);
    for (size_t i = 0; ctx && i < TR_COUNT(part); i++) b->memory->free(ctx, part[i]);
    tr_cuda_product_close(p);
    b->close(ctx);
    return st != TR_OK;
}

/* Every call of the library fails once, the first and the second time: nothing is left behind. */
static void test_faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(faults); i++)
        for (int nth = 1; nth <= 2; nth++) {
            char command[4400], said[4096] = "";
            snprintf(command, sizeof command,
                     "FAKEGPU_LEAKS=strict FAKEGPU_FAIL=%s:%d '%s' fault 2>&1", faults[i].call, nth,
                     self);
            FILE *p = popen(command, "r");
            assert_non_null(p);
            said[fread(said, 1, sizeof said - 1, p)] = 0;
            const int status = pclose(p);
            /* Some are called once only. */
            const int want = faults[i].told && (nth == 1 || strstr(faults[i].call, "Attribute") ||
                                                strstr(faults[i].call, "LayoutCreate"));
            if (!WIFEXITED(status) || WEXITSTATUS(status) != want ||
                ((want || faults[i].passed) && !strstr(said, faults[i].call)) ||
                (faults[i].passed && !strstr(said, "another one is taken")))
                fail_msg("%s:%d: ended with %d, saying: %s", faults[i].call, nth, status, said);
        }
}

int main(int argc, char **argv)
{
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return 1;
    if (argc > 1 && strcmp(argv[1], "fault") == 0) return try_product();
    for (size_t i = 0; argc > 1 && i < TR_COUNT(violations); i++) {
        if (strcmp(argv[1], violations[i].name) != 0) continue;
        call c = call_open();
        violations[i].run(&c);
        b->stream->finish(c.cuda);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_violations),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
