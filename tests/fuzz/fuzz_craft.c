/* libFuzzer target for run files made on purpose: their metadata altered, then every checksum made
 * right again, HDF5's and ours. Whatever reads run files must end in a report or a TR_FILE error
 * with a text, within a bound of memory; a resume takes the file, or the whole one before it.
 *   fuzz_craft NEW_FOLDER -max_len=128 -timeout=20 -max_total_time=600
 *
 * The first byte: 1: the file with attributes in a heap (a long config), else the plain one; 2: our
 * checksums stay as they were; 4: a packed file instead of these. Then edits of 8 bytes each:
 *   block (1)   of the blocks of metadata: superblock, headers, heaps, B-trees
 *   offset (2)  in the block
 *   what (1)    see `edit`
 *   value (4) */
#include "fuzz_store.h"
#include "runtime/base/crc32c.h"
#include "runtime/store/metadata.h"

#include <fcntl.h>
#include <sys/stat.h>

enum { BLOCKS = 96, SUMS = 32, MOST_MEMORY = 64 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes);

typedef struct {
    size_t at, nbytes; /* with its checksum, if it has one */
    bool sum;
} block;

/* One of our checksums: the attribute crc32c of the object whose header is at `owner`. */
typedef struct {
    size_t at, owner;
} own_sum;

typedef struct {
    uint8_t *image, *now;
    size_t nbytes;
    size_t nblocks, nsums;
    size_t together; /* packed: where the checksum of the small arrays is */
    good is;
    block blocks[BLOCKS];
    own_sum sums[SUMS];
} base;

static uint64_t get(const uint8_t *p, unsigned n)
{
    tr_cursor c = {.at = p, .left = n};
    return tr_cursor_take(&c, n);
}

static void put(uint8_t *p, uint64_t v, unsigned n)
{
    for (unsigned i = 0; i < n; i++) p[i] = (uint8_t)(v >> (8 * i));
}

/* ---- A file's blocks ------------------------------------------------------------------------- */

/* The end of a block is where its checksum fits. */
static block measure(const base *b, size_t at, size_t most)
{
    block found = {.at = at, .nbytes = 64};
    for (size_t n = 8; n <= most && at + n <= b->nbytes; n++)
        if (tr_metadata_checksum(b->image + at, n - 4) == get(b->image + at + n - 4, 4))
            return (block){.at = at, .nbytes = n, .sum = true};
    if (at + found.nbytes > b->nbytes) found.nbytes = b->nbytes - at;
    return found;
}

static void find_blocks(base *b)
{
    static const char *const signatures[] = {"OHDR", "OCHK", "FRHP", "FHDB",
                                             "FHIB", "BTHD", "BTLF"};
    b->blocks[b->nblocks++] = measure(b, 0, 48);
    for (size_t at = 48; at + 8 <= b->nbytes; at++)
        for (size_t i = 0; i < TR_COUNT(signatures); i++)
            if (memcmp(b->image + at, signatures[i], 4) == 0 && b->nblocks < BLOCKS)
                b->blocks[b->nblocks++] = measure(b, at, 2048);
}

/* The checksum in a header's attributes; false: it has none. */
static bool header_sum(const tr_header *h, uint32_t *crc)
{
    tr_attribute a;
    for (size_t i = 0; i < h->count; i++) {
        if (h->v[i].kind != TR_MSG_ATTRIBUTE || !tr_msg_attribute(h->v[i].body, &a)) continue;
        if (strcmp(a.name, "crc32c") != 0 || a.type.kind != TR_STORED_U32) continue;
        memcpy(crc, a.value, sizeof *crc);
        return true;
    }
    return false;
}

/* Each place of the bytes "crc32c", and the object that has this value. */
static void find_sums(base *b, int fd)
{
    char fault[TR_FAULT];
    for (size_t at = 9; at + 64 <= b->nbytes; at++) {
        const uint8_t *name = b->image + at;
        if (memcmp(name, "crc32c", 7) != 0 || b->nsums == SUMS) continue;
        const size_t value = at + get(name - 7, 2) + get(name - 5, 2) + get(name - 3, 2);
        for (size_t i = 0; i < b->nblocks && value + 4 <= b->nbytes; i++) {
            tr_metadata m;
            tr_header h;
            uint32_t crc = 0;
            if (memcmp(b->image + b->blocks[i].at, "OHDR", 4) != 0) continue;
            fault[0] = 0;
            tr_metadata_begin(&m, fd, b->nbytes, fault);
            need(tr_header_read(&m, b->blocks[i].at, &h) == TR_OK && !fault[0], fault);
            if (header_sum(&h, &crc) && crc == get(b->image + value, 4))
                b->sums[b->nsums++] = (own_sum){.at = value, .owner = b->blocks[i].at};
            tr_header_free(&h);
        }
    }
}

