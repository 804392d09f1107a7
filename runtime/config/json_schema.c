/* Tables of fields as a JSON schema, which editors complete and check configs by. It says what a
 * table says: keys, types, ranges, words. What depends on several keys, `trainer check` alone
 * knows.
 * https://json-schema.org/draft/2020-12 */
#include <string.h>

#include "runtime/base/numbers.h"
#include "runtime/config/schema.h"

static const char USERS_OWN[] = "\"patternProperties\":{\"^x-\":{}}";

static void value(const tr_field *f, bool open, FILE *to);

void tr_schema_text(const char *text, FILE *to)
{
    fputc('"', to);
    for (const char *p = text; *p; p++) {
        if (*p == '"' || *p == '\\') fputc('\\', to);
        fputc(*p == '\n' ? ' ' : *p, to);
    }
    fputc('"', to);
}

static void describe(const tr_field *f, FILE *to)
{
    if (!f->doc) return;
    fputs("\"description\":", to);
    tr_schema_text(f->doc, to);
    fputc(',', to);
    if (f->dflt && *f->dflt && *f->dflt != '[' && *f->dflt != '{') {
        fputs("\"default\":", to);
        tr_schema_text(f->dflt, to);
        fputc(',', to);
    }
}

/* ---- One value ------------------------------------------------------------------------------- */

/* YAML 1.1 reads some words as booleans, which not all who check by a schema leave alone. */
static bool boolean_word(const char *text)
{
    static const char *const words[] = {"true", "false", "on", "off", "yes", "no"};
    for (size_t i = 0; i < TR_COUNT(words); i++)
        if (strcmp(text, words[i]) == 0) return true;
    return false;
}

static void words(const tr_field *f, bool *first, bool *booleans, FILE *to)
{
    if (f->auto_text) {
        fputs(*first ? "" : ",", to);
        tr_schema_text(f->auto_text, to);
        *first = false;
    }
    for (const tr_field_word *w = f->words; w && w->text; w++) {
        fputs(*first ? "" : ",", to);
        tr_schema_text(w->text, to);
        *first = false;
        *booleans |= boolean_word(w->text);
    }
}

static void number(const tr_field *f, bool integer, FILE *to)
{
    char low[32], high[32];
    fprintf(to, "{\"type\":\"%s\"", integer ? "integer" : "number");
    if (f->min != f->max)
        fprintf(to, ",\"minimum\":%s,\"maximum\":%s", tr_format_real(f->min, low),
                integer && f->max > 9.2e18 ? "9223372036854775807" : tr_format_real(f->max, high));
    fputc('}', to);
}

/* 5, "2 epochs", "5%". */
static void span(const tr_field *f, FILE *to)
{
    number(f, tr_span_default(f) == TR_SPAN_STEPS, to);
    fputs(",{\"type\":\"string\",\"pattern\":\"^([0-9.]+( ?%| epochs?)|[0-9]+ steps?)$\"}", to);
}

static void choice(const tr_field *f, FILE *to)
{
    bool first = true, booleans = false;
    fputs("{\"enum\":[", to);
    for (const char *const *c = f->choices; *c; c++, first = false) {
        fputs(first ? "" : ",", to);
        tr_schema_text(*c, to);
        booleans |= boolean_word(*c);
    }
    words(f, &first, &booleans, to);
    fputs(booleans ? ",true,false]}" : "]}", to);
}

static const char PARAMETER[] = ",{\"type\":\"string\",\"pattern\":\"[$]\"}";

/* `open`: parameters may stand for values. */
static void simple(const tr_field *f, bool open, FILE *to)
{
    const bool integer = f->kind == TR_FIELD_INT || f->kind == TR_FIELD_INTS;
    switch (f->kind) {
    case TR_FIELD_SPAN:
        span(f, to);
        break;
    case TR_FIELD_SPANS:
        fprintf(to, "{\"type\":\"array\",\"minItems\":1,\"maxItems\":%d,\"items\":{\"anyOf\":[",
                TR_LIST_MAX);
        span(f, to);
        fputs("]}},", to);
        span(f, to);
        break;
    case TR_FIELD_INTS:
    case TR_FIELD_REALS:
        fputs("{\"type\":\"array\",\"minItems\":1,\"items\":{\"anyOf\":[", to);
        number(f, integer, to);
        if (open) fputs(PARAMETER, to);
        fprintf(to, "]},\"maxItems\":%d},", integer ? TR_LIST_MAX : TR_REALS_MAX);
        number(f, integer, to);
        break;
    case TR_FIELD_INT:
    case TR_FIELD_REAL:
        number(f, integer, to);
        break;
    case TR_FIELD_BOOL:
        fputs("{\"type\":\"boolean\"}", to);
        break;
    case TR_FIELD_STRING:
        fputs("{\"type\":[\"string\",\"number\",\"boolean\"],\"minLength\":1}", to);
        break;
    case TR_FIELD_CHOICE:
        choice(f, to);
        return;
    default:
        fputs(f->schema ? f->schema : "{}", to);
        return;
    }
    if (!f->auto_text && !f->words) return;
    bool first = true, booleans = false;
    fputs(",{\"enum\":[", to);
    words(f, &first, &booleans, to);
    fputs(booleans ? ",true,false]}" : "]}", to);
}

/* ---- Maps ------------------------------------------------------------------------------------ */

static void property(const char *key, const tr_field *f, bool open, FILE *to)
{
    tr_schema_text(key, to);
    fputs(":{", to);
    describe(f, to);
    fputs(key == f->was ? "\"deprecated\":true,\"anyOf\":[" : "\"anyOf\":[", to);
    value(f, open, to);
    fputs("]}", to);
}

