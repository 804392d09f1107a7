/* A tree as YAML text, through libyaml's emitter: block style, lists of plain short values on one
 * line. Lines are never folded, so an indentation can be put before each without changing what it
 * says. */
#include "runtime/config/internal.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "runtime/base/visible.h"

typedef struct {
    FILE *to;
    int indent;
    bool inside; /* of a line */
} writer;

static int write_bytes(void *data, unsigned char *bytes, size_t n)
{
    writer *w = data;
    while (n) {
        if (!w->inside && *bytes != '\n') fprintf(w->to, "%*s", w->indent, "");
        const unsigned char *end = memchr(bytes, '\n', n);
        size_t part = end ? (size_t)(end - bytes) + 1 : n;
        if (fwrite(bytes, 1, part, w->to) != part) return 0;
        w->inside = !end;
        bytes += part;
        n -= part;
    }
    return 1;
}

/* A list that reads well, and the same, as [1, 2, 3]. */
static bool is_short(const tr_node *list)
{
    for (size_t i = 0; i < list->count; i++) {
        const tr_node *n = list->values[i];
        if (n->kind != TR_NODE_SCALAR || n->quoted || !*n->text) return false;
        for (const char *p = n->text; *p; p++)
            if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-", *p))
                return false;
    }
    return true;
}

/* BLOCK: an entry a line. PACKED: what has no more lists or maps inside, but lists of plain values,
 * on one line. FLOW: all on one line. */
typedef enum { BLOCK, PACKED, FLOW } layout;

static bool is_leaf(const tr_node *n)
{
    if (n->kind != TR_NODE_MAP || n->count == 0) return false;
    for (size_t i = 0; i < n->count; i++) {
        const tr_node *v = n->values[i];
        for (size_t k = 0; v->kind == TR_NODE_LIST && k < v->count; k++)
            if (v->values[k]->kind != TR_NODE_SCALAR) return false;
        if (v->kind == TR_NODE_MAP) return false;
    }
    return true;
}

/* Returns false when memory or the output failed. An event that was made belongs to the emitter. */
static bool emit_node(yaml_emitter_t *e, const tr_node *n, layout how)
{
    yaml_event_t event;
    if (how == PACKED && is_leaf(n)) how = FLOW;
    const bool flow = how == FLOW;
    if (n->kind == TR_NODE_SCALAR) {
        yaml_scalar_style_t style =
            n->quoted ? YAML_DOUBLE_QUOTED_SCALAR_STYLE : YAML_PLAIN_SCALAR_STYLE;
        return yaml_scalar_event_initialize(&event, NULL, NULL, (const yaml_char_t *)n->text,
                                            (int)strlen(n->text), 1, 1, style) &&
               yaml_emitter_emit(e, &event);
    }
    bool map = n->kind == TR_NODE_MAP;
    int made =
        map ? yaml_mapping_start_event_initialize(
                  &event, NULL, NULL, 1, flow ? YAML_FLOW_MAPPING_STYLE : YAML_BLOCK_MAPPING_STYLE)
            : yaml_sequence_start_event_initialize(&event, NULL, NULL, 1,
                                                   flow || is_short(n) ? YAML_FLOW_SEQUENCE_STYLE
                                                                       : YAML_BLOCK_SEQUENCE_STYLE);
    if (!made || !yaml_emitter_emit(e, &event)) return false;
    for (size_t i = 0; i < n->count; i++) {
        if (map && !emit_node(e, n->keys[i], how)) return false;
        if (!emit_node(e, n->values[i], how)) return false;
    }
    made = map ? yaml_mapping_end_event_initialize(&event)
               : yaml_sequence_end_event_initialize(&event);
    return made && yaml_emitter_emit(e, &event);
}

