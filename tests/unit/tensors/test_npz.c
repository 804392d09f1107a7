/* NPZ files written in other ways than ours, whole and damaged. */
#include "tensors.h"

#include <zlib.h>

typedef struct {
    const char *name, *descr, *shape;
    bool fortran;
    const void *v;
    size_t nbytes;
} npy;

static unsigned char *put(unsigned char *to, uint64_t v, int nbytes)
{
    for (int i = 0; i < nbytes; i++) *to++ = i < 8 ? (unsigned char)(v >> 8 * i) : 0;
    return to;
}

/* The member's packed bytes. */
static size_t pack(const npy *m, bool deflated, unsigned char *to, size_t room, uint32_t *crc,
                   size_t *size)
{
    unsigned char raw[2048];
    const int n =
        snprintf((char *)raw + 10, 300, "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n",
                 m->descr, m->fortran ? "True" : "False", m->shape);
    memcpy(raw, "\x93NUMPY\x01\x00", 8);
    put(raw + 8, (uint64_t)n, 2);
    memcpy(raw + 10 + n, m->v, m->nbytes);
    *size = 10 + (size_t)n + m->nbytes;
    *crc = (uint32_t)crc32(0, raw, (uInt)*size);
    if (!deflated) {
        memcpy(to, raw, *size);
        return *size;
    }
    z_stream z = {.next_in = raw, .avail_in = (uInt)*size, .next_out = to, .avail_out = (uInt)room};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return z.total_out;
}

/* As Python writes it: sizes in the fields of ZIP64 of the members' own headers; `wide`: in the
 * directory too. */
static void write_npz(const npy *m, size_t count, bool deflated, bool wide)
{
    unsigned char file[8192], directory[2048], *p = file, *d = directory;
    for (size_t i = 0; i < count; i++) {
        unsigned char packed[2048];
        uint32_t crc;
        size_t size, name = strlen(m[i].name), at = (size_t)(p - file);
        const size_t n = pack(&m[i], deflated, packed, sizeof packed, &crc, &size);
        unsigned char *const heads[] = {p, d};
        for (int k = 0; k < 2; k++) {
            const bool full = k == 0 || wide;
            unsigned char *h = put(heads[k], k ? 0x02014b50 : 0x04034b50, 4);
            if (k) h = put(h, 45, 2);
            h = put(h, 45, 2);
            h = put(h, 0, 2);
            h = put(h, deflated ? 8 : 0, 2);
            h = put(h, 0, 4);
            h = put(h, crc, 4);
            h = put(h, full ? 0xffffffff : n, 4);
            h = put(h, full ? 0xffffffff : size, 4);
            h = put(h, name, 2);
            h = put(h, full ? 20 : 0, 2);
            if (k) h = put(put(h, 0, 10), at, 4);
            memcpy(h, m[i].name, name);
            h += name;
            if (full) h = put(put(put(put(h, 1, 2), 16, 2), size, 8), n, 8);
            *(k ? &d : &p) = h;
        }
        memcpy(p, packed, n);
        p += n;
    }
    const size_t at = (size_t)(p - file), n = (size_t)(d - directory);
    memcpy(p, directory, n);
    p = put(put(p + n, 0x06054b50, 4), 0, 4);
    p = put(put(put(put(put(p, count, 2), count, 2), n, 4), at, 4), 0, 2);
    FILE *f = fopen(zip, "wb");
    assert_int_equal(fwrite(file, 1, (size_t)(p - file), f), p - file);
    assert_int_equal(fclose(f), 0);
}

static const double bias[2] = {3, 4};
static const uint16_t weight[12] = {0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600,
                                    0x4700, 0x4800, 0x4880, 0x4900, 0x4980, 0x4a00}; /* 1 to 12 */
static const int64_t counter = 7;
static const npy numpy[] = {{"a.weight.npy", "<f2", "(2, 6)", false, weight, sizeof weight},
                            {"a.bias.npy", "<f8", "(2,)", false, bias, sizeof bias},
                            {"a.num_batches_tracked.npy", "<i8", "()", false, &counter, 8}};

