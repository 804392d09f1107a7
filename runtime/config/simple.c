/* One field, one value: strict reading of scalars and lists of them, and the sentence that says
 * what stands there and what was expected. */
#include "runtime/config/internal.h"

#include <math.h>
#include <string.h>

#include "runtime/base/numbers.h"

/* ---- What was expected ----------------------------------------------------------------------- */

void tr_text_append(char *buf, size_t size, const char *fmt, ...)
{
    size_t used = strlen(buf);
    va_list args;
    va_start(args, fmt);
    vsnprintf(buf + used, size - used, fmt, args);
    va_end(args);
}

static void expect_range(const tr_field *f, bool integer, char *buf, size_t size)
{
    char low[32], high[32];
    if (f->min == f->max) return;
    if (integer) {
        snprintf(low, sizeof low, "%.0f", f->min);
        snprintf(high, sizeof high, "%.0f", f->max);
    } else {
        tr_format_real(f->min, low);
        tr_format_real(f->max, high);
    }
    if (f->max >= 9.2e18 && integer)
        tr_text_append(buf, size, " from %s to %lld", low, (long long)INT64_MAX);
    else if (f->max >= 9.2e18)
        tr_text_append(buf, size, " of at least %s", low);
    else
        tr_text_append(buf, size, " from %s to %s", low, high);
}

const char *tr_field_expected(const tr_field *f, char *buf, size_t size)
{
    *buf = 0;
    switch (f->kind) {
    case TR_FIELD_INT:
        tr_text_append(buf, size, "an integer");
        break;
    case TR_FIELD_REAL:
        tr_text_append(buf, size, "a number");
        break;
    case TR_FIELD_INTS:
        tr_text_append(buf, size, "up to %d integers", TR_LIST_MAX);
        break;
    case TR_FIELD_REALS:
        tr_text_append(buf, size, "up to %d numbers", TR_REALS_MAX);
        break;
    case TR_FIELD_SPAN:
        tr_text_append(buf, size, "a number of %s, N steps, N epochs, or N%%", f->unit);
        break;
    case TR_FIELD_SPANS:
        tr_text_append(buf, size, "up to %d of: a number of %s, N steps, N epochs, N%%",
                       TR_LIST_MAX, f->unit);
        break;
    case TR_FIELD_BOOL:
        tr_text_append(buf, size, "true or false");
        break;
    case TR_FIELD_STRING:
        tr_text_append(buf, size, "a text");
        break;
    case TR_FIELD_NODE:
        tr_text_append(buf, size, "a value");
        break;
    case TR_FIELD_MAP:
    case TR_FIELD_BLOCK:
        tr_text_append(buf, size, "a map of keys");
        break;
    case TR_FIELD_CHOICE:
        tr_text_append(buf, size, "one of");
        for (const char *const *c = f->choices; *c; c++)
            tr_text_append(buf, size, "%s %s", c == f->choices ? "" : ",", *c);
        break;
    case TR_FIELD_LIST:
    case TR_FIELD_VARIANT:
        tr_text_append(buf, size, f->kind == TR_FIELD_LIST ? "a list of" : "one of");
        for (const tr_variant_def *v = f->variants; v->name; v++)
            tr_text_append(buf, size, "%s %s", v == f->variants ? "" : ",", v->name);
        break;
    }
    if (f->kind == TR_FIELD_INT || f->kind == TR_FIELD_INTS) expect_range(f, true, buf, size);
    if (f->kind == TR_FIELD_REAL || f->kind == TR_FIELD_REALS) expect_range(f, false, buf, size);
    if (f->auto_text) tr_text_append(buf, size, ", or %s", f->auto_text);
    for (const tr_field_word *w = f->words; w && w->text; w++)
        tr_text_append(buf, size, ", or %s", w->text);
    return buf;
}

tr_status tr_field_unexpected(const tr_field *f, const tr_node *n, const char *path)
{
    char show[TR_SHOW], want[256];
    const char *near = NULL, *names[64];
    size_t count = 0;
    for (const char *const *c = f->choices; c && *c && count < TR_COUNT(names); c++)
        names[count++] = *c;
    for (const tr_variant_def *v = f->variants; v && v->name && count < TR_COUNT(names); v++)
        names[count++] = v->name;
    if (n->kind == TR_NODE_SCALAR && count) near = tr_nearest(n->text, names, count);
    const bool list = near && f->kind == TR_FIELD_LIST; /* of one, which lacks its brackets */
    bool text = n->kind == TR_NODE_SCALAR && n->quoted && !count;
    return tr_node_fail(n, "%s: found %s%s, expected %s%s%s%s", path,
                        text ? "the quoted text " : "", tr_node_show(n, show),
                        tr_field_expected(f, want, sizeof want),
                        list   ? "; did you mean ["
                        : near ? "; did you mean \""
                               : "",
                        near ? near : "",
                        list   ? "]?"
                        : near ? "\"?"
                               : "");
}