/* The value of the attribute TR_TOGETHER_SUM. */
static void find_together(base *b)
{
    for (size_t at = 9; at + 64 <= b->nbytes; at++) {
        const uint8_t *name = b->image + at;
        if (memcmp(name, TR_TOGETHER_SUM, sizeof TR_TOGETHER_SUM) == 0)
            b->together = at + get(name - 7, 2) + get(name - 5, 2) + get(name - 3, 2);
    }
}

static void begin(base *b, const char *path, const char *config, bool packed)
{
    struct stat info;
    good *g = &b->is;
    make(g);
    if (config) g->snapshot.config_text = config;
    if (packed) {
        g->params[0].stored = TR_BF16;
        for (int i = 0; i < 64; i++) g->p[i] = (float)i;
        g->snapshot.checkpoint = false;
        g->snapshot.nslots = 0;
    }
    need(tr_store_write(path, &g->model, &g->snapshot, NULL) == TR_OK, "writing");
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    need(fd >= 0 && fstat(fd, &info) == 0, "opening");
    b->nbytes = (size_t)info.st_size;
    b->image = malloc(b->nbytes);
    b->now = malloc(b->nbytes);
    need(pread(fd, b->image, b->nbytes, 0) == info.st_size, "reading");
    find_blocks(b);
    find_sums(b, fd);
    find_together(b);
    close(fd);
    need(b->nblocks > 10 && (packed ? b->together > 0 : b->nsums > 5), "the blocks of the file");
}

/* ---- Altering it ----------------------------------------------------------------------------- */

static uint64_t interesting(const base *b, uint32_t v)
{
    const uint64_t few[] = {0,          1,          255,
                            UINT16_MAX, INT32_MAX,  UINT32_MAX,
                            INT64_MAX,  UINT64_MAX, UINT64_MAX - 1,
                            1ull << 62, b->nbytes,  b->nbytes - 8,
                            1ull << 40, 1ull << 48, 0xffff000000000000,
                            4096};
    const uint64_t near = (uint64_t)(int64_t)(int8_t)(v >> 8);
    if (v & 0x80) return b->blocks[v % b->nblocks].at + near;
    return few[v % TR_COUNT(few)] + near;
}

/* The next address in the block, at or after `at`: a block's, or that of nothing. */
static size_t next_address(const base *b, const block *k, size_t at)
{
    for (; at + 8 <= k->nbytes; at++) {
        const uint64_t v = get(b->now + k->at + at, 8);
        if (v == TR_UNDEFINED) return at;
        for (size_t i = 1; i < b->nblocks; i++)
            if (v == b->blocks[i].at) return at;
    }
    return 0;
}

static void edit(base *b, const uint8_t e[8])
{
    const block *k = &b->blocks[e[0] % b->nblocks];
    size_t at = get(e + 1, 2) % k->nbytes;
    const uint32_t v = (uint32_t)get(e + 4, 4);
    const unsigned what = e[3] % 8;
    const unsigned width[] = {1, 2, 4, 8, 8, 1, 16, 8};
    if (what == 4) at = next_address(b, k, at);
    if (k->at + at + width[what] > b->nbytes) return;
    uint8_t *p = b->now + k->at + at;
    switch (what) {
    case 3: /* a value or an address for 8 bytes, and for what is an address already */
    case 4:
        put(p, interesting(b, v), 8);
        break;
    case 5:
        *p ^= (uint8_t)(1u << (v % 8));
        break;
    case 6: /* what another block has there */
        if (b->blocks[v % b->nblocks].at + at + 16 <= b->nbytes)
            memmove(p, b->now + b->blocks[v % b->nblocks].at + at, 16);
        break;
    case 7:
        put(p, get(p, 8) + (uint64_t)(int64_t)(int32_t)v, 8);
        break;
    default:
        put(p, v, width[what]);
        break;
    }
}

static void repair_blocks(base *b)
{
    for (size_t i = 0; i < b->nblocks; i++) {
        const block *k = &b->blocks[i];
        uint8_t *p = b->now + k->at;
        if (k->sum) put(p + k->nbytes - 4, tr_metadata_checksum(p, k->nbytes - 4), 4);
        if (memcmp(p, "OHDR", 4) != 0 || k->nbytes < 32) continue;
        /* a header whose size was altered, too */
        const size_t head = 6 + (p[5] & 0x20 ? 16 : 0) + (p[5] & 0x10 ? 4 : 0);
        const uint64_t n = head + (1u << (p[5] & 3)) + get(p + head, 1u << (p[5] & 3));
        if (n > k->nbytes - 4 && n < b->nbytes - k->at - 4)
            put(p + n, tr_metadata_checksum(p, n), 4);
    }
}

