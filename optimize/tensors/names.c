/* A map of names in both directions. From the file's name to the model's the first rule that
 * matches counts. The other way each rule's right side is matched, in every way that it can be, and
 * what the left side makes of that is the row's name in the file if, read again, it comes back: so
 * an export is what init_from with the same map takes. Of two right sides the more special one
 * counts: "head.*", not "*.*". */
#include "optimize/tensors/names.h"

#include <stdarg.h>
#include <string.h>

#include "runtime/config/patterns.h"

/* The pattern with what its * stand for. false: too long. */
static bool fill(const char *pattern, const tr_capture *caps, char out[TR_ARRAY_NAME])
{
    size_t n = 0;
    for (; *pattern; pattern++) {
        const tr_capture s = *pattern == '*' ? *caps++ : (tr_capture){pattern, 1};
        if (s.n >= TR_ARRAY_NAME - n) return false;
        memcpy(out + n, s.at, s.n);
        n += s.n;
    }
    out[n] = 0;
    return true;
}

tr_status tr_map_fail(const tr_renames *r, const char *fmt, ...)
{
    char text[TR_ERROR_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const char *key = r->map_key[0] ? r->map_key : r->key;
    return tr_node_blame(r->at.map, TR_FAIL(TR_CONFIG, "%s.map: %s", key, text));
}

static tr_status too_long(const tr_renames *r, const char *pattern, const char *name)
{
    return tr_map_fail(r, "\"%s\" makes a name of more than %d bytes of %s", pattern,
                       TR_ARRAY_NAME - 1, name);
}

/* What PyTorch's batch normalization counts, and nothing computes with. */
static bool is_counter(const char *name)
{
    static const char end[] = ".num_batches_tracked";
    const size_t n = strlen(name);
    return n >= sizeof end && strcmp(name + n - (sizeof end - 1), end) == 0;
}

tr_status tr_name_in_model(const tr_renames *r, const char *name, char out[TR_ARRAY_NAME])
{
    tr_capture caps[TR_PATTERN_STARS];
    size_t i = 0;
    while (i < r->nrules && !tr_pattern_match(r->rules[i].from, name, caps)) i++;
    if (i == r->nrules)
        snprintf(out, TR_ARRAY_NAME, "%s", name);
    else if (!fill(r->rules[i].to, caps, out))
        return too_long(r, r->rules[i].to, name);
    if (is_counter(out)) *out = 0;
    return TR_OK;
}

/* ---- From the model to the file -------------------------------------------------------------- */

typedef struct {
    const tr_renames *names;
    const char *row;
    const tr_rename *rule;                            /* whose right side is tried */
    char *out;                                        /* "": none so far */
    char lost[TR_ARRAY_NAME], read_as[TR_ARRAY_NAME]; /* a name that does not come back */
    tr_status st;
} search;

/* What every kind of file and its readers can bear. */
static bool is_plain(const char *name)
{
    for (; *name; name++)
        if ((unsigned char)*name <= ' ' || strchr("\"\\,\x7f", *name)) return false;
    return true;
}

/* One way in which the rule's right side is the row's name; true ends the search. */
static bool try_name(void *arg, const tr_capture *caps)
{
    search *s = arg;
    char name[TR_ARRAY_NAME], back[TR_ARRAY_NAME];
    if (tr_pattern_stars(s->rule->from) != tr_pattern_stars(s->rule->to))
        s->st = tr_map_fail(s->names, "\"%s\": \"%s\" does not say what %s was called",
                            s->rule->from, s->rule->to, s->row);
    else if (!fill(s->rule->from, caps, name))
        s->st = too_long(s->names, s->rule->from, s->row);
    else if (!is_plain(name))
        s->st = tr_map_fail(s->names,
                            "%s would be called \"%s\": expected a name without spaces, commas, "
                            "quotes and backslashes",
                            s->row, name);
    else
        s->st = tr_name_in_model(s->names, name, back);
    if (s->st != TR_OK) return true;
    if (strcmp(back, s->row) != 0) {
        memcpy(s->lost, name, sizeof name);
        memcpy(s->read_as, back, sizeof back);
    } else if (!*s->out) {
        memcpy(s->out, name, sizeof name);
    } else if (strcmp(s->out, name) != 0) {
        s->st = tr_map_fail(s->names, "%s may be %s or %s: expected patterns that say which",
                            s->row, s->out, name);
    }
    return s->st != TR_OK;
}

static bool is_pattern_of(const char *pattern, const char *name)
{
    tr_capture caps[TR_PATTERN_STARS];
    return tr_pattern_match(pattern, name, caps);
}

/* Another rule's right side, too, is the row's name, and a special case of this one's. */
static bool has_special(const tr_renames *r, const tr_rename *rule, const char *row)
{
    for (size_t i = 0; i < r->nrules; i++) {
        const char *to = r->rules[i].to;
        if (is_pattern_of(to, row) && is_pattern_of(rule->to, to) && !is_pattern_of(to, rule->to))
            return true;
    }
    return false;
}

tr_status tr_name_in_file(const tr_renames *r, const char *row, char out[TR_ARRAY_NAME])
{
    tr_status st = TR_OK;
    search s = {.names = r, .row = row, .out = out};
    *out = 0;
    for (size_t i = 0; i < r->nrules; i++) {
        s.rule = &r->rules[i];
        if (!has_special(r, s.rule, row)) tr_pattern_each(s.rule->to, row, try_name, &s);
        TR_TRY(s.st);
    }
    if (!*out && !s.lost[0]) { /* no rule is about it */
        snprintf(s.lost, sizeof s.lost, "%s", row);
        TR_TRY(tr_name_in_model(r, row, s.read_as));
        if (strcmp(s.read_as, row) == 0) snprintf(out, TR_ARRAY_NAME, "%s", row);
    }
    if (!*out)
        st = tr_map_fail(r, "no name becomes %s: %s is %s%s", row, s.lost,
                         s.read_as[0] ? "read as " : "left out", s.read_as);
out:
    return st;
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

static const tr_rename *find(const tr_rename *patterns, size_t count, const char *name)
{
    tr_capture caps[TR_PATTERN_STARS];
    for (size_t i = 0; i < count; i++)
        if (tr_pattern_match(patterns[i].from, name, caps)) return &patterns[i];
    return NULL;
}

bool tr_name_transposed(const tr_renames *r, const char *name, int ndim)
{
    return ndim == 2 && find(r->transposed, r->ntransposed, name);
}

int tr_name_ndim(const tr_renames *r, const char *name, int ndim)
{
    const tr_rename *found = find(r->ranks, r->nranks, name);
    const int wanted = found ? found->to[0] - '0' : 0;
    return wanted > ndim ? wanted : ndim;
}

/* ndim 0: of any number of dimensions. */
static tr_status check_used(const tr_rename *patterns, size_t count, int ndim, const char *key,
                            const tr_node *at, const tr_names *names)
{
    for (size_t i = 0; i < count; i++) {
        size_t k = 0;
        for (int is; k < names->count; k++) {
            const char *name = names->at(names->all, k, &is);
            if ((ndim == 0 || is == ndim) && find(&patterns[i], 1, name)) break;
        }
        if (k == names->count)
            return tr_node_blame(
                at,
                TR_FAIL(TR_CONFIG, "%s: \"%s\": no %s of %s has such a name, as the file has it",
                        key, patterns[i].from, ndim == 2 ? "matrix" : "array", names->what));
    }
    return TR_OK;
}

tr_status tr_names_check(const tr_renames *r, const tr_names *names)
{
    tr_status st;
    char key[64];
    snprintf(key, sizeof key, "%s.transpose", r->key);
    TR_TRY(check_used(r->transposed, r->ntransposed, 2, key, r->at.transpose, names));
    snprintf(key, sizeof key, "%s.ndim", r->key);
    st = check_used(r->ranks, r->nranks, 0, key, r->at.ndim, names);
out:
    return st;
}
