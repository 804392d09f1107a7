/* A file's bytes as messages. Nothing is taken on trust: nesting is bounded before anything is
 * unpacked (protobuf-c follows it by recursion), memory is bounded by the file's size. */
#include <string.h>
#include <unistd.h>

#include "optimize/onnx/reader.h"
#include "runtime/base/file.h"

enum { DEEP = 32 };
/* What a message's fields take beyond their bytes in the file; an empty node is two bytes there. */
#define ROOM (UINT64_C(64) << 20)

/* ---- Nesting --------------------------------------------------------------------------------- */

static bool varint(const uint8_t **at, const uint8_t *end, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        const uint8_t byte = *(*at)++;
        *v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

static bool is_sound(const ProtobufCMessageDescriptor *d, const uint8_t *at, const uint8_t *end,
                     int depth)
{
    if (depth > DEEP) return false;
    while (at < end) {
        uint64_t tag, n = 0;
        if (!varint(&at, end, &tag)) return false;
        switch (tag & 7) {
        case PROTOBUF_C_WIRE_TYPE_VARINT:
            if (!varint(&at, end, &n)) return false;
            continue;
        case PROTOBUF_C_WIRE_TYPE_64BIT:
            n = 8;
            break;
        case PROTOBUF_C_WIRE_TYPE_32BIT:
            n = 4;
            break;
        case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
            if (!varint(&at, end, &n)) return false;
            break;
        default:
            return false; /* groups: ONNX has none */
        }
        if (n > (uint64_t)(end - at)) return false;
        const ProtobufCFieldDescriptor *f =
            tag >> 3 <= UINT32_MAX
                ? protobuf_c_message_descriptor_get_field(d, (unsigned)(tag >> 3))
                : NULL;
        if (f && f->type == PROTOBUF_C_TYPE_MESSAGE &&
            ((tag & 7) != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED ||
             !is_sound(f->descriptor, at, at + n, depth + 1)))
            return false;
        at += n;
    }
    return true;
}

bool tr_onnx_is_sound(const uint8_t *bytes, size_t n)
{
    return is_sound(&onnx__model_proto__descriptor, bytes, bytes + n, 0);
}

/* ---- The file -------------------------------------------------------------------------------- */

static tr_status read_whole(const char *path, uint8_t **bytes, size_t *n)
{
    tr_status st = TR_OK;
    struct stat info;
    int fd = -1;
    size_t at = 0;
    TR_TRY(tr_file_open(path, O_RDONLY, TR_DATA, &fd, &info));
    TR_NEED(info.st_size < INT32_MAX, TR_DATA,
            "%s: %lld bytes: an ONNX file has less than 2 GB, and values in a file of their own",
            path, (long long)info.st_size);
    *n = (size_t)info.st_size;
    *bytes = tr_alloc(TR_MEM_OTHER, *n, 1);
    TR_HAVE(*bytes);
    while (at < *n) {
        const ssize_t got = read(fd, *bytes + at, *n - at);
        TR_NEED(got > 0, TR_DATA, "%s: reading at byte %zu failed", path, at);
        at += (size_t)got;
    }
out:
    if (fd >= 0) close(fd);
    return st;
}

static void *pool_alloc(void *pool, size_t n)
{
    return tr_pool_get(pool, n, 1);
}

static void pool_free(void *pool, void *p)
{
    (void)pool, (void)p; /* with the pool */
}

tr_status tr_onnx_load(tr_onnx_reader *r)
{
    tr_status st = TR_OK;
    uint8_t *bytes = NULL;
    ProtobufCAllocator memory = {
        .alloc = pool_alloc, .free = pool_free, .allocator_data = &r->pool};
    TR_TRY(read_whole(r->path, &bytes, &r->file_bytes));
    TR_NEED(tr_onnx_is_sound(bytes, r->file_bytes), TR_DATA, "%s: no ONNX file, or a damaged one",
            r->path);
    r->pool.most = ROOM + 4 * r->file_bytes;
    r->model = onnx__model_proto__unpack(&memory, r->file_bytes, bytes);
    TR_TRY(r->pool.st);
    TR_NEED(r->model, TR_DATA, "%s: no ONNX file, or a damaged one", r->path);
    TR_NEED(r->model->graph && r->model->graph->n_output, TR_DATA, "%s: no graph in it", r->path);
out:
    tr_free(bytes);
    return st;
}