/* What our checksum of an object has to be now. */
static bool right_sum(const base *b, int fd, size_t owner, uint32_t *crc)
{
    char fault[TR_FAULT] = "";
    tr_metadata m;
    tr_header h;
    tr_attrs a = {0};
    tr_entry e = {0};
    tr_metadata_begin(&m, fd, b->nbytes, fault);
    need(tr_header_read(&m, owner, &h) == TR_OK, "a header");
    const bool array = tr_header_find(&h, TR_MSG_LAYOUT) != NULL;
    if (array) {
        tr_entry_describe(&e, &h, b->nbytes);
        if (!e.fault[0]) *crc = tr_crc32c(0, b->now + e.offset, e.nbytes);
    } else {
        need(tr_attrs_read(&a, &h, "/", fault) == TR_OK, "attributes");
        *crc = tr_attrs_checksum(&a);
    }
    tr_attrs_free(&a);
    tr_header_free(&h);
    return !array || !e.fault[0];
}

static void save(const base *b, int fd)
{
    need(pwrite(fd, b->now, b->nbytes, 0) == (ssize_t)b->nbytes, "saving");
}

static void craft(base *b, const char *path, const uint8_t *bytes, size_t nbytes)
{
    const bool ours = !(bytes[0] & 2);
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    need(fd >= 0, "making the file");
    memcpy(b->now, b->image, b->nbytes);
    for (bytes++, nbytes--; nbytes >= 8; bytes += 8, nbytes -= 8) edit(b, bytes);
    repair_blocks(b);
    save(b, fd);
    for (size_t i = 0; ours && i < b->nsums; i++) {
        uint32_t crc = 0;
        if (right_sum(b, fd, b->sums[i].owner, &crc)) put(b->now + b->sums[i].at, crc, 4);
    }
    repair_blocks(b);
    save(b, fd);
    if (ours && b->together > 0) {
        tr_index ix;
        if (tr_index_open(path, &ix) == TR_OK) put(b->now + b->together, ix.together, 4);
        tr_index_close(&ix);
        repair_blocks(b);
        save(b, fd);
    }
    close(fd);
}

/* ---- Reading it ------------------------------------------------------------------------------ */

/* As a resume chooses: the crafted file of step 9, or the one of step 5. */
static void choose(const char *folder, bool usable)
{
    char *path = NULL;
    uint64_t step = 0;
    need(tr_store_latest(folder, NULL, NULL, &path, &step) == TR_OK || *tr_last_error()->text,
         "the choice of a checkpoint");
    if (path)
        need(strstr(path, usable ? "step-00000009.h5" : "step-00000005.h5"), "another choice");
    tr_free(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t nbytes)
{
    static base plain, dense, packed;
    static char folder[64];
    char path[128];
    if (nbytes == 0) return 0;
    if (!folder[0]) {
        static char config[70000], text[2000];
        snprintf(folder, sizeof folder, "fuzz-craft-%ld", (long)getpid());
        tr_log_init(0, 1, TR_LOG_ERROR);
        need(mkdir(folder, 0700) == 0, "making the folder");
        snprintf(path, sizeof path, "%s/checkpoints", folder);
        need(mkdir(path, 0700) == 0, "making the folder");
        memset(config, '#', sizeof config - 1);
        snprintf(path, sizeof path, "%s/checkpoints/step-00000005.h5", folder);
        begin(&dense, path, config, false);
        for (size_t i = 0; i < sizeof text - 1; i++)
            text[i] = (char)('a' + tr_philox_at(1, TR_RNG_TEST, 5, i, 0).v[0] % 5);
        begin(&packed, path, text, true);
        begin(&plain, path, NULL, false);
    }
    const size_t held = tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_IO);
    snprintf(path, sizeof path, "%s/checkpoints/step-00000009.h5", folder);
    base *b = bytes[0] & 4 ? &packed : bytes[0] & 1 ? &dense : &plain;
    craft(b, path, bytes, nbytes);
    tr_train_state train;
    const bool whole = tr_store_verify(path, &train) == TR_OK;
    check(path, &b->is, false);
    choose(folder, whole && !train.unsound); /* which a file may say of itself */
    unlink(path);
    for (size_t i = 0, n = strlen(path); i < 2; i++) {
        snprintf(path + n, sizeof path - n, "%s", i ? ".unsound" : ".damaged");
        unlink(path);
    }
    need(tr_mem_held(TR_MEM_OTHER) + tr_mem_held(TR_MEM_IO) == held, "memory is lost");
    need(tr_mem_peak(TR_MEM_OTHER) + tr_mem_peak(TR_MEM_IO) < MOST_MEMORY, "too much memory");
    return 0;
}
