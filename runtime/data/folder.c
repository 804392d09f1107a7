/* Images of a folder as an array of samples, decoded as they are read, by whichever thread asks:
 * loader threads ahead of the step. Where all in use fit in what data.cache_mb leaves, each is kept
 * once it was decoded, unless training takes another random part of it every time. Memory: that,
 * and for each thread what the largest image it met needs. */
#include "runtime/data/image.h"
#include "runtime/data/source.h"
#include "runtime/data/texts.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "runtime/base/numbers.h"

typedef struct decoder {
    tr_image_work work;
    struct decoder *next;
} decoder;

enum { EMPTY, WRITING, KEPT };
#define NOT_USED UINT64_MAX

typedef struct {
    tr_array base;
    char *path;
    tr_found_images found;
    tr_image_fit fit;
    int channels, threads; /* threads: that read at once */
    pthread_mutex_t mutex;
    decoder *idle;       /* under the mutex */
    uint64_t used;       /* samples that will be read */
    uint64_t *slot;      /* which of `kept` a used one is; NOT_USED of others */
    uint8_t *kept;       /* [used][nbytes]; NULL: nothing is kept */
    atomic_uchar *state; /* of each of these */
} folder;

/* ---- Decoding -------------------------------------------------------------------------------- */

static decoder *take_decoder(folder *f)
{
    pthread_mutex_lock(&f->mutex);
    decoder *d = f->idle;
    if (d) f->idle = d->next;
    pthread_mutex_unlock(&f->mutex);
    return d ? d : TR_NEW(TR_MEM_DATA, decoder);
}

static void give_decoder(folder *f, decoder *d)
{
    pthread_mutex_lock(&f->mutex);
    d->next = f->idle;
    f->idle = d;
    pthread_mutex_unlock(&f->mutex);
}

static const char *name_of(const folder *f, uint64_t i)
{
    return f->found.text + f->found.files[i].at;
}

/* drawn: as training takes it, by the numbers of (seed, ordinal). */
static tr_status decode(folder *f, uint64_t i, bool drawn, uint64_t seed, uint64_t ordinal,
                        uint8_t *to)
{
    tr_status st = TR_OK;
    tr_image image;
    size_t n = 0;
    char *path = NULL;
    decoder *d = take_decoder(f);
    TR_HAVE(d);
    TR_HAVE(path = tr_sprintf("%s/%s", f->path, name_of(f, i)));
    TR_TRY(tr_image_file_read(path, &d->work, &n));
    TR_TRY(tr_image_decode(path, d->work.file.at, n, f->channels, &d->work, &image));
    if (drawn)
        TR_TRY(tr_image_fit_random(&image, &f->fit, seed, ordinal, &d->work, to));
    else
        TR_TRY(tr_image_fit_plain(path, &image, &f->fit, &d->work, to));
out:
    if (d) give_decoder(f, d);
    tr_free(path);
    return st;
}

static tr_status read_one(folder *f, uint64_t i, uint8_t *to)
{
    const size_t nbytes = f->base.nbytes;
    const uint64_t k = f->kept ? f->slot[i] : NOT_USED;
    unsigned char empty = EMPTY;
    if (k != NOT_USED && atomic_load_explicit(&f->state[k], memory_order_acquire) == KEPT) {
        memcpy(to, f->kept + k * nbytes, nbytes);
        return TR_OK;
    }
    const tr_status st = decode(f, i, false, 0, 0, to);
    if (st != TR_OK || k == NOT_USED) return st;
    if (atomic_compare_exchange_strong(&f->state[k], &empty, WRITING)) {
        memcpy(f->kept + k * nbytes, to, nbytes);
        atomic_store_explicit(&f->state[k], KEPT, memory_order_release);
    }
    return TR_OK;
}

/* ---- The array ------------------------------------------------------------------------------- */

static tr_status folder_read(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    for (uint64_t i = 0; i < n; i++) {
        const tr_status st = read_one((folder *)a, first + i, (uint8_t *)to + i * a->nbytes);
        if (st != TR_OK) return st;
    }
    return TR_OK;
}

static tr_status folder_draw(tr_array *a, uint64_t i, uint64_t seed, uint64_t ordinal, void *to)
{
    folder *f = (folder *)a;
    return f->fit.random ? decode(f, i, true, seed, ordinal, to) : read_one(f, i, to);
}

