/* A text that is written as to any stream, in memory, and then to its file, or the log, whole or
 * not at all. */
#include <stdlib.h>

#include "runtime/base/file.h"

tr_status tr_text_file_open(tr_text_file *f, const char *path)
{
    *f = (tr_text_file){.path = path};
    f->to = path ? open_memstream(&f->text, &f->nbytes) : NULL;
    return f->to ? TR_OK : TR_FAIL(TR_MEMORY, "no memory for %s", path ? path : "a file's name");
}

/* The text is whole, or what its writer failed with. */
static tr_status finish(tr_text_file *f, tr_status st)
{
    const bool failed = ferror(f->to) != 0;
    if ((fclose(f->to) != 0 || failed) && st == TR_OK)
        st = TR_FAIL(TR_MEMORY, "no memory for %s", f->path);
    return st;
}

tr_status tr_text_file_log(tr_text_file *f, tr_log_level level, tr_status st)
{
    if (!f->to) return st;
    st = finish(f, st);
    if (st == TR_OK) tr_log_lines(level, f->text);
    free(f->text);
    *f = (tr_text_file){0};
    return st;
}

tr_status tr_text_file_close(tr_text_file *f, tr_status st)
{
    tr_commit c = {.fd = -1};
    if (!f->to) return st;
    TR_TRY(finish(f, st));
    TR_TRY(tr_commit_open(&c, f->path, f->nbytes));
    TR_TRY(tr_commit_write(&c, 0, f->text, f->nbytes));
    st = tr_commit_finish(&c);
out:
    tr_commit_close(&c);
    free(f->text);
    *f = (tr_text_file){0};
    return st;
}
