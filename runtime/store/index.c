/* Opening a run file: who it is, its attributes, and a flat sorted list of its datasets. HDF5 is
 * not asked: its metadata are read as bytes (metadata.h), since it crashes on files made to that
 * end. Everything later reads bytes at known offsets from one file descriptor, so a checkpoint
 * replaced in the meantime does no harm.
 *
 * The file may be hostile: only regular files, only superblocks 2 and 3 (what this program writes,
 * with checksummed metadata; the older format has none), only hard links (a soft or external one is
 * named as a fault, never followed), bounded depth and number of objects. Damage below the root
 * becomes a fault of the entry it hits, so that the rest can still be shown. */
#include "runtime/store/metadata.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH_MAX   6
#define ENTRIES_MAX 200000
#define STAGES      "/stages/"

/* The file whose index is made. */
typedef struct {
    tr_index *ix;
    tr_metadata m;
    char fault[TR_FAULT]; /* of the object that is being read */
} reader;

static tr_status add(tr_index *ix, const char *where, tr_entry **out)
{
    if (ix->count >= ENTRIES_MAX)
        return TR_FAIL(TR_FILE, "%s: more than %d datasets", ix->path, ENTRIES_MAX);
    tr_entry *grown = tr_room_for_one(TR_MEM_OTHER, ix->entries, ix->count, sizeof *grown);
    if (!grown) return tr_last_status();
    ix->entries = grown;
    tr_entry *e = &ix->entries[ix->count];
    *e = (tr_entry){.where = tr_strdup(where)};
    if (!e->where) return tr_last_status();
    ix->count++;
    *out = e;
    return TR_OK;
}

static tr_status add_fault(reader *r, const char *where, const char *fault)
{
    tr_entry *e = NULL;
    tr_status st = add(r->ix, where[0] ? where : "/", &e);
    if (st == TR_OK) tr_entry_fault(e, "%s", fault);
    return st;
}

static tr_status add_set(tr_index *ix, const tr_header *h, const char *where)
{
    tr_attr_set *grown = tr_room_for_one(TR_MEM_OTHER, ix->sets, ix->nsets, sizeof *grown);
    if (!grown) return tr_last_status();
    ix->sets = grown;
    tr_attr_set *set = &grown[ix->nsets];
    *set = (tr_attr_set){.where = tr_strdup(where)};
    if (!set->where) return tr_last_status();
    ix->nsets++;
    return tr_attrs_read(&set->attrs, h, set->where, set->fault);
}

static tr_status walk_group(reader *r, const tr_header *h, const char *where, int depth);

static bool is_group(const tr_header *h)
{
    return tr_header_find(h, TR_MSG_LINK_INFO) || tr_header_find(h, TR_MSG_LINK) ||
           tr_header_find(h, TR_MSG_SYMBOLS);
}

static tr_status visit_object(reader *r, uint64_t at, const char *where, int depth)
{
    tr_status st = TR_OK;
    tr_entry *e = NULL;
    tr_header h = {0};
    char why[TR_FAULT];
    r->fault[0] = 0;
    TR_TRY(tr_header_read(&r->m, at, &h));
    if (r->fault[0]) {
        snprintf(why, sizeof why, "cannot be opened: %.280s", r->fault);
        TR_TRY(add_fault(r, where, why));
    } else if (is_group(&h)) {
        if (strncmp(where, STAGES, strlen(STAGES)) == 0) TR_TRY(add_set(r->ix, &h, where));
        if (depth < DEPTH_MAX) {
            TR_TRY(walk_group(r, &h, where, depth + 1));
        } else {
            snprintf(why, sizeof why, "groups are nested deeper than %d", DEPTH_MAX);
            TR_TRY(add_fault(r, where, why));
        }
    } else if (tr_header_find(&h, TR_MSG_LAYOUT)) {
        TR_TRY(add(r->ix, where, &e));
        tr_entry_describe(e, &h, r->ix->nbytes);
    } else {
        TR_TRY(add_fault(r, where, "expected a group or a dataset, found another kind of object"));
    }
out:
    tr_header_free(&h);
    return st;
}

static tr_status visit_link(reader *r, const tr_link *link, const char *above, int depth)
{
    char *where = tr_sprintf("%s/%s", above, link->name);
    if (!where) return tr_last_status();
    tr_status st;
    if (link->kind == TR_LINK_HARD)
        st = visit_object(r, link->at, where, depth);
    else
        st = add_fault(r, where,
                       link->kind == TR_LINK_SOFT
                           ? "expected a group or a dataset, found a soft link (not followed)"
                           : "expected a group or a dataset, found an external link (not "
                             "followed)");
    tr_free(where);
    return st;
}

