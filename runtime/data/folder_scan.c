/* The image files below a folder, as torchvision's ImageFolder finds them: each folder at the top
 * is a class, classes by name are 0, 1, ...; files of a class by their folder's path, then by name,
 * all by bytes. What begins with a dot is left out (what other programs leave behind,
 * .ipynb_checkpoints or ._photo.jpg), and so are files of other extensions, which are counted. */
#include "runtime/base/visible.h"
#include "runtime/data/image.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define DEEP 32 /* folders within each other: a link may lead back */

static bool is_image(const char *name)
{
    static const char *const ends[] = {".png", ".jpg", ".jpeg"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < TR_COUNT(ends); i++)
        if (strcasecmp(dot, ends[i]) == 0) return true;
    return false;
}

/* `dir`: the path below the top, "" or ended by a slash. */
static tr_status add(tr_found_images *f, const char *dir, const char *name, int32_t label)
{
    tr_status st = TR_OK;
    const size_t nd = strlen(dir), nn = strlen(name) + 1;
    if (f->nbytes + nd + nn > f->room) {
        f->room = 2 * f->room + nd + nn + 4096;
        char *text = tr_realloc(TR_MEM_DATA, f->text, f->room, 1);
        TR_HAVE(text);
        f->text = text;
    }
    if (f->count == f->files_room) {
        f->files_room = 2 * f->files_room + 64;
        struct tr_found *files =
            tr_realloc(TR_MEM_DATA, f->files, (size_t)f->files_room, sizeof *files);
        TR_HAVE(files);
        f->files = files;
    }
    f->files[f->count++] = (struct tr_found){f->nbytes, (uint32_t)nd, label};
    memcpy(f->text + f->nbytes, dir, nd);
    memcpy(f->text + f->nbytes + nd, name, nn);
    f->nbytes += nd + nn;
out:
    return st;
}

static void add_other(tr_found_images *f, const char *dir, const char *name)
{
    if (f->others++ == 0) (void)snprintf(f->other, sizeof f->other, "%.200s%.255s", dir, name);
}

static bool is_utf8(const char *text)
{
    size_t n = 1;
    for (size_t left = strlen(text); left > 0 && n > 0; text += n, left -= n)
        n = tr_utf8_length(text, left);
    return n > 0;
}

/* false, *st being TR_OK: a link that leads nowhere, where none is `needed`. */
static bool find(const char *path, bool needed, struct stat *s, tr_status *st)
{
    *st = TR_OK;
    if (stat(path, s) == 0) return true;
    const int error = errno;
    if (needed || error != ENOENT || lstat(path, s) != 0)
        *st = TR_FAIL(TR_DATA, "%s: %s", path, strerror(error));
    return false;
}

static tr_status walk(const char *top, const char *dir, int depth, int32_t label,
                      tr_found_images *f);

static tr_status visit(const char *top, const char *dir, const char *name, int depth, int32_t label,
                       tr_found_images *f)
{
    struct stat s;
    tr_status st = TR_OK;
    char *below = NULL, *path = tr_sprintf("%s/%s%s", top, dir, name);
    TR_HAVE(path);
    if (!find(path, is_image(name), &s, &st)) {
        if (st == TR_OK) add_other(f, dir, name);
        goto out;
    }
    if (S_ISDIR(s.st_mode)) {
        TR_HAVE(below = tr_sprintf("%s%s/", dir, name));
        TR_TRY(walk(top, below, depth + 1, label, f));
    } else if (is_image(name)) {
        TR_NEED(is_utf8(dir) && is_utf8(name), TR_DATA,
                "%s: the name is not UTF-8 (the run's files and predictions hold names)", path);
        TR_TRY(add(f, dir, name, label));
    } else {
        add_other(f, dir, name);
    }
out:
    tr_free(below);
    tr_free(path);
    return st;
}

static tr_status walk(const char *top, const char *dir, int depth, int32_t label,
                      tr_found_images *f)
{
    tr_status st = TR_OK;
    DIR *d = NULL;
    char *path = tr_sprintf("%s/%s", top, dir);
    TR_HAVE(path);
    TR_NEED(depth <= DEEP, TR_DATA,
            "%s: more than %d folders within each other (a link that leads back?)", path, DEEP);
    d = opendir(path);
    TR_NEED(d, TR_DATA, "%s: %s", path, strerror(errno));
    errno = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL; errno = 0)
        if (e->d_name[0] != '.') TR_TRY(visit(top, dir, e->d_name, depth, label, f));
    TR_NEED(errno == 0, TR_DATA, "%s: %s", path, strerror(errno));