int tr_span_default(const tr_field *f)
{
    return strcmp(f->unit, "epochs") == 0 ? TR_SPAN_EPOCHS : TR_SPAN_STEPS;
}

uint64_t tr_span_steps(tr_span s, uint64_t total, uint64_t steps_per_epoch)
{
    switch ((tr_span_unit)s.unit) {
    case TR_SPAN_EPOCHS:
        return (uint64_t)llround(s.value * (double)steps_per_epoch);
    case TR_SPAN_PERCENT:
        return (uint64_t)llround(s.value * (double)total / 100);
    case TR_SPAN_STEPS:
        break;
    }
    return (uint64_t)s.value;
}

/* ---- Single values --------------------------------------------------------------------------- */

/* A number, but none that is in range, where what is expected does not say the range: no limit is
 * the field's own, but that of what holds it. */
static tr_status out_of_range(const tr_field *f, const tr_node *n, const char *path, bool integer)
{
    char show[TR_SHOW], low[32];
    const bool lowest = f->min == f->max;
    const char * or = f->auto_text ? ", or " : "", *word = f->auto_text ? f->auto_text : "";
    if (!lowest && f->max < 9.2e18) return tr_field_unexpected(f, n, path);
    if (integer) {
        snprintf(low, sizeof low, "%.0f", f->min);
        return tr_node_fail(n,
                            "%s: found %s, out of range: expected an integer from %s to %lld%s%s",
                            path, tr_node_show(n, show), lowest ? "-9223372036854775808" : low,
                            (long long)INT64_MAX, or, word);
    }
    tr_format_real(f->min, low);
    return tr_node_fail(n, "%s: found %s, out of range: expected a number from %s to 1.8e308%s%s",
                        path, tr_node_show(n, show), lowest ? "-1.8e308" : low, or, word);
}

static bool find_word(const tr_field *f, const tr_node *n, double *out)
{
    if (n->kind != TR_NODE_SCALAR) return false;
    if (f->auto_text && strcmp(n->text, f->auto_text) == 0) {
        *out = f->auto_value;
        return true;
    }
    for (const tr_field_word *w = f->words; w && w->text; w++) {
        if (strcmp(n->text, w->text) != 0) continue;
        *out = w->value;
        return true;
    }
    return false;
}

static bool in_range(const tr_field *f, double v)
{
    return f->min == f->max || (v >= f->min && v <= f->max);
}

static tr_status read_int(const tr_field *f, const tr_node *n, const char *path, int64_t *out)
{
    double word;
    if (find_word(f, n, &word)) {
        *out = (int64_t)word;
        return TR_OK;
    }
    if (n->kind != TR_NODE_SCALAR || n->quoted) return tr_field_unexpected(f, n, path);
    double real = 0;
    const tr_number is = tr_parse_int(n->text, out), as_real = tr_parse_real(n->text, &real);
    if (is == TR_NUMBER_OK && in_range(f, (double)*out)) return TR_OK;
    const bool large = is == TR_NUMBER_RANGE || as_real == TR_NUMBER_RANGE || fabs(real) >= 0x1p63;
    return large ? out_of_range(f, n, path, true) : tr_field_unexpected(f, n, path);
}

static tr_status read_real(const tr_field *f, const tr_node *n, const char *path, double *out)
{
    if (find_word(f, n, out)) return TR_OK;
    if (n->kind != TR_NODE_SCALAR || n->quoted) return tr_field_unexpected(f, n, path);
    const tr_number is = tr_parse_real(n->text, out);
    if (is == TR_NUMBER_OK && in_range(f, *out)) return TR_OK;
    return is == TR_NUMBER_RANGE ? out_of_range(f, n, path, false)
                                 : tr_field_unexpected(f, n, path);
}

