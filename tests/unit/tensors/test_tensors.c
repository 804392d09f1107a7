/* links: trireme_cpu trireme_runtime */
/* Files of arrays by name: their headers and bytes as the formats say. What numpy and h5py
 * make of NPZ and HDF5, tests/e2e/test_export.py asks. */
#include "tensors.h"
#include "tests/unit/few_files.h"
#include "runtime/store/store.h"

#include <hdf5.h>
#include <zlib.h>

static void test_safetensors(void **state)
{
    (void)state;
    tr_network *n = net_of(&model, 3);
    for (int half = 0; half < 2; half++) {
        size_t size;
        uint64_t header;
        ok(tr_safetensors_write(path, n, NULL, half ? TR_F16 : TR_F32, "abc"));
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
    ok(tr_safetensors_write(path, n, NULL, TR_BF16, NULL));
    unlink(path);
    assert_int_equal(tr_safetensors_write(path, n, NULL, TR_F16, NULL), TR_DATA);
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
    ok(tr_npz_write(zip, n, NULL));
    char *v = whole_of(zip, &size);
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

/* ---- Reading --------------------------------------------------------------------------------- */

/* A file of this header, said to have `length` bytes (0: as many as it has), and `nbytes` zeros. */
static void write_file(const char *header, uint64_t length, size_t nbytes)
{
    unsigned char bytes[8];
    FILE *f = fopen(path, "wb");
    const size_t n = strlen(header);
    if (length == 0) length = n;
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> 8 * i);
    fwrite(bytes, 1, 8, f);
    fwrite(header, 1, n, f);
    for (size_t i = 0; i < nbytes; i++) fputc(0, f);
    assert_int_equal(fclose(f), 0);
}

static void test_read(void **state)
{
    (void)state;
    tr_network *n = net_of(&model, 3), *got = net_of(&model, 4);
    static const tr_dtype written[] = {TR_F32, TR_BF16, TR_F16};
    for (size_t t = 0; t < TR_COUNT(written); t++) {
        ok(tr_safetensors_write(path, n, NULL, written[t], NULL));
        ok(read_all(path, got));
        for (size_t i = 0; i < n->model->flat_count; i++) {
            const float v = n->params[i];
            assert_true(got->params[i] == (t == 0   ? v
                                           : t == 1 ? tr_bf16_to_f32(tr_f32_to_bf16(v))
                                                    : tr_f16_to_f32(tr_f32_to_f16(v))));
        }
        assert_memory_equal(got->states, n->states, n->model->state_count * sizeof(float));
    }
    tr_network_close(got);
    tr_network_close(n);
    n = net_of(&small, 3); /* float64, an escaped name, a counter of PyTorch's, no order */
    write_file("{ \"a.b\\u0069as\" : {\"shape\":[2],\"data_offsets\":[8,24],\"dtype\":\"F64\"},\n"
               "\"b.num_batches_tracked\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
               "\"a.weight\":{\"dtype\":\"F32\",\"shape\":[2,6],\"data_offsets\":[24,72]},"
               "\"__metadata__\":{\"x\":\"y\"}}  ",
               0, 72);
    ok(read_all(path, n));
    for (size_t i = 0; i < 2; i++) assert_true(tr_network_param(n, "a", "bias")[i] == 0);
    tr_network_close(n);
}

#define W(type, shape, places)                                                                     \
    "\"a.weight\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" places "}"
#define B(places) "\"a.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" places "}"
#define GOOD      W("F32", "[2,6]", "[0,48]")

static void test_bad(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        uint64_t length;
        size_t nbytes;
        const char *said;
    } bad[] = {
        {"", 1, 0, "header is said to have 1 bytes"},
        {"{}", UINT64_MAX, 0, "header is said to have 18446744073709551615 bytes"},
        {"{}", 1u << 30, 0, "header is said to have 1073741824 bytes"},
        {"{}", 3, 0, "header is said to have 3 bytes"},
        {"[]", 0, 0, "byte 0: expected '{'"},
        {"{} x", 0, 0, "byte 3: more behind"},
        {"{\"a\"", 0, 0, "expected ':', it ends"},
        {"{\"a", 0, 0, "it ends within a string"},
        {"{\"a\\", 0, 0, "it ends within a string"},
        {"{\"\\ud800\":{}}", 0, 0, "a character that no name has"},
        {"{\"\\u00\":{}}", 0, 0, "four hexadecimal digits"},
        {"{\"\\n\":{}}", 0, 0, "an escape that no name has"},
        {"{\"\xff\":{}}", 0, 0, "not UTF-8"},
        {"{\"\x01\":{}}", 0, 0, "a control character"},
        {"{\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "aaaa"
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\":{}}",
         0, 0, "too long"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, 0, "each once"},
        {"{\"a\":{\"more\":1}}", 0, 0, "each once"},
        {"{\"a\":{\"dtype\":\"F32\"}}", 0, 0, "expected ','"},
        {"{\"a\":{\"shape\":[-1]}}", 0, 0, "expected a whole number"},
        {"{\"a\":{\"shape\":[1.5]}}", 0, 0, "expected ','"},
        {"{\"a\":{\"shape\":[9223372036854775808]}}", 0, 0, "a number beyond 63 bits"},
        {"{\"a\":{\"shape\":[1,1,1,1,1,1,1,1,1]}}", 0, 0, "more than 8 dimensions"},
        {"{\"a\":{\"shape\":[[[[1]]]]}}", 0, 0, "expected a whole number"},
        {"{\"__metadata__\":{\"a\":1}}", 0, 0, "expected '\"'"},
        {"{" W("F8", "[2,6]", "[0,12]") "," B("[12,20]") "}", 0, 20, "of an unknown type, F8"},
        {"{" W("F32", "[4294967296,4294967296]", "[0,48]") "}", 0, 48,
         "its shape and type F32 do not fit"},
        {"{" W("F32", "[2,6]", "[0,44]") "," B("[44,52]") "}", 0, 52, "do not fit"},
        {"{" W("F32", "[2,6]", "[48,0]") "," B("[0,8]") "}", 0, 56, "do not fit"},
        {"{" W("F32", "[2,6]", "[9223372036854775760,9223372036854775807]") "}", 0, 8,
         "do not fit"},
        {"{" GOOD "," B("[48,56]") "}", 0, 52, "a.bias has bytes 48 to 56 of 52"},
        {"{" GOOD "," B("[40,48]") "}", 0, 48,
         "a.bias begins at byte 40, expected 48: it overlaps"},
        {"{" GOOD "," B("[52,60]") "}", 0, 60,
         "a.bias begins at byte 52, expected 48: bytes of no array"},
        {"{" GOOD "," B("[48,56]") "}", 0, 57, "1 bytes behind the last array"},
        {"{" GOOD "," W("F32", "[2,6]", "[48,96]") "}", 0, 96, "a.weight stands twice"},
        {"{}", 0, 0, "does not fit the model: 0 of 2 arrays taken; 2 missing: a.weight, a.bias"},
        {"{" W("F32", "[6,2]", "[0,48]") "," B("[48,56]") "}", 0, 56,
         "a.weight is (6, 2), the model's (2, 6)"},
        {"{" W("I32", "[2,6]", "[0,48]") "," B("[48,56]") "}", 0, 56,
         "a.weight: of type I32, expected"},
        {"{" W("U32", "[2,6]", "[0,48]") "," B("[48,56]") "}", 0, 56,
         "a.weight: of type U32, expected"},
        {"{" GOOD
         "," B("[48,56]") ",\"c\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[56,56]}}",
         0, 56, "1 not the model's: c"},
    };
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    tr_network *n = net_of(&small, 3);
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        write_file(bad[i].header, bad[i].length, bad[i].nbytes);
        const tr_status st = read_all(path, n);
        if ((st != TR_FILE && st != TR_CONFIG) || !strstr(tr_last_error()->text, bad[i].said))
            fail_msg("file %zu: status %d, %s, expected %s", i, (int)st, tr_last_error()->text,
                     bad[i].said);
    }
    write_file("{" GOOD "," B("[48,56]") "}", 0, 56);
    ok(read_all(path, n));
    size_t size;
    free(whole(&size));
    while (size-- > 0) { /* wherever it is cut short, it is told */
        assert_int_equal(truncate(path, (off_t)size), 0);
        assert_true(read_all(path, n) != TR_OK);
    }
    assert_int_equal(read_all(folder, n), TR_IO);
    tr_network_close(n);
    assert_int_equal(tr_mem_held(TR_MEM_OTHER), held);
}

