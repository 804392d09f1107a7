/* What `trainer sample` is asked for, and how what it makes is shown. */
#ifndef TR_COMMAND_SAMPLE_H
#define TR_COMMAND_SAMPLE_H

#include "optimize/sample/sample.h"

/* A text, or numbers of ids; what: the option that gave it. */
typedef struct {
    const char *what, *text;
    size_t nbytes;
    bool numbers;
} tr_text;

/* tr_arguments.options */
typedef struct {
    tr_text *prompts, *stops; /* owned; their texts are argv's or `files` */
    size_t nprompts, nstops;
    char **files; /* owned, and what they hold */
    size_t nfiles;
    int64_t tokens;
    tr_choice choice;
    uint64_t seed;
    bool seeded;
} tr_sample_options;

/* Local. Takes what `sample` alone takes out of argv, and leaves the others, *argc of them.
 * TR_USAGE. */
tr_status tr_sample_options_parse(int *argc, char **argv, tr_sample_options *out);
void tr_sample_options_free(tr_sample_options *o);
void tr_sample_help(FILE *to); /* what they mean */
/* Behind the names of other options in `to`, those of these, for who says what is expected. */
void tr_sample_flags(char *to, size_t size);

/* What is made, on standard output: a prompt's text as it comes, where others came before it behind
 * theirs. On a terminal text is shown like other texts from outside (runtime/base/visible.h); a
 * character of several bytes comes whole. */
typedef struct tr_shown tr_shown;
tr_status tr_shown_open(const tr_sample_options *o, bool bytes, tr_shown **out);
void tr_shown_close(tr_shown *s);
tr_status tr_shown_add(tr_shown *s, size_t prompt, int32_t id);
tr_status tr_shown_end(tr_shown *s, size_t prompt);
/* All that is there, also of prompts that have not ended. Nothing where a write failed before. */
tr_status tr_shown_flush(tr_shown *s);
/* Whether a write failed as its reader had left: no failure, but there is nothing more to do. */
bool tr_shown_left(const tr_shown *s);

#endif
