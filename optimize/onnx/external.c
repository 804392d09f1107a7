/* Values in a file beside the graph's: below its folder, by no link, within the file. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "optimize/onnx/reader.h"
#include "runtime/base/file.h"

static const char *said(const Onnx__TensorProto *t, const char *key)
{
    for (size_t i = 0; i < t->n_external_data; i++) {
        const Onnx__StringStringEntryProto *e = t->external_data[i];
        if (e->key && e->value && strcmp(e->key, key) == 0) return e->value;
    }
    return NULL;
}

/* A decimal number, and nothing else; absent: 0. */
static bool number(const char *text, uint64_t *v)
{
    char *end;
    *v = 0;
    if (!text) return true;
    if (*text < '0' || *text > '9' || strlen(text) > 18) return false;
    *v = strtoull(text, &end, 10);
    return *end == '\0';
}

/* Opens a relative path part by part: "..", links and absolute paths lead elsewhere. */
static int open_below(int folder, const char *path)
{
    char part[256];
    for (;;) {
        const char *slash = strchr(path, '/');
        const size_t n = slash ? (size_t)(slash - path) : strlen(path);
        errno = 0;
        if (n == 0 || n >= sizeof part) return -1;
        memcpy(part, path, n);
        part[n] = '\0';
        if (strcmp(part, "..") == 0) return -1;
        const int flags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | (slash ? O_DIRECTORY : O_NONBLOCK);
        const int fd = openat(folder, part, flags);
        if (!slash || fd < 0) return fd;
        /* `folder` is the caller's, what comes after it ours */
        const int next = open_below(fd, slash + 1);
        close(fd);
        return next;
    }
}

/* An open file of values. */
typedef struct {
    const char *name;
    int fd;
} source;

/* What may be read of a file, several tensors of one place counted each: twice its size and
 * this. */
#define SHARED (UINT64_C(16) << 20)

/* Counts what is read of a file, which several names may lead to. */
static tr_status count_read(tr_onnx_reader *r, const struct stat *info, const char *name,
                            uint64_t nbytes)
{
    tr_status st = TR_OK;
    tr_onnx_values_file *f = r->values_files;
    while (f && (f->device != info->st_dev || f->inode != info->st_ino)) f = f->next;
    if (!f) {
        f = tr_pool_get(&r->pool, 1, sizeof *f);
        TR_TRY(r->pool.st);
        *f = (tr_onnx_values_file){
            .next = r->values_files, .device = info->st_dev, .inode = info->st_ino};
        r->values_files = f;
    }
    f->nbytes += nbytes;
    TR_NEED(f->nbytes <= 2 * (uint64_t)info->st_size + SHARED, TR_DATA,
            "%s: its tensors share the values in \"%s\" too often", r->path, name);
out:
    return st;
}

/* Opens the file and looks whether the values can be in it. */
static tr_status open_values(tr_onnx_reader *r, const char *tensor, uint64_t offset, size_t nbytes,
                             source *s)
{
    tr_status st = TR_OK;
    struct stat info;
    const char *slash = strrchr(r->path, '/');
    char *folder = slash ? tr_sprintf("%.*s/", (int)(slash - r->path), r->path) : tr_strdup(".");
    int dir = -1;
    TR_HAVE(folder);
    TR_TRY(tr_folder_open(folder, TR_DATA, &dir));
    s->fd = strlen(s->name) < 1024 ? open_below(dir, s->name) : -1;
    if (s->fd < 0 && (errno == EMFILE || errno == ENFILE))
        TR_TRY(tr_file_open_failed(s->name, O_RDONLY, TR_DATA, "file"));
    TR_NEED(s->fd >= 0 && fstat(s->fd, &info) == 0 && S_ISREG(info.st_mode), TR_DATA,
            "%s: values of \"%s\" are to be in \"%s\", which is no file below its folder", r->path,
            tensor, s->name);
    TR_NEED(offset <= (uint64_t)info.st_size && nbytes <= (uint64_t)info.st_size - offset, TR_DATA,
            "%s: \"%s\" ends before the values of \"%s\"", r->path, s->name, tensor);
    st = count_read(r, &info, s->name, nbytes);
out:
    if (dir >= 0) close(dir);
    tr_free(folder);
    return st;
}

static tr_status read_values(const char *path, const source *s, uint64_t offset, void *to,
                             size_t nbytes)
{
    tr_status st = TR_OK;
    for (size_t at = 0; at < nbytes;) {
        const ssize_t got = pread(s->fd, (char *)to + at, nbytes - at, (off_t)(offset + at));
        TR_NEED(got > 0, TR_DATA, "%s: reading \"%s\" failed", path, s->name);
        at += (size_t)got;
    }
out:
    return st;
}

/* The room it may take grows with the file, once the values are known to be in it. */
const void *tr_onnx_external(tr_onnx_reader *r, const Onnx__TensorProto *t, size_t nbytes)
{
    source s = {.name = said(t, "location"), .fd = -1};
    const char *tensor = t->name ? t->name : "";
    uint64_t offset, length;
    void *v = NULL;
    if (r->pool.st != TR_OK) return NULL;
    if (!s.name || !number(said(t, "offset"), &offset) || !number(said(t, "length"), &length) ||
        (length && length != nbytes)) {
        r->pool.st = TR_FAIL(TR_DATA, "%s: where the values of \"%s\" are is not said well",
                             r->path, tensor);
        return NULL;
    }
    const tr_status st = open_values(r, tensor, offset, nbytes, &s);
    if (r->pool.st == TR_OK) r->pool.st = st;
    if (r->pool.st == TR_OK) {
        r->pool.most += r->pool.most ? 2 * nbytes : 0;
        v = tr_pool_get(&r->pool, nbytes, 1);
    }
    if (v) r->pool.st = read_values(r->path, &s, offset, v, nbytes);
    if (s.fd >= 0) close(s.fd);
    r->file_bytes += nbytes;
    return r->pool.st == TR_OK ? v : NULL;
}
