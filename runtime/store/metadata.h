/* HDF5's metadata as run files have them, read without HDF5: superblock 2 or 3, object headers of
 * version 2, links and attributes in the header or (attributes) in a fractal heap, contiguous
 * datasets. Everything else is a fault, said in words. The library itself trusts what it reads and
 * crashes on metadata made to that end; this reader takes no address, size or count for true.
 *
 * The format: "HDF5 File Format Specification Version 3.0", The HDF Group; the sections are named
 * where they are read. All Local. */
#ifndef TR_STORE_METADATA_H
#define TR_STORE_METADATA_H

#include "runtime/store/internal.h"

#define TR_UNDEFINED UINT64_MAX /* the address of nothing */

/* ---- Bytes (metadata.c) ---------------------------------------------------------------------- */

/* Little-endian values one after another, never past the end: then `bad` is set, and 0 comes. */
typedef struct {
    const uint8_t *at;
    size_t left;
    bool bad;
} tr_cursor;
uint64_t tr_cursor_take(tr_cursor *c, unsigned nbytes); /* nbytes: 1 to 8 */
const uint8_t *tr_cursor_skip(tr_cursor *c,
                              uint64_t nbytes); /* where they begin; NULL past the end */

typedef struct {
    int fd; /* borrowed */
    uint64_t nbytes;
    uint64_t left; /* bytes of metadata that may still be read: links may lead in circles */
    char *fault;   /* [TR_FAULT], the caller's: "" until the metadata are found damaged */
    int error;     /* errno of a read that failed: no damage, but no metadata either */
} tr_metadata;

/* fault: a buffer of TR_FAULT bytes, which stays the caller's. */
void tr_metadata_begin(tr_metadata *m, int fd, uint64_t nbytes, char *fault);
/* Damage: the first fault of `m` in words; returns false. */
bool tr_metadata_fault(tr_metadata *m, const char *fmt, ...) TR_PRINTF(2, 3);
/* Reads nbytes at `at` into `to`. false: outside the file, or too much was read (a fault), or the
 * file cannot be read (a fault too). */
bool tr_metadata_bytes(tr_metadata *m, uint64_t at, uint64_t nbytes, const char *what, void *to);
/* As tr_metadata_bytes, allocated (TR_MEM_OTHER), for a block that begins with `signature` and ends
 * in its checksum. *out is NULL after a fault. TR_MEMORY is the only failure. */
tr_status tr_metadata_block(tr_metadata *m, uint64_t at, uint64_t nbytes, const char *signature,
                            uint8_t **out);
/* HDF5's checksum of metadata: Bob Jenkins' lookup3 (hashlittle), first value 0. */
uint32_t tr_metadata_checksum(const void *bytes, size_t nbytes);
/* The superblock: the address of the root's object header. */
bool tr_superblock_read(tr_metadata *m, uint64_t *root);

/* ---- Object headers (header.c, dense.c) ------------------------------------------------------ */

typedef enum {
    TR_MSG_SPACE = 0x01,
    TR_MSG_LINK_INFO = 0x02,
    TR_MSG_TYPE = 0x03,
    TR_MSG_LINK = 0x06,
    TR_MSG_EXTERNAL = 0x07,
    TR_MSG_LAYOUT = 0x08,
    TR_MSG_GROUP_INFO = 0x0a,
    TR_MSG_FILTERS = 0x0b,
    TR_MSG_ATTRIBUTE = 0x0c,
    TR_MSG_CONTINUATION = 0x10,
    TR_MSG_SYMBOLS = 0x11,
    TR_MSG_ATTRIBUTE_INFO = 0x15
} tr_message_kind;

typedef struct {
    uint8_t kind, flags;
    tr_cursor body;
} tr_message;

/* All messages of one object, of continuation blocks and dense attributes too. */
struct tr_header {
    size_t count, nblocks;
    tr_message *v;
    uint8_t **blocks; /* owned: what the messages point into */
};

/* A damaged header is a fault of `m`, with what was read until then in *h. TR_MEMORY is the only
 * failure. To be freed in any case. */
tr_status tr_header_read(tr_metadata *m, uint64_t at, tr_header *h);
void tr_header_free(tr_header *h);
/* The first message of a kind; NULL where there is none. */
const tr_message *tr_header_find(const tr_header *h, tr_message_kind kind);
/* For dense.c: the header owns the block from now on, also when it fails. */
tr_status tr_header_keep(tr_header *h, uint8_t *block);
tr_status tr_header_add(tr_header *h, tr_message msg);
/* Attributes that a fractal heap holds (those of an object with one larger than a header's message
 * may be), as messages of the header. */
tr_status tr_dense_attributes(tr_metadata *m, tr_cursor info, tr_header *h);

/* ---- Messages (message.c) -------------------------------------------------------------------- */
/* Each reads a body of its kind; false: not of a form that run files have (no fault of itself). */

typedef enum { TR_LINK_HARD, TR_LINK_SOFT, TR_LINK_OTHER } tr_link_kind;
typedef struct {
    char name[256];
    tr_link_kind kind;
    uint64_t at; /* HARD: of the object's header */
} tr_link;
bool tr_msg_link(tr_cursor c, tr_link *out);
/* Whether a group's link info says that its links are in a fractal heap. */
bool tr_msg_links_elsewhere(tr_cursor info);

typedef struct {
    bool null; /* holds nothing, not even one value */
    int ndim;
    uint64_t dims[32];
} tr_space;
bool tr_msg_space(tr_cursor c, tr_space *out);

/* What the element of an array or the value of an attribute is. */
typedef enum {
    TR_STORED_OTHER,
    TR_STORED_ARRAY,
    TR_STORED_U32,
    TR_STORED_U64,
    TR_STORED_TEXT
} tr_stored;
typedef struct {
    tr_stored kind;
    tr_dtype dtype; /* ARRAY: one of those that runs write; a float64 attribute is one, too */
    size_t size;
} tr_type;
bool tr_msg_type(tr_cursor c, tr_type *out);

/* Contiguous: where its bytes lie (TR_UNDEFINED: nowhere) and how many. false: of another
 * layout. */
bool tr_msg_layout(tr_cursor c, uint64_t *at, uint64_t *nbytes);

typedef struct {
    const char *name; /* NUL-terminated, in the header's bytes */
    tr_type type;
    tr_space space;
    const uint8_t *value; /* type.size bytes, at least, of a scalar */
    size_t nbytes;        /* there are */
} tr_attribute;
bool tr_msg_attribute(tr_cursor c, tr_attribute *out);

#endif