static void test_hdf5(void **state)
{
    (void)state;
    tr_network *n = net_of(&model, 3);
    float bias[3];
    ok(tr_hdf5_write(hdf5, n, NULL));
    const hid_t f = H5Fopen(hdf5, H5F_ACC_RDONLY, H5P_DEFAULT),
                d = H5Dopen2(f, "head.bias", H5P_DEFAULT);
    assert_true(d >= 0 && H5Dread(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, bias) >= 0);
    assert_memory_equal(bias, tr_network_param(n, "head", "bias"), sizeof bias);
    H5Dclose(d);
    H5Fclose(f);
    tr_network *got = net_of(&model, 4);
    ok(read_all(hdf5, got));
    same_values(n, got);
    tr_network_close(got);
    tr_network_close(n);
}

/* ---- Which array is whose -------------------------------------------------------------------- */

static void test_map(void **state)
{
    (void)state;
    static const onnx_case other = {
        "o",
        IMAGE("    - conv2d: {out: 6, kernel: 3, name: body.0}\n    - batchnorm: {name: body.1}\n"
              "    - flatten\n    - linear: {out: 5, name: head}\n")};
    tr_network *n = net_of(&model, 3), *got = net_of(&other, 4), *before = net_of(&other, 4);
    tr_arrays_taken t;
    ok(tr_safetensors_write(path, n, NULL, TR_F32, NULL));
    static const char *const wrong[] = {"conv2d1.*", "body.0.*", NULL};
    assert_int_equal(take(path, true, wrong, got, NULL), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text,
                           "2 of 8 arrays taken; 4 missing: body.1.weight, body.1.bias, "
                           "body.1.running_mean, body.1.running_var; 2 of another shape or type: "
                           "head.weight is (3, 210), the model's (5, 210), head.bias is (3), the "
                           "model's (5); 4 not the model's: batchnorm1.bias, "));
    same_values(got, before); /* nothing was touched */
    static const char *const good[] = {
        "conv*.weight", "body.0.weight", "head.*",   "",  "conv2d1.*",
        "body.0.*",     "batchnorm1.*",  "body.1.*", NULL};
    assert_int_equal(take(path, true, good, got, NULL), TR_CONFIG); /* what is left out is missed */
    assert_non_null(
        strstr(tr_last_error()->text, "6 of 8 arrays taken; 2 missing: head.weight, head.bias"));
    ok(take(path, false, good, got, &t));
    assert_int_equal(t.taken, 6);
    assert_int_equal(t.missing.count, 2);
    assert_memory_equal(tr_network_param(got, "body.0", "weight"),
                        tr_network_param(n, "conv2d1", "weight"), 24 * 9);
    assert_memory_equal(tr_network_state(got, "body.1", "running_var"),
                        tr_network_state(n, "batchnorm1", "running_var"), 24);
    assert_memory_equal(tr_network_param(got, "head", "weight"),
                        tr_network_param(before, "head", "weight"), 40);
    static const char *const two[] = {"conv2d1.*", "body.0.*", "batchnorm1.*", "body.0.*", NULL};
    assert_int_equal(take(path, false, two, got, NULL), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "are both body.0."));
    static const char *const none[] = {"*", "x.*", NULL};
    assert_int_equal(take(path, false, none, got, NULL), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "nothing of it fits"));
    tr_network_param(n, "head", "bias")[1] = INFINITY;
    ok(tr_npz_write(zip, n, NULL));
    assert_int_equal(read_all(zip, n), TR_DATA);
    assert_non_null(strstr(tr_last_error()->text, "head.bias, element 1: not a finite"));
    tr_network_close(before);
    tr_network_close(got);
    tr_network_close(n);
}