static tr_status emit(const tr_node *n, int indent, layout how, FILE *to)
{
    tr_status st = TR_OK;
    writer w = {.to = to, .indent = indent};
    yaml_emitter_t e;
    yaml_event_t event;
    if (!yaml_emitter_initialize(&e)) return TR_FAIL(TR_MEMORY, "out of memory while writing YAML");
    yaml_emitter_set_output(&e, write_bytes, &w);
    yaml_emitter_set_encoding(&e, YAML_UTF8_ENCODING);
    yaml_emitter_set_unicode(&e, 1);
    yaml_emitter_set_width(&e, -1);
    bool ok = yaml_stream_start_event_initialize(&event, YAML_UTF8_ENCODING) &&
              yaml_emitter_emit(&e, &event) &&
              yaml_document_start_event_initialize(&event, NULL, NULL, NULL, 1) &&
              yaml_emitter_emit(&e, &event) && emit_node(&e, n, how) &&
              yaml_document_end_event_initialize(&event, 1) && yaml_emitter_emit(&e, &event) &&
              yaml_stream_end_event_initialize(&event) && yaml_emitter_emit(&e, &event);
    TR_NEED(ok || e.error != YAML_MEMORY_ERROR, TR_MEMORY, "out of memory while writing YAML");
    TR_NEED(ok || e.error != YAML_EMITTER_ERROR, TR_INTERNAL, "YAML emitter: %s", e.problem);
    TR_NEED(ok && !ferror(to), TR_IO, "writing YAML failed");
out:
    yaml_emitter_delete(&e);
    return st;
}

tr_status tr_emit(const tr_node *n, int indent, FILE *to)
{
    return emit(n, indent, BLOCK, to);
}

tr_status tr_node_write(const tr_node *n, FILE *to)
{
    return emit(n, 0, PACKED, to);
}

tr_status tr_node_line(const tr_node *n, char **out)
{
    size_t size;
    char *text = NULL;
    FILE *to = open_memstream(&text, &size);
    if (!to) return TR_FAIL(TR_MEMORY, "out of memory while writing YAML");
    tr_status st = emit(n, 0, FLOW, to);
    if (fclose(to) != 0 && st == TR_OK) st = TR_FAIL(TR_MEMORY, "out of memory while writing YAML");
    TR_TRY(st);
    text[strcspn(text, "\n")] = 0;
    *out = tr_strdup(text);
    TR_HAVE(*out);
out:
    free(text);
    return st;
}

/* Bytes of a character that YAML takes for a line's end, or refuses: controls, U+2028, U+2029. Else
 * 0. */
static int break_length(const char *s)
{
    const unsigned char c = (unsigned char)*s, next = c ? (unsigned char)s[1] : 0;
    if (c == 0xc2 && next >= 0x80 && next < 0xa0) return 2;
    if (strncmp(s, "\xe2\x80\xa8", 3) == 0 || strncmp(s, "\xe2\x80\xa9", 3) == 0) return 3;
    return (c > 0 && c < ' ') || c == 0x7f;
}

/* In double quotes, which know escapes. */
static void write_escaped(const char *s, char *to, size_t room)
{
    const char *end = to + room;
    *to++ = '"';
    while (*s) {
        const int n = break_length(s);
        if (n == 3)
            to += snprintf(to, (size_t)(end - to), "\\%c", (unsigned char)s[2] == 0xa8 ? 'L' : 'P');
        else if (n > 0)
            to += snprintf(to, (size_t)(end - to), "\\x%02x", (unsigned)(unsigned char)s[n - 1]);
        else {
            if (*s == '"' || *s == '\\') *to++ = '\\';
            *to++ = *s;
        }
        s += n > 0 ? n : 1;
    }
    *to++ = '"';
    *to = 0;
}

bool tr_yaml_comment(const char *text)
{
    for (size_t n; *text && !break_length(text); text += n)
        if (!(n = tr_utf8_length(text, strnlen(text, 4)))) return false;
    return !*text;
}

/* Single quotes, where the text is of one line; so that it always is, in comments as well. */
char *tr_yaml_quoted(const char *text)
{
    const size_t room = 4 * strlen(text) + 3;
    char *out = tr_alloc(TR_MEM_OTHER, room, 1), *to = out;
    if (!out) return NULL;
    if (!tr_yaml_comment(text)) {
        write_escaped(text, out, room);
        return out;
    }
    for (*to++ = '\''; *text; *to++ = *text++)
        if (*text == '\'') *to++ = '\'';
    *to = '\'';
    return out;
}
