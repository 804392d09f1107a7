/* TensorBoard's event file: TFRecord frames (length, masked CRC-32C of it, bytes, masked CRC-32C of
 * them) around protobuf messages of a shape so small that they are encoded by hand:
 *   Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5;
 *           SessionLog session_log = 7 }
 *   Summary { repeated Value value = 1 }  Value { string tag = 1; float simple_value = 2 }
 *   SessionLog { enum status = 1 }        START = 1
 * (tensorflow/core/util/event.proto, framework/summary.proto; lib/io/record_writer.h for the
 * frame). */
#include "runtime/metrics/internal.h"

#include <string.h>

#include "runtime/base/crc32c.h"

enum { VARINT, FIXED64, BYTES, FIXED32 = 5 };

typedef struct {
    unsigned char *p;
    size_t used, size;
} message;

static uint32_t masked(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static void put_little(message *m, uint64_t v, int nbytes)
{
    for (int i = 0; i < nbytes && m->used < m->size; i++)
        m->p[m->used++] = (unsigned char)(v >> (8 * i));
}

static void put_varint(message *m, uint64_t v)
{
    for (; v >= 0x80; v >>= 7) put_little(m, (v & 0x7f) | 0x80, 1);
    put_little(m, v, 1);
}

static void put_key(message *m, int field, int wire)
{
    put_varint(m, (uint64_t)field << 3 | (uint64_t)wire);
}

static void put_bytes(message *m, int field, const void *bytes, size_t n)
{
    put_key(m, field, BYTES);
    put_varint(m, n);
    if (n > m->size - m->used) n = m->size - m->used;
    memcpy(m->p + m->used, bytes, n);
    m->used += n;
}

static void put_double(message *m, int field, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(m, field, FIXED64);
    put_little(m, bits, 8);
}

static void put_float(message *m, int field, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(m, field, FIXED32);
    put_little(m, bits, 4);
}

/* An Event after its frame's head of 12 bytes. */
static message begin(unsigned char out[TR_EVENT], double wall_time, uint64_t step)
{
    message m = {out + 12, 0, TR_EVENT - 16};
    put_double(&m, 1, wall_time);
    if (step) { /* zero is what an absent number means */
        put_key(&m, 2, VARINT);
        put_varint(&m, step);
    }
    return m;
}

static size_t frame(unsigned char out[TR_EVENT], const message *event)
{
    message head = {out, 0, 12}, tail = {out + 12 + event->used, 0, 4};
    put_little(&head, event->used, 8);
    put_little(&head, masked(tr_crc32c(0, out, 8)), 4);
    put_little(&tail, masked(tr_crc32c(0, event->p, event->used)), 4);
    return 12 + event->used + 4;
}

size_t tr_event_version(unsigned char out[TR_EVENT], double wall_time)
{
    static const char version[] = "brain.Event:2";
    message m = begin(out, wall_time, 0);
    put_bytes(&m, 3, version, strlen(version));
    return frame(out, &m);
}

size_t tr_event_restart(unsigned char out[TR_EVENT], double wall_time, uint64_t step)
{
    static const unsigned char start[] = {1 << 3 | VARINT, 1};
    message m = begin(out, wall_time, step);
    put_bytes(&m, 7, start, sizeof start);
    return frame(out, &m);
}

size_t tr_event_scalars(unsigned char out[TR_EVENT], double wall_time, uint64_t step,
                        const tr_scalar *scalars, size_t count)
{
    unsigned char values[TR_EVENT / 2], one[128];
    message summary = {values, 0, sizeof values};
    for (size_t i = 0; i < count; i++) {
        message value = {one, 0, sizeof one};
        put_bytes(&value, 1, scalars[i].tag, strlen(scalars[i].tag));
        put_float(&value, 2, (float)scalars[i].value);
        put_bytes(&summary, 1, one, value.used);
    }
    message m = begin(out, wall_time, step);
    put_bytes(&m, 5, values, summary.used);
    return frame(out, &m);
}