static void test_npz_read(void **state)
{
    (void)state;
    tr_network *n = net_of(&model, 3), *got = net_of(&model, 4);
    ok(tr_npz_write(zip, n, NULL));
    ok(read_all(zip, got));
    same_values(n, got);
    tr_network_close(got);
    tr_network_close(n);
    n = net_of(&small, 3);
    for (int way = 0; way < 4; way++) {
        memset(n->params, 0, n->model->flat_count * sizeof(float));
        write_npz(numpy, 3, way & 1, way & 2);
        ok(read_all(zip, n));
        for (int i = 0; i < 12; i++)
            assert_true(tr_network_param(n, "a", "weight")[i] == (float)i + 1);
        assert_true(tr_network_param(n, "a", "bias")[1] == 4);
    }
    npy turned[3]; /* the first dimension varies fastest; big endian */
    memcpy(turned, numpy, sizeof turned);
    const uint64_t big[2] = {__builtin_bswap64(0x4008000000000000),
                             __builtin_bswap64(0x4010000000000000)};
    turned[0].fortran = true;
    turned[1].descr = ">f8";
    turned[1].v = big;
    write_npz(turned, 3, true, false);
    ok(read_all(zip, n));
    for (int i = 0; i < 12; i++)
        assert_true(tr_network_param(n, "a", "weight")[i] == (float)(i % 6 * 2 + i / 6 + 1));
    assert_true(tr_network_param(n, "a", "bias")[1] == 4);
    tr_network_close(n);
}

static void test_npz_bad(void **state)
{
    (void)state;
    static const char nothing[48];
    static const npy bad[][2] = {
        {{"a.weight", "<f4", "(2, 6)", false, nothing, 48}},
        {{"archive/data.pkl", "<f4", "(2, 6)", false, nothing, 48}},
        {{"a.weight.npy", "<f4", "(2, 6)", false, nothing, 44}},
        {{"a.weight.npy", "<i4", "(2, 6)", false, nothing, 48}},
        {{"a.weight.npy", "<f4", "(9223372036854775807, 6)", false, nothing, 48}},
        {{"a.weight.npy", "<f4", "(2, 6)", false, nothing, 48},
         {"a.weight.npy", "<f4", "(2, 6)", false, nothing, 48}},
        {{"a.weight.npy", "<O", "(2, 6)", false, nothing, 48}}};
    static const char *const said[] = {"a.weight is no array",         "a file of torch.save",
                                       "another size than its",        "a.weight: of type int32",
                                       "another size than its",        "a.weight stands twice",
                                       "a.weight: header at byte 19: "};
    const size_t held = tr_mem_held(TR_MEM_OTHER);
    size_t size;
    tr_network *n = net_of(&small, 3);
    for (size_t i = 0; i < TR_COUNT(bad); i++) {
        write_npz(bad[i], bad[i][1].name ? 2 : 1, false, false);
        assert_true(read_all(zip, n) != TR_OK);
        if (!strstr(tr_last_error()->text, said[i]))
            fail_msg("file %zu: %s, expected %s", i, tr_last_error()->text, said[i]);
    }
    for (int way = 0; way < 4;
         way++) { /* any byte another: the same values, or an error with a text */
        write_npz(numpy, 3, way & 1, way & 2);
        char *v = whole_of(zip, &size);
        for (size_t i = 0; i < size; i++) {
            FILE *f = fopen(zip, "r+b");
            fseek(f, (long)i, SEEK_SET);
            fputc(v[i] ^ (1 << i % 8), f);
            fclose(f);
            if (read_all(zip, n) != TR_OK) assert_true(*tr_last_error()->text);
            f = fopen(zip, "r+b");
            fseek(f, (long)i, SEEK_SET);
            fputc(v[i], f);
            fclose(f);
        }
        ok(read_all(zip, n));
        free(v);
        while (size-- > 0) {
            assert_int_equal(truncate(zip, (off_t)size), 0);
            assert_true(read_all(zip, n) != TR_OK);
        }
    }
    tr_network_close(n);
    assert_int_equal(tr_mem_held(TR_MEM_OTHER), held);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_npz_read),
        cmocka_unit_test(test_npz_bad),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