/* Links are in the group's header, as image.c has them: HDF5's other forms are not read. */
static tr_status walk_group(reader *r, const tr_header *h, const char *where, int depth)
{
    tr_status st = TR_OK;
    const tr_message *info = tr_header_find(h, TR_MSG_LINK_INFO);
    if (tr_header_find(h, TR_MSG_SYMBOLS) || (info && tr_msg_links_elsewhere(info->body)))
        TR_TRY(add_fault(r, where, "the group cannot be read: its links are not in its header"));
    for (size_t i = 0; i < h->count; i++) {
        tr_link link;
        if (h->v[i].kind != TR_MSG_LINK) continue;
        if (tr_msg_link(h->v[i].body, &link))
            TR_TRY(visit_link(r, &link, where, depth));
        else
            TR_TRY(add_fault(r, where, "the group cannot be read: a link of no known form"));
    }
out:
    return st;
}

static const unsigned char magic[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};

bool tr_store_is_hdf5(const char *path)
{
    unsigned char start[sizeof magic];
    int fd;
    if (tr_file_open(path, O_RDONLY, TR_IO, &fd, NULL) != TR_OK) return false;
    const ssize_t n = pread(fd, start, sizeof start, 0);
    close(fd);
    return n == (ssize_t)sizeof start && memcmp(start, magic, sizeof magic) == 0;
}

/* The file, and what its first bytes say. */
static tr_status open_file(tr_index *ix)
{
    tr_status st = TR_OK;
    unsigned char start[9] = {0};
    struct stat info;
    const char *path = ix->path;
    st = tr_file_open(path, O_RDONLY, TR_IO, &ix->fd, &info);
    ix->starved = st != TR_OK && (errno == EMFILE || errno == ENFILE);
    TR_TRY(st);
    TR_NEED(info.st_size > 0, TR_FILE, "%s: the file is empty", path);
    const ssize_t n = pread(ix->fd, start, sizeof start, 0);
    TR_NEED(n >= 0, TR_IO, "%s: cannot read: %s", path, strerror(errno));
    TR_NEED(n == (ssize_t)sizeof start && memcmp(start, magic, sizeof magic) == 0, TR_FILE,
            "%s: not an HDF5 file", path);
    TR_NEED(start[8] == 2 || start[8] == 3, TR_FILE,
            "%s: not a run file: HDF5 superblock version %d, expected 2 or 3", path, start[8]);
    ix->nbytes = (uint64_t)info.st_size;
out:
    return st;
}

static tr_status check_kind(tr_index *ix)
{
    const tr_attr *format = tr_attrs_get(&ix->root, "format");
    const tr_attr *version = tr_attrs_get(&ix->root, "format_version");
    if (!format || format->kind != TR_ATTR_TEXT || strcmp(format->text, TR_FORMAT_NAME) != 0)
        return ix->root_fault[0]
                   ? TR_FAIL(TR_FILE, "%s: %s", ix->path, ix->root_fault)
                   : TR_FAIL(TR_FILE,
                             "%s: not a run file: expected the attribute format \"%s\" "
                             "at /, found %s",
                             ix->path, TR_FORMAT_NAME, format ? "another" : "none");
    if (!version || version->kind != TR_ATTR_COUNT || version->u == 0)
        return TR_FAIL(TR_FILE, "%s: /@format_version: expected a positive uint64", ix->path);
    ix->newer = version->u > TR_FORMAT_VERSION;
    if (ix->newer)
        return TR_FAIL(TR_FILE,
                       "%s: format_version %llu is newer than this program reads (%d): use a newer "
                       "trainer",
                       ix->path, (unsigned long long)version->u, TR_FORMAT_VERSION);
    return TR_OK;
}

static tr_status read_train(reader *r, const tr_header *root)
{
    tr_status st = TR_OK;
    tr_header h = {0};
    tr_link link = {.kind = TR_LINK_OTHER};
    char *fault = r->ix->train_fault;
    bool there = false;
    for (size_t i = 0; i < root->count && !there; i++)
        there = root->v[i].kind == TR_MSG_LINK && tr_msg_link(root->v[i].body, &link) &&
                strcmp(link.name, "train") == 0;
    if (!there || link.kind != TR_LINK_HARD) {
        snprintf(fault, TR_FAULT,
                 there ? "/train: cannot be opened: it is a link" : "/train: missing");
        return TR_OK;
    }
    r->fault[0] = 0;
    TR_TRY(tr_header_read(&r->m, link.at, &h));
    if (r->fault[0])
        snprintf(fault, TR_FAULT, "/train: cannot be opened: %.280s", r->fault);
    else
        TR_TRY(tr_attrs_read(&r->ix->train, &h, "/train", fault));
out:
    tr_header_free(&h);
    return st;
}

