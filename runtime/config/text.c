/* Bytes before they are YAML: reading a whole file, and the check that they are text at all, so
 * that binary junk gets one clear error with its place. */
#include "runtime/base/file.h"
#include "runtime/config/internal.h"

#include <unistd.h>

#include "runtime/base/visible.h"

tr_status tr_read_text(const char *file, char **text, size_t *nbytes)
{
    int fd;
    tr_status st = tr_file_open(file, O_RDONLY, TR_CONFIG, &fd, NULL);
    if (st != TR_OK) return st;
    st = tr_file_read_all(fd, file, TR_CONFIG, text, nbytes);
    close(fd);
    return st;
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
