/* Whether a file is one of the data: what is to be written is asked about, and nothing that is read
 * is written over. Costs a look at each file that the config names; where that is a folder of
 * images, at each of them. */
#include "runtime/data/reads.h"

#include <limits.h>
#include <sys/stat.h>

#include "runtime/base/file.h"
#include "runtime/config/files.h"
#include "runtime/data/image.h"

/* As one of images is read; where it cannot be looked through, what lies within counts. */
static bool folder_has(const char *folder, const char *path)
{
    const tr_error before = *tr_last_error();
    char within[PATH_MAX];
    tr_found_images found;
    struct stat of, info;
    bool has = false;
    if (stat(path, &of) != 0) return false;
    if (tr_folder_scan(folder, false, &found) != TR_OK) {
        tr_set_error(&before);
        return tr_file_within(folder, path, within);
    }
    for (uint64_t i = 0; i < found.count && !has; i++) {
        char *image = tr_sprintf("%s/%s", folder, found.text + found.files[i].at);
        has = image && stat(image, &info) == 0 && info.st_dev == of.st_dev &&
              info.st_ino == of.st_ino;
        tr_free(image);
    }
    tr_found_free(&found);
    return has;
}

bool tr_is_data_file(const char *data, const char *path)
{
    struct stat info;
    if (!tr_file_there(path)) return false;
    if (stat(data, &info) == 0 && S_ISDIR(info.st_mode)) return folder_has(data, path);
    return tr_file_same(data, path);
}

static bool is_same(void *path, const char *file)
{
    return file && tr_is_data_file(file, path);
}

bool tr_data_reads(const tr_config *c, const char *path, char key[TR_DATA_KEY])
{
    const struct {
        const char *block;
        const tr_source_config *s;
    } all[] = {{"train", &c->data.train}, {"eval", &c->data.eval}, {"predict", &c->data.predict}};
    for (size_t i = 0; i < TR_COUNT(all); i++) {
        const char *name =
            all[i].s->present ? tr_source_find(c, all[i].s, is_same, (void *)path) : NULL;
        if (name) {
            snprintf(key, TR_DATA_KEY, "data.%s.%s", all[i].block, name);
            return true;
        }
    }
    return false;
}

tr_status tr_data_spare(const tr_config *c, const char *path)
{
    char key[TR_DATA_KEY];
    if (!tr_data_reads(c, path, key)) return TR_OK;
    return TR_FAIL(TR_USAGE, TR_READ_ALREADY " (%s)", path, key);
}
