/* Looking at a folder of images: its classes, and of some images the size and whether they have
 * colours. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/config/config.h"
#include "runtime/data/image.h"
#include "runtime/data/look_table.h"

enum { SOME = 64 };  /* images that are decoded */
enum { SIDE = 224 }; /* the most that a model's input gets by itself: ImageNet's */

typedef struct {
    int64_t shorter[SOME];
    int64_t height, width; /* of the first */
    size_t count;
    bool same, grey;
} sizes;

static bool is_grey(const tr_image *image)
{
    const uint8_t *p = image->pixels;
    for (int64_t i = 0; i < image->height * image->width; i++, p += 3)
        if (p[0] != p[1] || p[1] != p[2]) return false;
    return true;
}

static tr_status look_at_image(const char *path, tr_image_work *w, sizes *s)
{
    tr_status st;
    tr_image image;
    size_t n;
    TR_TRY(tr_image_file_read(path, w, &n));
    TR_TRY(tr_image_decode(path, w->file.at, n, 3, w, &image));
    if (s->count == 0) {
        s->height = image.height;
        s->width = image.width;
    }
    s->same = s->same && image.height == s->height && image.width == s->width;
    s->grey = s->grey && is_grey(&image);
    s->shorter[s->count++] = image.height < image.width ? image.height : image.width;
out:
    return st;
}

/* Of images that lie evenly over all classes. */
static tr_status look_at_images(const char *path, const tr_found_images *f, sizes *s)
{
    tr_status st = TR_OK;
    tr_image_work w = {0};
    const uint64_t n = f->count < SOME ? f->count : SOME;
    *s = (sizes){.same = true, .grey = true};
    for (uint64_t i = 0; i < n; i++) {
        char *file = tr_sprintf("%s/%s", path, f->text + f->files[i * f->count / n].at);
        TR_HAVE(file);
        st = look_at_image(file, &w, s);
        tr_free(file);
        if (st != TR_OK) goto out;
    }
out:
    tr_image_work_free(&w);
    return st;
}

static int by_value(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Images of one size stay as they are, where that is not too large; others get a square that half
 * of them fill. */
static void take_size(sizes *s, tr_look *l)
{
    qsort(s->shorter, s->count, sizeof *s->shorter, by_value);
    int64_t side = s->shorter[s->count / 2];
    l->ndim = TR_LOOK_IMAGE;
    l->bytes = true;
    l->dims[0] = s->grey ? 1 : 3;
    if (s->same && s->height <= SIDE && s->width <= SIDE) {
        l->dims[1] = s->height;
        l->dims[2] = s->width;
        l->resize = side;
        return;
    }
    side = side > SIDE ? SIDE : side >= 64 ? side / 32 * 32 : side;
    l->dims[1] = l->dims[2] = side;
    l->resize = side == SIDE ? 256 : side; /* as ImageNet's are evaluated */
}

static bool has_folder(const char *top, const char *name)
{
    struct stat s;
    char *path = tr_sprintf("%s/%s", top, name);
    const bool is = path && stat(path, &s) == 0 && S_ISDIR(s.st_mode);
    tr_free(path);
    return is;
}

/* The folders of classes: `path`, or within it train and the set to evaluate on. */
static tr_status find_sets(const char *path, tr_look *l)
{
    static const char *const evals[] = {"val", "valid", "eval", "test"};
    tr_status st = TR_OK;
    size_t n = strlen(path), k = 0;
    while (n > 1 && path[n - 1] == '/') n--;
    while (k < TR_COUNT(evals) && !has_folder(path, evals[k])) k++;
    if (k < TR_COUNT(evals) && has_folder(path, "train")) {
        TR_HAVE(l->train.path = tr_sprintf("%.*s/train", (int)n, path));
        TR_HAVE(l->eval.path = tr_sprintf("%.*s/%s", (int)n, path, evals[k]));
        goto out;
    }
    TR_HAVE(l->train.path = tr_sprintf("%.*s", (int)n, path));
    const char *base = strrchr(l->train.path, '/');
    base = base ? base + 1 : l->train.path;
    const int before = (int)(base - l->train.path);
    if (strcmp(base, "train") != 0) goto out;
    for (k = 0; k < TR_COUNT(evals) && !l->eval.path; k++) {
        char *eval = tr_sprintf("%.*s%s", before, l->train.path, evals[k]);
        TR_HAVE(eval);
        if (has_folder(eval, "."))
            l->eval.path = eval;
        else
            tr_free(eval);
    }
out:
    return st;
}

static void count_classes(const tr_found_images *f, tr_look *l)
{
    uint64_t n = 0;
    l->samples = l->fewest = f->count;
    l->classes = (int64_t)f->nclasses;
    for (uint64_t i = 0; i < f->count; i++) {
        n++;
        if (i + 1 < f->count && f->files[i].label == f->files[i + 1].label) continue;
        if (n < l->fewest) l->fewest = n;
        n = 0;
    }
}

tr_status tr_look_at_folder(const char *path, const char *labels, tr_look *l)
{
    tr_status st;
    tr_found_images found = {0};
    sizes s;
    l->format = TR_FORMAT_FOLDER;
    TR_NEED(!labels, TR_DATA, "%s: the classes of a folder of images are its folders, not \"%s\"",
            path, labels);
    TR_TRY(find_sets(path, l));
    TR_TRY(tr_folder_scan(l->train.path, true, &found));
    TR_NEED(found.nclasses > 1, TR_DATA, "%s: one folder (%s), expected one for each class", path,
            found.classes[0]);
    count_classes(&found, l);
    TR_TRY(look_at_images(l->train.path, &found, &s));
    take_size(&s, l);
out:
    tr_found_free(&found);
    return st;
}