out:
    if (d) closedir(d);
    tr_free(path);
    return st;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static tr_status add_class(const char *top, const char *name, tr_found_images *f)
{
    struct stat s;
    tr_status st;
    char *path = tr_sprintf("%s/%s", top, name);
    TR_HAVE(path);
    if (!find(path, false, &s, &st) || !S_ISDIR(s.st_mode)) {
        if (st == TR_OK) add_other(f, "", name);
        goto out;
    }
    TR_NEED(is_utf8(name), TR_DATA, "%s: the folder's name is not UTF-8, expected a class's", path);
    char **all = tr_room_for_one(TR_MEM_DATA, f->classes, f->nclasses, sizeof *all);
    TR_HAVE(all);
    f->classes = all;
    TR_HAVE(all[f->nclasses] = tr_strdup(name));
    f->nclasses++;
out:
    tr_free(path);
    return st;
}

tr_status tr_folder_classes_of(const char *path, tr_found_images *f)
{
    tr_status st = TR_OK;
    DIR *d = opendir(path);
    TR_NEED(d, TR_DATA, "%s: %s", path, strerror(errno));
    errno = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL; errno = 0)
        if (e->d_name[0] != '.') TR_TRY(add_class(path, e->d_name, f));
    TR_NEED(errno == 0, TR_DATA, "%s: %s", path, strerror(errno));
    TR_NEED(f->nclasses > 0, TR_DATA, "%s: has no folder in it, expected one for each class", path);
    qsort(f->classes, f->nclasses, sizeof *f->classes, by_text);
    char **all = tr_realloc(TR_MEM_DATA, f->classes, f->nclasses, sizeof *all); /* no more room */
    TR_HAVE(all);
    f->classes = all;
out:
    if (d) closedir(d);
    return st;
}

/* By class, then the folder's path, then the name. */
static int by_place(const void *a, const void *b, void *text)
{
    const struct tr_found *x = a, *y = b;
    const char *p = (const char *)text + x->at, *q = (const char *)text + y->at;
    if (x->label != y->label) return x->label < y->label ? -1 : 1;
    /* without the slash at the end: "cat" is before "cat-2" */
    const size_t n = x->dir ? x->dir - 1 : 0, m = y->dir ? y->dir - 1 : 0;
    const int dir = memcmp(p, q, n < m ? n : m);
    if (dir != 0) return dir;
    if (n != m) return n < m ? -1 : 1;
    return strcmp(p + x->dir, q + y->dir);
}

tr_status tr_folder_scan(const char *path, bool labeled, tr_found_images *f)
{
    tr_status st;
    char *dir = NULL;
    memset(f, 0, sizeof *f);
    if (labeled) {
        TR_TRY(tr_folder_classes_of(path, f));
        for (size_t k = 0; k < f->nclasses; k++) {
            const uint64_t before = f->count;
            TR_HAVE(dir = tr_sprintf("%s/", f->classes[k]));
            TR_TRY(walk(path, dir, 1, (int32_t)k, f));
            TR_NEED(f->count > before, TR_DATA,
                    "%s/%s: has no image (.png, .jpg, .jpeg), expected some of its class", path,
                    dir);
            tr_free(dir);
            dir = NULL;
        }
    } else {
        TR_TRY(walk(path, "", 0, -1, f));
        TR_NEED(f->count > 0, TR_DATA, "%s: has no image (.png, .jpg, .jpeg)", path);
    }
    qsort_r(f->files, (size_t)f->count, sizeof *f->files, by_place, f->text);
out:
    tr_free(dir);
    if (st != TR_OK) tr_found_free(f);
    return st;
}

void tr_found_free(tr_found_images *f)
{
    for (size_t k = 0; k < f->nclasses; k++) tr_free(f->classes[k]);
    tr_free(f->classes);
    tr_free(f->files);
    tr_free(f->text);
    memset(f, 0, sizeof *f);
}
