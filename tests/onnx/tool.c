/* What peers.py asks of us: networks with random values as ONNX files with inputs and our outputs,
 * and ONNX files run by us.
 *   onnx_tool count                                      how many cases there are
 *   onnx_tool export CASE OPSET float32|float16 BATCH FOLDER
 *       case number, or 1000 + seed: a random model
 *   onnx_tool export ... FOLDER ROWS    our outputs for sequences of so many rows, of the same file
 *   onnx_tool rows CASE          how many rows its sequences have; 0: no other length fits its file
 *   onnx_tool run FILE BATCH IN OUT                      float32 values, as they are */
#include "optimize/onnx/onnx.h"
#include "tests/unit/onnx/shorter.h"

static void put(const char *folder, const char *name, const void *v, size_t n)
{
    char *path = tr_sprintf("%s%s%s", folder, *folder ? "/" : "", name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(v, 1, n, f) != n || fclose(f) != 0) abort();
    tr_free(path);
}

static int export_case(int argc, char **argv)
{
    const size_t number = (size_t)atoi(argv[2]);
    const int64_t batch = atoi(argv[5]);
    const char *folder = argv[6];
    tr_network *n = number < 1000 ? net_of(&onnx_cases[number], number)
                                  : net_random(random_model(number - 1000, 0), number);
    const tr_onnx_options o = {.opset = atoi(argv[3]),
                               .weights = strcmp(argv[4], "float16") == 0 ? TR_F16 : TR_F32};
    char *path = tr_sprintf("%s/model.onnx", folder);
    if (tr_onnx_write(path, n, &o) != TR_OK) {
        fprintf(stderr, "%s\n", tr_last_error()->text);
        return 1;
    }
    if (o.weights == TR_F16)
        for (size_t i = 0; i < n->model->flat_count; i++)
            n->params[i] = tr_f16_to_f32(tr_f32_to_f16(n->params[i]));
    if (argc == 8) n = net_shorter(n, atoi(argv[7]));
    const tr_model *m = n->model;
    float *x = net_inputs(m, batch, number), *y = net_run(n, batch, x);
    size_t outputs = (size_t)batch;
    for (int i = 0; i < m->layers[m->nlayers - 1].output.ndim; i++)
        outputs *= (size_t)m->layers[m->nlayers - 1].output.dims[i];
    put(folder, "in.bin", x, (size_t)batch * net_input_count(m) * sizeof *x);
    put(folder, "out.bin", y, outputs * sizeof *y);
    printf("%s\n", number < 1000 ? onnx_cases[number].name : "random");
    return 0;
}

static float *get(const char *path, size_t n)
{
    float *v = tr_alloc(TR_MEM_OTHER, n, sizeof *v);
    FILE *f = fopen(path, "rb");
    if (!v || !f || fread(v, sizeof *v, n, f) != n) abort();
    fclose(f);
    return v;
}

static int run_file(char **argv)
{
    const tr_onnx_import o = {.loss = NULL};
    const int64_t batch = atoi(argv[3]);
    tr_network *n = NULL;
    tr_onnx_found found = {0};
    if (tr_onnx_read(argv[2], &o, &n, &found) != TR_OK) {
        fprintf(stderr, "%s\n", tr_last_error()->text);
        return 1;
    }
    const tr_model *m = n->model;
    const tr_shape *last = &m->layers[m->nlayers - 1].output;
    float *x = get(argv[4], (size_t)batch * net_input_count(m)), *y = net_run(n, batch, x);
    put("", argv[5], y, (size_t)batch * net_count(last->ndim, last->dims) * sizeof *y);
    printf("%zu layers, %zu parameters%s%s\n", m->nlayers, m->nparameters,
           found.normalize ? ", normalize " : "", found.normalize ? found.normalize : "");
    return 0;
}

static void print_rows(const char *number)
{
    tr_network *n = net_of(&onnx_cases[atoi(number)], 1);
    tr_onnx_sequence s;
    ok(tr_onnx_find_sequence(n->model, &s));
    printf("%lld\n", s.layer ? 0LL : (long long)s.rows);
    tr_network_close(n);
}

int main(int argc, char **argv)
{
    if (argc == 2) printf("%zu\n", TR_COUNT(onnx_cases));
    if (argc == 3) print_rows(argv[2]);
    if (argc == 7 || argc == 8) return export_case(argc, argv);
    if (argc == 6) return run_file(argv);
    return argc == 2 || argc == 3 ? 0 : 2;
}
