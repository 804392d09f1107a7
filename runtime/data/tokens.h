/* Private to tokens.c, tokens_file.c and documents.c: the tokens of a file, and the windows of
 * them. */
#ifndef TR_DATA_TOKENS_H
#define TR_DATA_TOKENS_H

#include "runtime/data/source.h"

/* The files that a source names: with `several`, names between commas, and patterns (glob(3)) that
 * stand for what is there, in the order of names; but a file that is called so is that file. */
typedef struct {
    char **v;
    size_t count;
} tr_token_paths;
tr_status tr_token_paths_find(const tr_opening *o, bool several, tr_token_paths *to);
void tr_token_paths_free(tr_token_paths *p);

/* Files' tokens as one array of samples of one number each, and where they begin in the first. type
 * -1: a text. ends: [count], tokens up to the end of each file. */
tr_status tr_tokens_flat(char *const *paths, size_t count, int type, uint64_t *offset,
                         uint64_t *ends, tr_array **out);

/* What the arrays of one source share. */
typedef struct {
    tr_array *flat;
    int users;
    uint64_t offset; /* of the first token in the file, where it is the only one */
    uint64_t *ends;  /* [files], tokens up to the end of each */
    size_t files;
    size_t T;
    uint64_t stride, windows;
    /* Inputs are tokens [first, end), labels the same one on. */
    uint64_t first, end;
    bool once;  /* a label counts in the first window that has it */
    bool fills; /* windows may be shorter, and labels not count */
    /* With documents: pieces, and how many inputs each has. */
    uint64_t *begin;
    uint32_t *count;
    size_t index; /* bytes of both */
    bool counted; /* by one of the arrays */
    int64_t separator;
    int32_t ignore;
} tr_token_stream;

/* Tokens [first, first + n). */
tr_status tr_token_stream_read(const tr_token_stream *s, uint64_t first, uint64_t n, void *to);
/* s->begin and s->count of all pieces: NULL where there is none. *separators: how often the file
 * has it. */
tr_status tr_documents_cut(tr_token_stream *s, uint64_t *pieces, uint64_t *separators);

#endif
