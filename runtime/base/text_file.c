/* A text that is written as to any stream, in memory, and then to its file, whole or not at all. */
#include <stdlib.h>

#include "runtime/base/file.h"

tr_status tr_text_file_open(tr_text_file *f, const char *path)
{
    *f = (tr_text_file){.path = path};
    f->to = path ? open_memstream(&f->text, &f->nbytes) : NULL;
    return f->to ? TR_OK : TR_FAIL(TR_MEMORY, "no memory for %s", path ? path : "a file's name");
}

tr_status tr_text_file_close(tr_text_file *f, tr_status st)
{
    tr_commit c = {.fd = -1};
    if (!f->to) return st;
    const bool failed = ferror(f->to) != 0;
    if ((fclose(f->to) != 0 || failed) && st == TR_OK)
        st = TR_FAIL(TR_MEMORY, "no memory for %s", f->path);
    TR_TRY(st);
    TR_TRY(tr_commit_open(&c, f->path, f->nbytes));
    TR_TRY(tr_commit_write(&c, 0, f->text, f->nbytes));
    st = tr_commit_finish(&c);
out:
    tr_commit_close(&c);
    free(f->text);
    *f = (tr_text_file){0};
    return st;
}