static const char *folder_file(const tr_array *a, uint64_t i)
{
    return name_of((const folder *)a, i);
}

static void folder_where(const tr_array *a, uint64_t i, char *buf, size_t size)
{
    const folder *f = (const folder *)a;
    snprintf(buf, size, "%s/%s", f->path, name_of(f, i));
}

static void folder_release(tr_array *a)
{
    (void)a; /* files are open only while they are read */
}

static void folder_fini(tr_array *a)
{
    folder *f = (folder *)a;
    for (decoder *d = f->idle, *next; d; d = next) {
        next = d->next;
        tr_image_work_free(&d->work);
        tr_free(d);
    }
    pthread_mutex_destroy(&f->mutex);
    tr_found_free(&f->found);
    tr_free(f->slot);
    tr_free(f->kept);
    tr_free((void *)f->state);
    tr_free(f->path);
}

static void take_fit(const tr_opening *o, const tr_input *in, tr_image_fit *f)
{
    const tr_config *c = o->c;
    *f = (tr_image_fit){.height = in->dims[1],
                        .width = in->dims[2],
                        .nresize = c->data.image.resize.count,
                        .center_crop = c->data.image.center_crop,
                        .random = o->s == &c->data.train && c->data.augment.resized_crop.present};
    for (size_t i = 0; i < f->nresize; i++) f->resize[i] = c->data.image.resize.v[i];
    /* checksums, statistics and evaluation take no random part: they need a fit where training
     * needs none */
    if (c->data.augment.resized_crop.present && f->nresize == 0 && !f->center_crop) {
        f->nresize = 2;
        f->resize[0] = f->height;
        f->resize[1] = f->width;
    }
    for (size_t i = 0; i < 2 && f->random; i++) {
        f->scale[i] = c->data.augment.resized_crop.scale.v[i];
        f->ratio[i] = c->data.augment.resized_crop.ratio.v[i];
    }
}

static void folder_use(tr_array *a, uint64_t i)
{
    folder *f = (folder *)a;
    if (f->slot[i] == NOT_USED) f->slot[i] = f->used++;
}

/* What the threads will decode in: as much as the largest needs of some images that lie evenly over
 * those in use. One that cannot be read is told when it is wanted. */
static tr_status measure_decoders(folder *f, size_t *nbytes)
{
    enum { SOME = 16 };
    tr_status st = TR_OK;
    const uint64_t n = f->base.samples < SOME ? f->base.samples : SOME;
    const tr_image_fit own = f->fit, whole = {.height = own.height,
                                              .width = own.width,
                                              .nresize = 2,
                                              .resize = {own.height, own.width}};
    uint8_t *to = tr_alloc(TR_MEM_OTHER, f->base.nbytes, 1);
    TR_HAVE(to);
    for (uint64_t k = 0; k < n && st != TR_MEMORY; k++) {
        const uint64_t i = k * f->base.samples / n;
        if (f->slot[i] == NOT_USED) continue;
        st = decode(f, i, false, 0, 0, to);
        if (!own.random || st == TR_MEMORY) continue;
        f->fit = whole; /* no random part takes more */
        st = decode(f, i, false, 0, 0, to);
        f->fit = own;
    }
    if (st != TR_MEMORY) st = TR_OK;
    /* they were all decoded by this one */
    *nbytes = f->idle ? sizeof *f->idle + tr_image_work_room(&f->idle->work) : 0;
    *nbytes *= (size_t)f->threads;
out:
    tr_free(to);
    return st;
}

/* The list of files. */
static size_t listed(const folder *f)
{
    return (size_t)f->base.samples * sizeof *f->slot + f->found.room +
           (size_t)f->found.files_room * sizeof *f->found.files +
           f->found.nclasses * sizeof *f->found.classes;
}

