/* SHA-256, FIPS 180-4, section 6.2. */
#include "runtime/base/base.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotr(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void block(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++, p += 4)
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotr(a, 7) ^ rotr(a, 18) ^ a >> 3) +
               (rotr(b, 17) ^ rotr(b, 19) ^ b >> 10);
    }
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t e = s[4], a = s[0];
        uint32_t t1 = s[7] + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & s[5]) ^ (~e & s[6])) +
                      K[i] + w[i];
        uint32_t t2 =
            (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

typedef struct {
    uint32_t h[8];
    uint64_t nbytes;
    uint8_t rest[64]; /* behind the last whole block */
} hash;

static const hash start = {.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};

/* All but the last call: a multiple of 64 bytes. */
static void add(hash *s, const void *bytes, size_t nbytes)
{
    const uint8_t *p = bytes;
    size_t left = nbytes;
    for (; left >= 64; left -= 64, p += 64) block(s->h, p);
    if (left) memcpy(s->rest, p, left);
    s->nbytes += nbytes;
}

static void finish(hash *s, char out[65])
{
    uint8_t tail[128] = {0};
    const size_t left = s->nbytes % 64, size = left < 56 ? 64 : 128;
    const uint64_t bits = s->nbytes * 8;
    memcpy(tail, s->rest, left);
    tail[left] = 0x80;
    for (int i = 0; i < 8; i++) tail[size - 1 - (size_t)i] = (uint8_t)(bits >> (8 * i));
    block(s->h, tail);
    if (size == 128) block(s->h, tail + 64);
    for (int i = 0; i < 8; i++) snprintf(out + 8 * i, 9, "%08x", s->h[i]);
}

void tr_sha256_hex(const void *bytes, size_t nbytes, char out[65])
{
    hash s = start;
    add(&s, bytes, nbytes);
    finish(&s, out);
}

tr_status tr_file_sha256(const char *path, char out[65])
{
    enum { PIECE = 1 << 16 };
    tr_status st = TR_OK;
    hash s = start;
    int fd = -1;
    uint8_t *piece = tr_alloc(TR_MEM_OTHER, PIECE, 1);
    TR_HAVE(piece);
    TR_TRY(tr_file_open(path, O_RDONLY, TR_IO, &fd, NULL));
    for (size_t n = PIECE; n == PIECE;) { /* whole pieces up to the end */
        ssize_t got = 1;
        for (n = 0; n < PIECE && got > 0; n += got > 0 ? (size_t)got : 0) do
                got = read(fd, piece + n, PIECE - n);
            while (got < 0 && errno == EINTR);
        TR_NEED(got >= 0, TR_IO, "%s: %s", path, strerror(errno));
        add(&s, piece, n);
    }
    finish(&s, out);
out:
    if (fd >= 0) close(fd);
    tr_free(piece);
    return st;
}