/* A number with what it counts; plain: the field's unit. */
static tr_status read_span(const tr_field *f, const tr_node *n, const char *path, tr_span *out)
{
    static const struct {
        const char *text;
        int unit;
    } units[] = {{"%", TR_SPAN_PERCENT},  {" step", TR_SPAN_STEPS},   {" steps", TR_SPAN_STEPS},
                 {" %", TR_SPAN_PERCENT}, {" epoch", TR_SPAN_EPOCHS}, {" epochs", TR_SPAN_EPOCHS}};
    char number[32];
    if (n->kind != TR_NODE_SCALAR) return tr_field_unexpected(f, n, path);
    const size_t digits = strcspn(n->text, " %");
    const char *rest = n->text + digits;
    bool known = !*rest && !n->quoted;
    out->unit = tr_span_default(f);
    for (size_t i = 0; i < TR_COUNT(units) && *rest; i++)
        if (strcmp(rest, units[i].text) == 0) {
            out->unit = units[i].unit;
            known = true;
        }
    snprintf(number, sizeof number, "%.*s", (int)digits, n->text);
    if (!known || digits >= sizeof number || tr_parse_real(number, &out->value) != TR_NUMBER_OK)
        return tr_field_unexpected(f, n, path);
    const double most = out->unit == TR_SPAN_PERCENT ? 100 : 1e12;
    const bool whole = out->unit != TR_SPAN_STEPS || out->value == floor(out->value);
    const double least = *rest ? (f->min > 0 ? 1e-9 : 0) : f->min;
    return whole && out->value >= least && out->value <= most ? TR_OK
                                                              : tr_field_unexpected(f, n, path);
}

static tr_status read_bool(const tr_field *f, const tr_node *n, const char *path, bool *out)
{
    bool yes = n->kind == TR_NODE_SCALAR && strcmp(n->text, "true") == 0;
    bool no = n->kind == TR_NODE_SCALAR && strcmp(n->text, "false") == 0;
    if ((!yes && !no) || n->quoted) return tr_field_unexpected(f, n, path);
    *out = yes;
    return TR_OK;
}

static tr_status read_string(const tr_field *f, const tr_node *n, const char *path, char **out)
{
    if (n->kind != TR_NODE_SCALAR || !*n->text || tr_node_empty(n))
        return tr_field_unexpected(f, n, path);
    *out = tr_strdup(n->text);
    return *out ? TR_OK : tr_last_status();
}

static tr_status read_choice(const tr_field *f, const tr_node *n, const char *path, int *out)
{
    double word;
    if (find_word(f, n, &word)) {
        *out = (int)word;
        return TR_OK;
    }
    for (int i = 0; n->kind == TR_NODE_SCALAR && f->choices[i]; i++) {
        if (strcmp(n->text, f->choices[i]) != 0) continue;
        *out = i;
        return TR_OK;
    }
    return tr_field_unexpected(f, n, path);
}

static tr_status read_list(const tr_field *f, const tr_node *n, const char *path, void *out)
{
    tr_status st = TR_OK;
    tr_node *one = (tr_node *)n;
    bool list = n->kind == TR_NODE_LIST, ints = f->kind == TR_FIELD_INTS;
    size_t count = list ? n->count : 1;
    tr_node **items = list ? n->values : &one;
    if (count == 0 || count > (f->kind == TR_FIELD_REALS ? TR_REALS_MAX : TR_LIST_MAX))
        return tr_field_unexpected(f, n, path);
    if (f->kind == TR_FIELD_SPANS) {
        tr_spans *to = out;
        for (size_t i = 0; i < count; i++) TR_TRY(read_span(f, items[i], path, &to->v[i]));
        to->count = count;
    } else if (ints) {
        tr_ints *to = out;
        for (size_t i = 0; i < count; i++) TR_TRY(read_int(f, items[i], path, &to->v[i]));
        to->count = count;
    } else {
        tr_reals *to = out;
        to->v = tr_alloc(TR_MEM_OTHER, count, sizeof(double));
        if (!to->v) return tr_last_status();
        for (size_t i = 0; i < count; i++) TR_TRY(read_real(f, items[i], path, &to->v[i]));
        to->count = count;
    }
out:
    return st;
}

tr_status tr_field_read_simple(const tr_field *f, const tr_node *n, const char *path, void *to)
{
    switch (f->kind) {
    case TR_FIELD_INT:
        return read_int(f, n, path, to);
    case TR_FIELD_REAL:
        return read_real(f, n, path, to);
    case TR_FIELD_BOOL:
        return read_bool(f, n, path, to);
    case TR_FIELD_STRING:
        return read_string(f, n, path, to);
    case TR_FIELD_CHOICE:
        return read_choice(f, n, path, to);
    case TR_FIELD_SPAN:
        return read_span(f, n, path, to);
    case TR_FIELD_INTS:
    case TR_FIELD_REALS:
    case TR_FIELD_SPANS:
        return read_list(f, n, path, to);
    case TR_FIELD_NODE:
        *(const tr_node **)to = n;
        return TR_OK;
    default:
        return TR_FAIL(TR_INTERNAL, "field %s is not a simple one", path);
    }
}
