/* Bytes before they are YAML: reading a whole file, and the check that they are text at all, so
 * that binary junk gets one clear error with its place. */
#include "runtime/base/file.h"
#include "runtime/config/internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/visible.h"

#define FILE_MAX (64u << 20) /* no config or model description is larger */

tr_status tr_read_text(const char *file, char **text, size_t *nbytes)
{
    tr_status st = TR_OK;
    char *buf = NULL;
    size_t have = 0, room = 0;
    FILE *in = NULL;
    int fd;
    TR_TRY(tr_file_open(file, O_RDONLY, TR_CONFIG, &fd, NULL));
    in = fdopen(fd, "rb");
    if (!in) close(fd);
    TR_NEED(in, TR_CONFIG, "%s: cannot be opened: %s", file, strerror(errno));
    for (;;) {
        if (room - have < 2) {
            room = room ? 2 * room : 8192;
            TR_NEED(room <= FILE_MAX, TR_CONFIG, "%s: larger than %u MiB", file, FILE_MAX >> 20);
            char *wider = tr_realloc(TR_MEM_OTHER, buf, room, 1);
            TR_HAVE(wider);
            buf = wider;
        }
        size_t got = fread(buf + have, 1, room - have - 1, in);
        have += got;
        if (got == 0) break;
    }
    TR_NEED(!ferror(in), TR_CONFIG, "%s: cannot be read: %s", file, strerror(errno));
    buf[have] = 0;
out:
    if (in) fclose(in);
    if (st != TR_OK) {
        tr_free(buf);
        return st;
    }
    *text = buf;
    *nbytes = have;
    return TR_OK;
}

tr_status tr_text_check(const char *source, const char *text, size_t nbytes)
{
    const unsigned char *p = (const unsigned char *)text;
    tr_place at = {source, 1, 1};
    if (nbytes > TR_YAML_BYTES)
        return tr_place_fail(at, "%zu bytes are too many for a config: at most %d", nbytes,
                             TR_YAML_BYTES);
    for (size_t i = 0; i < nbytes;) {
        size_t n = tr_utf8_length(p + i, nbytes - i);
        if (n == 0) return tr_place_fail(at, "byte 0x%02x is not UTF-8 text", p[i]);
        if (p[i] == 0) return tr_place_fail(at, "a NUL byte: this is not a text file");
        bool c1 = p[i] == 0xc2 && p[i + 1] < 0xa0 && p[i + 1] != 0x85;
        if ((p[i] < 0x20 && p[i] != '\t' && p[i] != '\n' && p[i] != '\r') || p[i] == 0x7f || c1)
            return tr_place_fail(at, "control character 0x%02x", c1 ? p[i + 1] : p[i]);
        if (p[i] == '\n' || (p[i] == '\r' && !(i + 1 < nbytes && p[i + 1] == '\n'))) {
            at.line++;
            at.column = 1;
        } else if (p[i] != '\r') {
            at.column++;
        }
        i += n;
    }
    return TR_OK;
}