/* Samples in use are kept once decoded, if all of them fit. */
static tr_status folder_keep(tr_array *a, uint64_t budget, size_t *cache)
{
    tr_status st = TR_OK;
    folder *f = (folder *)a;
    TR_TRY(measure_decoders(f, cache));
    *cache += listed(f);
    if (f->fit.random || f->used > budget / a->nbytes) goto out;
    TR_HAVE(f->state = tr_alloc(TR_MEM_DATA, (size_t)f->used, sizeof *f->state));
    TR_HAVE(f->kept = tr_alloc(TR_MEM_DATA, (size_t)f->used, a->nbytes));
    (void)tr_mem_drop(f->kept, (size_t)f->used * a->nbytes); /* pages come as images do */
    *cache += (size_t)f->used * (a->nbytes + sizeof *f->state);
out:
    return st;
}

/* Takes over `found`, on failure too. */
static tr_status open_images(const tr_opening *o, const char *path, tr_found_images *found,
                             tr_array **out)
{
    tr_status st = TR_OK;
    const tr_input *in = &o->m->inputs[0];
    const uint64_t dims[] = {found->count, (uint64_t)in->dims[0], (uint64_t)in->dims[1],
                             (uint64_t)in->dims[2]};
    folder *f = TR_NEW(TR_MEM_OTHER, folder);
    if (!f) {
        tr_found_free(found);
        return tr_last_status();
    }
    pthread_mutex_init(&f->mutex, NULL);
    f->found = *found;
    f->base.read = folder_read;
    f->base.draw = folder_draw;
    f->base.file = folder_file;
    f->base.where = folder_where;
    f->base.release = folder_release;
    f->base.fini = folder_fini;
    f->base.lazy = true;
    f->base.use = folder_use;
    f->base.keep = folder_keep;
    TR_HAVE(f->path = tr_strdup(path));
    TR_HAVE(f->base.name = tr_strdup(path));
    TR_TRY(tr_array_shape(&f->base, TR_ELEM_U8, 4, dims));
    f->base.unit = (size_t)1 << 20; /* of pixels to decode, about */
    f->channels = (int)in->dims[0];
    f->threads = o->c->data.workers > 1 ? (int)o->c->data.workers : 1;
    take_fit(o, in, &f->fit);
    TR_HAVE(f->slot = tr_alloc(TR_MEM_DATA, (size_t)f->base.samples, sizeof *f->slot));
    for (uint64_t i = 0; i < f->base.samples; i++) f->slot[i] = NOT_USED;
    *out = &f->base;
    f = NULL;
out:
    if (f) tr_array_close(&f->base);
    return st;
}

/* ---- Labels ---------------------------------------------------------------------------------- */

static tr_status label_read(tr_array *a, uint64_t first, uint64_t n, void *to)
{
    memcpy(to, (const char *)a->held + first * a->nbytes, (size_t)n * a->nbytes);
    return TR_OK;
}

/* The texts of data.class_names, else the folders of data.train, which are `own` where it is this
 * one. */
static tr_status class_names(const tr_opening *o, const tr_found_images *own,
                             tr_found_images *train, const char *const **texts, size_t *count)
{
    tr_status st = TR_OK;
    const tr_node *names = o->c->data.class_names;
    const tr_found_images *f = own;
    if (!names && o->s != &o->c->data.train &&
        tr_source_kind(o->c, &o->c->data.train) == TR_FORMAT_FOLDER) {
        char *path = tr_config_path(o->c, o->c->data.train.path);
        TR_HAVE(path);
        st = tr_folder_classes_of(path, train);
        tr_free(path);
        if (st != TR_OK) goto out;
        f = train;
    }
    *count = names ? names->count : f->nclasses;
    const char **all = tr_alloc(TR_MEM_OTHER, *count, sizeof *all);
    TR_HAVE(all);
    for (size_t k = 0; k < *count; k++) all[k] = names ? names->values[k]->text : f->classes[k];
    *texts = all;
out:
    return st;
}

