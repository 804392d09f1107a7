/* Values in a file beside the graph's: below its folder, by no link, within the file. */
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

static tr_status read_values(const tr_onnx_reader *r, const Onnx__TensorProto *t, const char *name,
                             uint64_t offset, void *to, size_t nbytes)
{
    tr_status st = TR_OK;
    struct stat info;
    size_t at = 0;
    const char *slash = strrchr(r->path, '/'), *tensor = t->name ? t->name : "";
    char *folder = slash ? tr_sprintf("%.*s/", (int)(slash - r->path), r->path) : tr_strdup(".");
    int dir = -1, fd = -1;
    TR_HAVE(folder);
    TR_TRY(tr_folder_open(folder, TR_DATA, &dir));
    fd = strlen(name) < 1024 ? open_below(dir, name) : -1;
    TR_NEED(fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode), TR_DATA,
            "%s: values of \"%s\" are to be in \"%s\", which is no file below its folder", r->path,
            tensor, name);
    TR_NEED(offset <= (uint64_t)info.st_size && nbytes <= (uint64_t)info.st_size - offset, TR_DATA,
            "%s: \"%s\" ends before the values of \"%s\"", r->path, name, tensor);
    while (at < nbytes) {
        const ssize_t got = pread(fd, (char *)to + at, nbytes - at, (off_t)(offset + at));
        TR_NEED(got > 0, TR_DATA, "%s: reading \"%s\" failed", r->path, name);
        at += (size_t)got;
    }
out:
    if (dir >= 0) close(dir);
    if (fd >= 0) close(fd);
    tr_free(folder);
    return st;
}

/* The room it may take grows with the file: no more is read from one than it has. */
const void *tr_onnx_external(tr_onnx_reader *r, const Onnx__TensorProto *t, size_t nbytes)
{
    const char *name = said(t, "location"), *tensor = t->name ? t->name : "";
    uint64_t offset, length;
    if (r->pool.st != TR_OK) return NULL;
    if (!name || !number(said(t, "offset"), &offset) || !number(said(t, "length"), &length) ||
        (length && length != nbytes)) {
        r->pool.st = TR_FAIL(TR_DATA, "%s: where the values of \"%s\" are is not said well",
                             r->path, tensor);
        return NULL;
    }
    const size_t most = r->pool.most;
    r->pool.most = 0; /* bounded by the file, once it is read */
    void *v = tr_pool_get(&r->pool, nbytes, 1);
    if (v) r->pool.st = read_values(r, t, name, offset, v, nbytes);
    r->pool.most = most ? most + nbytes + nbytes : 0;
    r->file_bytes += nbytes;
    return r->pool.st == TR_OK ? v : NULL;
}
