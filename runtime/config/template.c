/* Trees with parameters. Texts that hold a `$` are replaced while a tree is copied:
 *
 *     $out            the parameter's node, a map or a list, too
 *     ($in + 2) * 4   a number: + - * / // % and brackets, by C's precedence
 *     layer${n}       the parameter's text within another
 *
 * A map with a key `params` (a list of names, or a map) has these to itself: they are left as they
 * are within it. */
#include <math.h>
#include <string.h>

#include "runtime/base/numbers.h"
#include "runtime/config/internal.h"

enum { NODES = 1 << 22, DEEP = 32 };

struct tr_template {
    tr_arena *arena;
    size_t budget; /* nodes that may still be made */
};

/* The names of the maps around that have parameters of their own. */
typedef struct hidden {
    const struct hidden *outer;
    const tr_node *params;
} hidden;

typedef struct {
    tr_template *t;
    const tr_parameter *bound;
    size_t count;
} binder;

tr_status tr_template_open(tr_template **out)
{
    tr_template *t = TR_NEW(TR_MEM_OTHER, tr_template);
    if (!t || !(t->arena = tr_arena_open())) {
        tr_free(t);
        return tr_last_status();
    }
    t->budget = NODES;
    *out = t;
    return TR_OK;
}

void tr_template_close(tr_template *t)
{
    if (!t) return;
    tr_arena_close(t->arena);
    tr_free(t);
}

/* ---- Names ----------------------------------------------------------------------------------- */