static int by_set(const void *a, const void *b)
{
    return strcmp(((const tr_attr_set *)a)->where, ((const tr_attr_set *)b)->where);
}

static int by_where(const void *a, const void *b)
{
    return strcmp(((const tr_entry *)a)->where, ((const tr_entry *)b)->where);
}

static tr_status read_root(reader *r, tr_header *root)
{
    tr_status st = TR_OK;
    uint64_t at = 0;
    if (tr_superblock_read(&r->m, &at)) TR_TRY(tr_header_read(&r->m, at, root));
    TR_NEED(!r->fault[0], r->m.error ? TR_IO : TR_FILE, "%s: %s", r->ix->path, r->fault);
    TR_TRY(tr_attrs_read(&r->ix->root, root, "/", r->ix->root_fault));
    TR_TRY(check_kind(r->ix));
out:
    return st;
}

tr_status tr_store_is(const char *path, bool *is)
{
    tr_header root = {0};
    tr_index ix = {.fd = -1};
    reader r = {.ix = &ix};
    uint64_t at = 0;
    *is = false;
    tr_status st;
    TR_HAVE(ix.path = tr_strdup(path));
    st = open_file(&ix);
    if (st == TR_FILE) st = TR_OK; /* of the older format, or no HDF5 at all */
    if (st != TR_OK || ix.nbytes == 0) goto out;
    tr_metadata_begin(&r.m, ix.fd, ix.nbytes, r.fault);
    if (tr_superblock_read(&r.m, &at)) TR_TRY(tr_header_read(&r.m, at, &root));
    if (!r.fault[0]) TR_TRY(tr_attrs_read(&ix.root, &root, "/", ix.root_fault));
    *is = r.fault[0] || tr_attrs_get(&ix.root, "format"); /* reading it says what is wrong */
out:
    tr_header_free(&root);
    tr_index_close(&ix);
    return st;
}

tr_status tr_index_open(const char *path, tr_index *ix)
{
    tr_status st = TR_OK;
    tr_header root = {0};
    reader r = {.ix = ix};
    *ix = (tr_index){.fd = -1};
    ix->path = tr_strdup(path);
    ix->of = tr_sprintf("%s: ", path);
    TR_HAVE(ix->path && ix->of);
    TR_TRY(open_file(ix));
    tr_metadata_begin(&r.m, ix->fd, ix->nbytes, r.fault);
    TR_TRY(read_root(&r, &root));
    TR_TRY(read_train(&r, &root));
    TR_TRY(walk_group(&r, &root, "", 0));
    TR_NEED(!r.m.error, TR_IO, "%s: cannot be read: %s", path, strerror(r.m.error));
    if (ix->count > 0) qsort(ix->entries, ix->count, sizeof(tr_entry), by_where);
    TR_TRY(tr_together_read(ix, &root));
    if (ix->nsets > 0) qsort(ix->sets, ix->nsets, sizeof(tr_attr_set), by_set);
out:
    tr_header_free(&root);
    if (st != TR_OK) tr_index_close(ix);
    return st;
}

void tr_index_close(tr_index *ix)
{
    if (ix->fd >= 0) close(ix->fd);
    for (size_t i = 0; i < ix->count; i++) tr_free(ix->entries[i].where);
    tr_free(ix->entries);
    for (size_t i = 0; i < ix->nsets; i++) {
        tr_free(ix->sets[i].where);
        tr_attrs_free(&ix->sets[i].attrs);
    }
    tr_free(ix->sets);
    tr_attrs_free(&ix->root);
    tr_attrs_free(&ix->train);
    tr_free(ix->path);
    tr_free(ix->of);
    *ix = (tr_index){.fd = -1, .newer = ix->newer, .starved = ix->starved};
}

const tr_entry *tr_index_find(const tr_index *ix, const char *where)
{
    tr_entry key = {.where = (char *)where};
    if (ix->count == 0) return NULL;
    return bsearch(&key, ix->entries, ix->count, sizeof key, by_where);
}