/* The number of each of the folder's classes. `numbers`: [found->nclasses] */
static tr_status number_classes(const tr_opening *o, const char *path, const tr_found_images *found,
                                int32_t *numbers)
{
    tr_status st = TR_OK;
    const size_t outputs = o->m->labels ? (size_t)o->m->classes : 2;
    tr_found_images train = {0};
    size_t count = 0;
    const char *near = NULL, *const *texts = NULL;
    tr_text_place *places = NULL;
    TR_TRY(class_names(o, found, &train, &texts, &count));
    if (count != outputs) {
        st = tr_opening_fail(
            o, "path", "%s: %zu classes (%s), expected %zu, as many as the model has outputs", path,
            count, o->c->data.class_names ? "data.class_names" : "folders in it", outputs);
        goto out;
    }
    TR_HAVE(places = tr_alloc(TR_MEM_OTHER, count, sizeof *places));
    for (size_t k = 0; k < count; k++) places[k] = (tr_text_place){texts[k], k};
    tr_text_places_sort(places, count);
    for (size_t i = 0; i < found->nclasses; i++) {
        const tr_text_place *p = tr_text_places_find(places, count, found->classes[i]);
        if (!p) near = tr_nearest(found->classes[i], texts, count);
        TR_NEED(p, TR_DATA,
                "%s/%s: no class has this name, expected one of the %zu that were trained "
                "(data.class_names); %s \"%s\"",
                path, found->classes[i], count, near ? "the nearest is" : "the first is",
                near ? near : texts[0]);
        numbers[i] = (int32_t)p->place;
    }
out:
    tr_free(places);
    tr_free((void *)texts);
    tr_found_free(&train);
    return st;
}

static tr_status open_labels(const tr_opening *o, const char *path, const tr_found_images *found,
                             tr_array **out)
{
    tr_status st = TR_OK;
    const uint64_t dims[] = {found->count};
    int32_t *numbers = tr_alloc(TR_MEM_OTHER, found->nclasses, sizeof *numbers);
    tr_array *a = TR_NEW(TR_MEM_OTHER, tr_array);
    TR_HAVE(a && numbers);
    a->read = label_read;
    a->release = folder_release;
    TR_TRY(number_classes(o, path, found, numbers));
    TR_HAVE(a->name = tr_strdup(path));
    TR_TRY(tr_array_shape(a, TR_ELEM_I32, 1, dims));
    int32_t *labels = a->held = tr_alloc(TR_MEM_DATA, (size_t)found->count, sizeof *labels);
    TR_HAVE(labels);
    for (uint64_t i = 0; i < found->count; i++) labels[i] = numbers[found->files[i].label];
    *out = a;
    a = NULL;
out:
    tr_array_close(a);
    tr_free(numbers);
    return st;
}

tr_status tr_images_open(const tr_opening *o, tr_array **inputs, tr_array **targets)
{
    tr_status st;
    tr_found_images found = {0};
    const tr_input *in = &o->m->inputs[0];
    char *path = tr_config_path(o->c, o->s->path);
    TR_HAVE(path);
    if (o->m->ninputs != 1 || in->layout != TR_LAYOUT_CHANNELS_LAST ||
        (in->dims[0] != 1 && in->dims[0] != 3) || in->ids > 0) {
        st = tr_opening_fail(o, "path",
                             "a folder of images is for one input of 3 dimensions: [1, height, "
                             "width] (grey) or [3, height, width] (RGB)");
        goto out;
    }
    TR_TRY(tr_folder_scan(path, !o->unlabeled, &found));
    if (found.others > 0)
        tr_log(TR_LOG_INFO, "%s: left out, for %s in no .png, .jpg, .jpeg: %" PRIu64 " file%s (%s)",
               path, found.others == 1 ? "it ends" : "they end", found.others,
               tr_plural(found.others), found.other);
    if (!o->unlabeled) TR_TRY(open_labels(o, path, &found, targets));
    st = open_images(o, path, &found, &inputs[0]);
    memset(&found, 0, sizeof found);
out:
    tr_found_free(&found);
    tr_free(path);
    return st;
}

tr_status tr_folder_class_names(const tr_config *c, FILE *to)
{
    tr_status st;
    tr_found_images found = {0};
    char *path = tr_config_path(c, c->data.train.path);
    TR_HAVE(path);
    st = tr_folder_classes_of(path, &found);
    if (st != TR_OK) st = tr_source_failed(c, &c->data.train, "data.train", st);
    TR_TRY(st);
    for (size_t k = 0; k < found.nclasses; k++) {
        char *quoted = tr_yaml_quoted(found.classes[k]);
        TR_HAVE(quoted);
        fprintf(to, "%s%s", k ? ", " : "[", quoted);
        tr_free(quoted);
    }
    fputc(']', to);
out:
    tr_found_free(&found);
    tr_free(path);
    return st;
}