static size_t name_length(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
    static const char more[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    return *text && strchr(letters, *text) ? strspn(text, more) : 0;
}

bool tr_parameter_valid(const char *name)
{
    const size_t n = name_length(name);
    return n > 0 && n < TR_PARAMETER && !name[n];
}

static bool is(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && memcmp(name, text, length) == 0;
}

static bool own(const tr_node *params, const char *text, size_t length)
{
    for (size_t i = 0; i < params->count; i++) {
        const tr_node *name = params->keys ? params->keys[i] : params->values[i];
        if (name->kind == TR_NODE_SCALAR && is(name->text, text, length)) return true;
    }
    return false;
}

/* The parameter named at `text`; *value NULL: one of a map around, which is left as it is. */
static tr_status lookup(const binder *b, const hidden *h, const tr_node *at, const char *text,
                        size_t length, const tr_node **value)
{
    *value = NULL;
    for (; h; h = h->outer)
        if (own(h->params, text, length)) return TR_OK;
    for (size_t i = b->count; i-- > 0;) {
        if (!is(b->bound[i].name, text, length)) continue;
        *value = b->bound[i].value;
        return TR_OK;
    }
    const char *names[TR_PARAMETERS], *near = NULL;
    char word[TR_PARAMETER];
    size_t n = 0;
    for (; n < b->count && n < TR_COUNT(names); n++) names[n] = b->bound[n].name;
    snprintf(word, sizeof word, "%.*s", (int)length, text);
    if (n) near = tr_nearest(word, names, n);
    return tr_node_fail(at, "there is no parameter \"%s\" here%s%s%s", word,
                        near ? ": did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

/* ---- Numbers --------------------------------------------------------------------------------- */

typedef struct {
    bool real;
    int64_t i;
    double r; /* of a whole number, too */
} number;

typedef struct {
    const binder *b;
    const hidden *h;
    const tr_node *at;
    const char *p;
    int depth;
    bool left; /* it names a parameter of a map around: nothing is computed */
} expression;

static tr_status sum(expression *e, number *out);

static tr_status wrong(const expression *e, const char *why)
{
    char show[TR_SHOW];
    return tr_node_fail(e->at, "%s: %s", tr_text_show(e->at->text, show), why);
}

static void skip(expression *e)
{
    e->p += strspn(e->p, " \t\n");
}

static tr_status number_of(const expression *e, const char *text, number *out)
{
    *out = (number){0};
    const tr_number whole = tr_parse_int(text, &out->i);
    if (whole == TR_NUMBER_RANGE) return wrong(e, "the number is too large");
    if (whole == TR_NUMBER_OK) {
        out->r = (double)out->i;
        return TR_OK;
    }
    out->real = true;
    char show[TR_SHOW], why[TR_SHOW + 32];
    if (tr_parse_real(text, &out->r) == TR_NUMBER_OK) return TR_OK;
    snprintf(why, sizeof why, "%s is no number", tr_text_show(text, show));
    return wrong(e, why);
}

static tr_status parameter(expression *e, number *out)
{
    const tr_node *value;
    const size_t n = name_length(++e->p);
    if (!n) return wrong(e, "a parameter's name comes after $");
    tr_status st = lookup(e->b, e->h, e->at, e->p, n, &value);
    if (st != TR_OK) return st;
    e->p += n;
    *out = (number){.i = 1, .r = 1};
    if (!value) {
        e->left = true;
        return TR_OK;
    }
    if (value->kind != TR_NODE_SCALAR)
        return wrong(e, value->kind == TR_NODE_MAP ? "a map is no number" : "a list is no number");
    return number_of(e, value->text, out);
}

static tr_status factor(expression *e, number *out)
{
    tr_status st = TR_OK;
    skip(e);
    if (*e->p == '$') return parameter(e, out);
    if (*e->p == '-' || *e->p == '(') {
        const bool minus = *e->p++ == '-';
        if (++e->depth > DEEP) return wrong(e, "it is nested too deep");
        TR_TRY(minus ? factor(e, out) : sum(e, out));
        e->depth--;
        if (minus) {
            out->r = -out->r;
            if (!out->real && __builtin_sub_overflow((int64_t)0, out->i, &out->i))
                return wrong(e, "the number is too large");
            return TR_OK;
        }
        skip(e);
        return *e->p++ == ')' ? TR_OK : wrong(e, "a ) is missing");
    }
    char text[48];
    static const char digits[] = "0123456789";
    size_t n = strspn(e->p, "0123456789.");
    if (n && (e->p[n] == 'e' || e->p[n] == 'E')) {
        const size_t sign = e->p[n + 1] == '-' || e->p[n + 1] == '+';
        n += 1 + sign + strspn(e->p + n + 1 + sign, digits);
    }
    if (!n || n >= sizeof text) return wrong(e, "a number or a parameter was expected");
    snprintf(text, sizeof text, "%.*s", (int)n, e->p);
    e->p += n;
    st = number_of(e, text, out);
out:
    return st;
}

static tr_status divide(expression *e, char op, number *a, const number *b)
{
    if (b->r == 0) return e->left ? TR_OK : wrong(e, "it divides by 0");
    if (a->real || b->real) {
        a->real = true;
        a->r = op == '/'   ? a->r / b->r
               : op == 'f' ? floor(a->r / b->r)
                           : a->r - b->r * floor(a->r / b->r);
        return TR_OK;
    }
    if (a->i == INT64_MIN && b->i == -1) return wrong(e, "the number is too large");
    int64_t q = a->i / b->i, rest = a->i % b->i;
    if (op == '/' && rest && !e->left)
        return wrong(e, "the division leaves a remainder (// rounds down)");
    if (rest && (rest < 0) != (b->i < 0)) q--, rest += b->i;
    a->i = op == '%' ? rest : q;
    a->r = (double)a->i;
    return TR_OK;
}

static tr_status product(expression *e, number *out)
{
    tr_status st = TR_OK;
    TR_TRY(factor(e, out));
    for (;;) {
        number b;
        skip(e);
        char op = *e->p;
        if (op != '*' && op != '/' && op != '%') return TR_OK;
        e->p++;
        if (op == '/' && *e->p == '/') e->p++, op = 'f';
        TR_TRY(factor(e, &b));
        if (op != '*') {
            TR_TRY(divide(e, op, out, &b));
            continue;
        }
        out->r *= b.r;
        out->real |= b.real;
        if (!out->real && __builtin_mul_overflow(out->i, b.i, &out->i))
            return wrong(e, "the number is too large");
    }
out:
    return st;
}

static tr_status sum(expression *e, number *out)
{
    tr_status st = TR_OK;
    TR_TRY(product(e, out));
    for (;;) {
        number b;
        skip(e);
        if (*e->p != '+' && *e->p != '-') return TR_OK;
        const bool minus = *e->p++ == '-';
        TR_TRY(product(e, &b));
        out->r += minus ? -b.r : b.r;
        out->real |= b.real;
        if (!out->real && (minus ? __builtin_sub_overflow(out->i, b.i, &out->i)
                                 : __builtin_add_overflow(out->i, b.i, &out->i)))
            return wrong(e, "the number is too large");
    }
out:
    return st;
}

/* An expression that waits for parameters of a map around: those that are known take their places
 * in it. */
static tr_status compute_later(const binder *b, const hidden *h, const tr_node *from, tr_node **out)
{
    char text[1024] = "";
    for (const char *p = from->text; *p;) {
        const tr_node *value = NULL;
        const size_t n = *p == '$' ? name_length(p + 1) : 0;
        if (n) {
            tr_status st = lookup(b, h, from, p + 1, n, &value);
            if (st != TR_OK) return st;
        }
        if (value)
            tr_text_append(text, sizeof text, "(%s)", value->text);
        else
            tr_text_append(text, sizeof text, "%.*s", (int)n + 1, p);
        p += n + 1;
    }
    if (strlen(text) + 1 >= sizeof text) return tr_node_fail(from, "the text is too long");
    *out = tr_node_scalar(b->t->arena, (tr_place){from->source, from->line, from->column}, text,
                          strlen(text), from->quoted);
    return *out ? TR_OK : tr_last_status();
}

static tr_status compute(const binder *b, const hidden *h, const tr_node *from, tr_node **out)
{
    tr_status st = TR_OK;
    expression e = {.b = b, .h = h, .at = from, .p = from->text};
    number v;
    char text[32];
    const tr_place at = {from->source, from->line, from->column};
    TR_TRY(sum(&e, &v));
    if (*e.p) return wrong(&e, "an operator was expected: + - * / // %");
    if (!e.left && !isfinite(v.r)) return wrong(&e, "the number is too large");
    if (e.left) return compute_later(b, h, from, out);
    if (v.real)
        *out = tr_node_scalar(b->t->arena, at, text, strlen(tr_format_real(v.r, text)), false);
    else
        *out = tr_node_scalar(b->t->arena, at, text,
                              (size_t)snprintf(text, sizeof text, "%lld", (long long)v.i), false);
    if (!*out) st = tr_last_status();
out:
    return st;
}

/* ---- Texts ----------------------------------------------------------------------------------- */

static tr_status interpolate(const binder *b, const hidden *h, const tr_node *from, tr_node **out)
{
    char text[1024] = "", show[TR_SHOW];
    for (const char *p = from->text; *p;) {
        if (p[0] != '$' || p[1] != '{') {
            tr_text_append(text, sizeof text, "%c", *p++);
            continue;
        }
        const tr_node *value;
        const size_t n = name_length(p + 2);
        if (!n || p[2 + n] != '}')
            return tr_node_fail(from, "%s: a parameter's name and } come after ${",
                                tr_text_show(from->text, show));
        tr_status st = lookup(b, h, from, p + 2, n, &value);
        if (st != TR_OK) return st;
        if (value && value->kind != TR_NODE_SCALAR)
            return tr_node_fail(from, "%s: the parameter is no text, but %s",
                                tr_text_show(from->text, show),
                                value->kind == TR_NODE_MAP ? "a map" : "a list");
        if (value)
            tr_text_append(text, sizeof text, "%s", value->text);
        else
            tr_text_append(text, sizeof text, "%.*s", (int)n + 3, p);
        p += n + 3;
    }
    if (strlen(text) + 1 >= sizeof text) return tr_node_fail(from, "the text is too long");
    *out = tr_node_scalar(b->t->arena, (tr_place){from->source, from->line, from->column}, text,
                          strlen(text), from->quoted);
    return *out ? TR_OK : tr_last_status();
}

/* ---- Trees ----------------------------------------------------------------------------------- */

static tr_status bind(const binder *b, const hidden *h, const tr_node *from, tr_node **out);

static tr_status bind_scalar(const binder *b, const hidden *h, const tr_node *from, tr_node **out)
{
    tr_status st = TR_OK;
    const tr_place at = {from->source, from->line, from->column};
    const char *text = from->text;
    if (strstr(text, "${")) return interpolate(b, h, from, out);
    if (text[0] == '$' && name_length(text + 1) == strlen(text) - 1 && text[1]) {
        const tr_node *value;
        TR_TRY(lookup(b, h, from, text + 1, strlen(text) - 1, &value));
        if (value) return tr_node_copy(b->t->arena, value, at, &b->t->budget, out);
    } else if (strchr(text, '$')) {
        return compute(b, h, from, out);
    }
    *out = tr_node_scalar(b->t->arena, at, text, strlen(text), from->quoted);
    if (!*out) st = tr_last_status();
out:
    return st;
}

static tr_status bind_children(const binder *b, const hidden *h, const tr_node *from, tr_node *to)
{
    tr_status st = TR_OK;
    const tr_node *params = tr_node_get(from, "params");
    const hidden with = {.outer = h, .params = params};
    for (size_t i = 0; i < from->count; i++) {
        tr_node *key = NULL, *value = NULL;
        size_t one = 1; /* keys are names, which hold no parameters */
        if (from->keys) TR_TRY(tr_node_copy(b->t->arena, from->keys[i], (tr_place){0}, &one, &key));
        /* what its own parameters are is said with those around */
        const bool inner = params && strcmp(from->keys[i]->text, "layers") == 0;
        TR_TRY(bind(b, inner ? &with : h, from->values[i], &value));
        TR_TRY(tr_node_add(b->t->arena, to, key, value));
    }
out:
    return st;
}

static tr_status bind(const binder *b, const hidden *h, const tr_node *from, tr_node **out)
{
    if (b->t->budget == 0)
        return tr_node_fail(from, "parameters expand to more than %d nodes", NODES);
    b->t->budget--;
    if (from->kind == TR_NODE_SCALAR) return bind_scalar(b, h, from, out);
    tr_node *n =
        tr_node_new(b->t->arena, from->kind, (tr_place){from->source, from->line, from->column});
    if (!n) return tr_last_status();
    *out = n;
    return bind_children(b, h, from, n);
}

tr_status tr_template_bind(tr_template *t, const tr_node *from, const tr_parameter *bound,
                           size_t count, const tr_node **out)
{
    const binder b = {.t = t, .bound = bound, .count = count};
    tr_node *made = NULL;
    tr_status st = bind(&b, NULL, from, &made);
    if (st == TR_OK) *out = made;
    return st;
}
