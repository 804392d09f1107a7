/* links: trireme_cpu trireme_runtime */
/* Files of arrays by name: their headers and bytes as the formats say. What other programs make of them,
 * tests/onnx/peers.py asks. */
#include "optimize/tensors/tensors.h"
#include "tests/unit/onnx/cases.h"

#include <unistd.h>
#include <zlib.h>

static const onnx_case model = {
    "m", IMAGE("    - conv2d: {out: 6, kernel: 3}\n    - batchnorm\n    - flatten\n"
               "    - linear: {out: 3, name: head}\n")};
static char folder[64], path[96];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/dev/shm/trireme-tensors-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/m", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static char *whole(size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *v = calloc(1, 1 << 16);
    *n = fread(v, 1, (1 << 16) - 1, f);
    fclose(f);
    return v;
}

static void test_safetensors(void **state)
{
    (void)state;
    tr_network *n = net_of(&model, 3);
    for (int half = 0; half < 2; half++) {
        size_t size;
        uint64_t header;
        ok(tr_safetensors_write(path, n, half ? TR_F16 : TR_F32, "abc"));
        char *v = whole(&size);
        memcpy(&header, v, sizeof header);
        assert_true(header % 8 == 0 && v[8] == '{');
        const char *at = strstr(v + 8, "\"head.bias\":{\"dtype\":");
        assert_non_null(at);
        assert_memory_equal(at + 21, half ? "\"F16\"" : "\"F32\"", 5);
        unsigned long long begin, end;
        assert_int_equal(
            sscanf(strstr(at, "data_offsets"), "data_offsets\":[%llu,%llu]", &begin, &end), 2);
        assert_int_equal(end - begin, half ? 6 : 12);
        const float *bias = tr_network_param(n, "head", "bias");
        for (int i = 0; i < 3; i++) {
            uint16_t h;
            float f;
            memcpy(&h, v + 8 + header + begin + 2 * (size_t)i, sizeof h);
            memcpy(&f, v + 8 + header + begin + 4 * (size_t)i, sizeof f);
            assert_true(half ? h == tr_f32_to_f16(bias[i]) : f == bias[i]);
        }
        assert_non_null(
            strstr(v + 8, "\"batchnorm1.running_var\":{\"dtype\":\"F32\",\"shape\":[6]"));
        assert_non_null(strstr(v + 8, "\"source_sha256\":\"abc\""));
        free(v);
    }
    tr_network_close(n);
}

/* No infinity takes the place of a value. */
static void test_range(void **state)
{
    (void)state;
    tr_network *n = net_of(&model, 3);
    tr_network_param(n, "head", "weight")[1] = 70000;
    ok(tr_safetensors_write(path, n, TR_BF16, NULL));
    unlink(path);
    assert_int_equal(tr_safetensors_write(path, n, TR_F16, NULL), TR_DATA);
    assert_non_null(
        strstr(tr_last_error()->text, "head.weight: a value of 70000 does not fit float16"));
    assert_int_equal(access(path, F_OK), -1);
    tr_network_close(n);
}

static void test_npz(void **state)
{
    (void)state;
    tr_network *n = net_of(&model, 3);
    size_t size, rows = n->model->nparams + n->model->nstates;
    ok(tr_npz_write(path, n));
    char *v = whole(&size);
    uint16_t count;
    uint32_t at, place, crc, bytes;
    memcpy(&count, v + size - 12, sizeof count);
    assert_int_equal(count, rows);
    memcpy(&at, v + size - 6, sizeof at); /* the directory; its entries lead to the arrays */
    for (size_t i = 0; i < rows; i++) {
        uint16_t name;
        memcpy(&crc, v + at + 16, sizeof crc);
        memcpy(&bytes, v + at + 20, sizeof bytes);
        memcpy(&name, v + at + 28, sizeof name);
        memcpy(&place, v + at + 42, sizeof place);
        const char *npy = v + place + 30 + name;
        assert_memory_equal(v + at + 46, v + place + 30, name);
        assert_int_equal(crc, crc32(0, (const Bytef *)npy, bytes));
        assert_memory_equal(npy, "\x93NUMPY\x01", 7);
        if (strncmp(v + at + 46, "conv2d1.weight.npy", name) == 0)
            assert_non_null(strstr(npy + 10, "'shape': (6, 4, 3, 3, )"));
        at += 46u + name;
    }
    free(v);
    tr_network_close(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_safetensors),
                                       cmocka_unit_test(test_range), cmocka_unit_test(test_npz)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