static void properties(const tr_field *fields, bool open, bool *first, FILE *to)
{
    for (const tr_field *f = fields; f && f->key; f++, *first = false) {
        fputs(*first ? "" : ",\n", to);
        property(f->key, f, open, to);
        if (!f->was) continue;
        fputs(",\n", to);
        property(f->was, f, open, to);
    }
}

static bool any_required(const tr_field *fields)
{
    for (const tr_field *f = fields; f && f->key; f++)
        if (!f->dflt) return true;
    return false;
}

/* The keys without a default. */
static void required(const tr_field *fields, FILE *to)
{
    bool first = true;
    fputs(",\"required\":[", to);
    for (const tr_field *f = fields; f && f->key; f++) {
        if (f->dflt) continue;
        fputs(first ? "" : ",", to);
        tr_schema_text(f->key, to);
        first = false;
    }
    fputc(']', to);
}

void tr_fields_schema(const tr_field *fields, bool open, FILE *to)
{
    bool first = true;
    fputs("{\"type\":\"object\",\"properties\":{", to);
    properties(fields, open, &first, to);
    fprintf(to, "},%s,\"additionalProperties\":false", USERS_OWN);
    required(fields, to);
    fputc('}', to);
}

/* The options of a variant, where its name stands: a map, nothing, or the value of its only
 * field. */
static void variant_options(const tr_variant_def *v, bool open, FILE *to)
{
    bool first = true;
    fputs("{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"object\",\"properties\":{", to);
    properties(v->fields, open, &first, to);
    fprintf(to, "},%s,\"additionalProperties\":false}", USERS_OWN);
    if (tr_fields_count(v->fields) == 1) {
        fputc(',', to);
        value(v->fields, open, to);
    }
    fputs("]}", to);
}

/* A required option stands with the name or beside it. */
static void variant_required(const tr_variant_def *v, FILE *to)
{
    const bool bare = tr_fields_count(v->fields) == 1;
    fputs(",\"allOf\":[", to);
    bool first = true;
    for (const tr_field *f = v->fields; f && f->key; f++) {
        if (f->dflt) continue;
        fprintf(to,
                "%s{\"anyOf\":[{\"required\":[\"%s\"]},{\"properties\":{\"%s\":", first ? "" : ",",
                f->key, v->name);
        first = false;
        if (bare)
            fprintf(to,
                    "{\"anyOf\":[{\"type\":\"object\",\"required\":[\"%s\"]},"
                    "{\"not\":{\"type\":[\"object\",\"null\"]}}]}",
                    f->key);
        else
            fprintf(to, "{\"type\":\"object\",\"required\":[\"%s\"]}", f->key);
        fputs("}}]}", to);
    }
    fputc(']', to);
}

static void variant(const tr_field *f, bool open, FILE *to)
{
    bool first = true;
    fputs("{\"enum\":[", to);
    for (const tr_variant_def *v = f->variants; v->name; v++) {
        if (any_required(v->fields)) continue;
        fputs(first ? "" : ",", to);
        tr_schema_text(v->name, to);
        first = false;
    }
    fputs("]}", to);
    for (const tr_variant_def *v = f->variants; v->name; v++) {
        const bool dflt = f->dflt && strcmp(f->dflt, v->name) == 0;
        fputs(",\n{\"type\":\"object\",\"properties\":{", to);
        tr_schema_text(v->name, to);
        fputs(":{\"description\":", to);
        tr_schema_text(v->doc, to);
        fputs(",\"allOf\":[", to);
        variant_options(v, open, to);
        fputs("]}", to);
        first = false;
        properties(v->fields, open, &first, to);
        fprintf(to, "},%s,\"additionalProperties\":false,\"minProperties\":1", USERS_OWN);
        if (!dflt) fprintf(to, ",\"required\":[\"%s\"]", v->name);
        if (any_required(v->fields)) variant_required(v, to);
        fputc('}', to);
    }
}

/* Alternatives, one behind the other. */
static void value(const tr_field *f, bool open, FILE *to)
{
    switch (f->kind) {
    case TR_FIELD_MAP:
    case TR_FIELD_BLOCK:
        tr_fields_schema(f->fields, open, to);
        if (!any_required(f->fields)) fputs(",{\"type\":\"null\"}", to);
        break;
    case TR_FIELD_VARIANT:
        variant(f, open, to);
        break;
    case TR_FIELD_LIST:
        fputs("{\"type\":\"array\",\"minItems\":1,\"items\":{\"anyOf\":[", to);
        variant(f, open, to);
        fputs("]}}", to);
        break;
    default:
        simple(f, open, to);
        break;
    }
    if (open) fputs(PARAMETER, to);
    if (f->dflt && !*f->dflt && f->kind != TR_FIELD_MAP && f->kind != TR_FIELD_BLOCK)
        fputs(",{\"type\":\"null\"}", to);
}

void tr_config_schema(const tr_variant_def *stages, FILE *to)
{
    tr_config_table table;
    fputs("{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\","
          "\"title\":\"A config of Trireme's trainer\",\"allOf\":[\n",
          to);
    tr_fields_schema(tr_config_fields(stages, &table), false, to);
    /* what a run cannot do without, but has by one of two keys */
    fputs(",\n{\"properties\":{\"model\":{\"oneOf\":[{\"required\":[\"input\"]},{\"required\":["
          "\"inputs\"]}]},"
          "\"train\":{\"anyOf\":[{\"required\":[\"epochs\"]},{\"required\":[\"steps\"]}]}}}],\n"
          "\"$defs\":{\"normalize-one\":",
          to);
    tr_fields_schema(tr_normalize_fields, false, to);
    fputs(",\n\"group\":", to);
    tr_fields_schema(tr_group_fields, false, to);
}
