/* Files as all of the program opens them: regular ones only, never waited for; and files that
 * appear whole or not at all. All Local. */
#ifndef TR_FILE_H
#define TR_FILE_H

#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <sys/stat.h>

#include "runtime/base/base.h"

/* Opens a regular file with these flags of open(2). A folder, pipe, socket or device is refused at
 * once. Reading follows links, as people lay out data by them; writing follows none, so that
 * nothing outside a folder of ours is written to. O_NOFOLLOW: reading follows none either. `blame`:
 * the status of a failure, after which errno says why. *info may be NULL. */
tr_status tr_file_open(const char *path, int flags, tr_status blame, int *fd, struct stat *info);
/* The failure of who opens files otherwise: errno says why. What the path leads to says more ("No
 * such device or address" is a pipe), where that is not `expected` ("file"). Returns `blame`, and
 * leaves errno. */
tr_status tr_file_open_failed(const char *path, int flags, tr_status blame, const char *expected);
/* All of [at, at + nbytes) of an open file; TR_FILE: it ends before, TR_IO. */
tr_status tr_file_read_at(int fd, const char *path, uint64_t at, void *to, size_t nbytes);
/* What an open file or a pipe holds from here until its end, and a NUL behind it: 64 MiB at most.
 * *text is tr_alloc'ed. `blame`: the status of a failure. */
tr_status tr_file_read_all(int fd, const char *name, tr_status blame, char **text, size_t *nbytes);
/* What came of looking at a file, where that is no fault of the file's, but nobody could look
 * (descriptors, a disk, memory); else TR_OK. */
static inline tr_status tr_unread(tr_status st)
{
    return st == TR_IO || st == TR_MEMORY ? st : TR_OK;
}
/* SHA-256 of a file's bytes. TR_IO. */
tr_status tr_file_sha256(const char *path, char hex[65]);
/* Locks an open file or folder for as long as it is open. False: another process holds it. Where
 * the file system has no locks (ENOLCK, ENOSYS, ...) none is ever held, and this is true. */
bool tr_file_lock(int fd);
/* Opens a folder: itself, not where a link of its name leads. */
tr_status tr_folder_open(const char *path, tr_status blame, int *fd);
/* The same where it may be missing: TR_OK then, too, and *fd -1. */
tr_status tr_folder_open_any(const char *path, tr_status blame, int *fd);
/* Nothing is at the path, or a folder itself: what lies behind a link is others'. Else TR_USAGE. */
tr_status tr_folder_own(const char *path);
/* Whether something is at the path, be it a link that leads nowhere. */
bool tr_file_there(const char *path);
/* Whether a file, itself and not where a link of its name leads, begins with these bytes. */
bool tr_file_begins(const char *path, const char *with);
/* Whether both paths lead to one file that is there. */
bool tr_file_same(const char *a, const char *b);
/* Whether the file lies in the folder, itself or where a link of its name leads, and its path from
 * there. By what both paths lead to; neither need be there. False for a path that could not be
 * opened then: with a slash behind it, or `..` behind what is no folder. */
bool tr_file_within(const char *folder, const char *file, char within[PATH_MAX]);
/* What begins with `path`, as it is, and goes on as `pattern` says (glob(3)), in order; none is
 * fine. *found goes by globfree, whatever comes back. TR_IO: a folder cannot be looked through. */
tr_status tr_files_like(const char *path, const char *pattern, glob_t *found);

/* A file that appears at `path` whole or not at all. Failures are TR_IO; where the file system is
 * full, or the user's share of it, they carry TR_HINT_DISK_FULL. */
typedef struct {
    const char *path; /* not owned */
    char *temp;
    int fd;
} tr_commit;
tr_status tr_commit_open(tr_commit *c, const char *path, uint64_t nbytes);
tr_status tr_commit_write(tr_commit *c, uint64_t offset, const void *bytes, size_t nbytes);
tr_status tr_commit_finish(tr_commit *c); /* fsync, rename, fsync of the folder */
void tr_commit_close(tr_commit *c);       /* removes what was not finished */
/* A text for such a file: opened, written to `to`, closed, which makes the file. `path` stays the
 * caller's; NULL: TR_MEMORY. Closing with the failure of who wrote makes none, and returns it; one
 * that did not open is fine. */
typedef struct {
    FILE *to;
    const char *path;
    char *text;
    size_t nbytes;
} tr_text_file;
tr_status tr_text_file_open(tr_text_file *f, const char *path);
tr_status tr_text_file_close(tr_text_file *f, tr_status st);
/* Closes it into the log, line by line, in the place of a file; `path` is what the text is called
 * where there is no memory. */
tr_status tr_text_file_log(tr_text_file *f, tr_log_level level, tr_status st);
char *tr_commit_temp_name(const char *path);
/* The length of the name in `name` that is written under this temporary name; 0: it is none of this
 * scheme. */
size_t tr_commit_is_temp(const char *name);
/* Whether `name` is a temporary of this scheme whose writer is gone. */
bool tr_commit_is_stale(const char *folder, const char *name);
/* Removes it if so, and says so. `dir`: the folder, open. */
void tr_commit_tidy(int dir, const char *folder, const char *name);
tr_status tr_commit_sync_folder(const char *path);

#endif