/* A matrix that the file has the other way round, a row that it has as (1, features). */
static void test_transpose(void **state)
{
    (void)state;
    static const onnx_case from = {"f",
                                   "  input: [3, 5]\n  layers:\n    - linear: {out: 4, name: a}\n"
                                   "    - linear: {out: 1, name: b}\n  loss: mse\n"},
                           to = {"t", "  input: [2, 4]\n  layers:\n    - class_token: {name: b}\n"
                                      "    - linear: {out: 5, name: a}\n  loss: mse\n"};
    tr_rename rules[] = {{"*.bias", ""}};
    tr_rename patterns[] = {{"*.weight", NULL}}, others[] = {{"b.*", NULL}},
              unknown[] = {{"a.*", NULL}, {"c.*", NULL}};
    tr_network *n = net_of(&from, 3), *got = net_of(&to, 4);
    tr_arrays *a = NULL;
    tr_init_from o = {
        .file = path,
        .names = {.rules = rules, .nrules = 1, .transposed = others, .ntransposed = 1}};
    tr_arrays_taken t;
    ok(tr_safetensors_write(path, n, NULL, TR_F32, NULL));
    ok(tr_arrays_open(path, NULL, &a));
    assert_int_equal(tr_arrays_take(a, &o, got, NULL), TR_CONFIG);
    assert_non_null(
        strstr(tr_last_error()->text,
               "b.weight is (1, 4) before it is transposed, the model's (4), a.weight is "
               "(4, 5), the model's (5, 4)"));
    o.names.transposed = unknown;
    o.names.ntransposed = 2;
    assert_int_equal(tr_arrays_take(a, &o, got, NULL), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "\"c.*\": no matrix of "));
    o.names.transposed = patterns;
    o.names.ntransposed = 1;
    tr_rename row[] = {{"b.weight", "-"}, {"*.bias", ""}};
    o.names.rules = row;
    o.names.nrules = 2;
    ok(tr_arrays_take(a, &o, got, &t));
    assert_int_equal(t.taken, 1);
    const float *w = tr_network_param(n, "a", "weight"),
                *turned = tr_network_param(got, "a", "weight");
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 5; k++) assert_true(turned[k * 4 + i] == w[i * 5 + k]);
    o.names.transposed = NULL;
    o.names.ntransposed = 0;
    row[0] = (tr_rename){"a.*", ""};
    ok(tr_arrays_take(a, &o, got, &t));
    assert_int_equal(t.taken, 1);
    assert_memory_equal(tr_network_param(got, "b", "weight"), tr_network_param(n, "b", "weight"),
                        16);
    tr_arrays_close(a);
    tr_network_close(got);
    tr_network_close(n);
}

/* Too few files that may be open: said of each kind, which is none the less what it is. */
static void test_few_files(void **state)
{
    (void)state;
    tr_network *n = net_of(&small, 3);
    ok(tr_safetensors_write(path, n, NULL, TR_F32, NULL));
    ok(tr_npz_write(zip, n, NULL));
    ok(tr_hdf5_write(hdf5, n, NULL));
    const char *const files[] = {path, zip, hdf5};
    for (size_t i = 0; i < TR_COUNT(files); i++) {
        tr_status st = TR_IO;
        int failed = 0;
        for (int more = 0; st != TR_OK && more < 12; more++) {
            const struct rlimit before = few_files_left(more);
            st = read_all(files[i], n);
            more_files(before);
            failed += st != TR_OK;
            if (st != TR_OK) assert_few_files(files[i]);
        }
        ok(st);
        assert_true(failed >= 1);
    }
    tr_network_close(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors), cmocka_unit_test(test_range),
        cmocka_unit_test(test_npz),         cmocka_unit_test(test_read),
        cmocka_unit_test(test_bad),         cmocka_unit_test(test_hdf5),
        cmocka_unit_test(test_map),         cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_few_files)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
