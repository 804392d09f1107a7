/* groupnorm: as PyTorch writes it, InstanceNormalization of the groups between two reshapes, then
 * the parameters. Read are that, InstanceNormalization by itself, and GroupNormalization with
 * parameters a channel (from opset 21 on). */
#include "optimize/onnx/ops/ops.h"

#include "runtime/base/numbers.h"

static const char *row_of(tr_onnx_writer *w, const char *what, int64_t count, float v)
{
    float *all = tr_pool_get(&w->pool, (size_t)count, sizeof *all);
    for (int64_t i = 0; all && i < count; i++) all[i] = v;
    return all ? tr_onnx_floats(w, what, 1, &count, all) : "";
}

/* The row so that it is one value a channel of what is behind the batch. */
static const char *by_channel(tr_onnx_writer *w, const tr_layer *l, int row, const char *what)
{
    const int64_t dims[3] = {l->output.dims[0], 1, 1};
    const char *v = tr_onnx_param(w, row), *made;
    char shape[32];
    if (l->output.ndim == 1) return v;
    snprintf(shape, sizeof shape, "%s_shape", what);
    tr_onnx_add(w, "Reshape", what,
                TR_NAMES(v, tr_onnx_int64s(w, shape, (size_t)l->output.ndim, dims)), NULL, &made);
    return made;
}

static void write_groupnorm(tr_onnx_writer *w, const tr_layer *l, const char *const *in,
                            const char *out)
{
    const tr_groupnorm_attrs *a = l->attrs;
    const int64_t groups[3] = {0, a->groups, -1};
    int64_t whole[TR_MAX_DIMS] = {0};
    for (int i = 0; i < l->output.ndim; i++) whole[1 + i] = l->output.dims[i];
    const char *x =
        tr_onnx_chain(w, "Reshape", "groups", in[0], tr_onnx_int64s(w, "groups_shape", 3, groups));
    const char *y;
    tr_onnx_node *n = tr_onnx_add(
        w, "InstanceNormalization", "normalized",
        TR_NAMES(x, row_of(w, "ones", a->groups, 1), row_of(w, "zeros", a->groups, 0)), NULL, &y);
    tr_onnx_real(w, n, "epsilon", a->eps);
    const char *shape = tr_onnx_int64s(w, "shape", (size_t)l->output.ndim + 1, whole);
    tr_onnx_add(w, "Reshape", a->affine ? "channels" : NULL, TR_NAMES(y, shape),
                a->affine ? NULL : out, &y);
    if (!a->affine) return;
    y = tr_onnx_chain(w, "Mul", "scaled", y, by_channel(w, l, 0, "weights"));
    tr_onnx_add(w, "Add", NULL, TR_NAMES(y, by_channel(w, l, 1, "biases")), out, NULL);
}

static const tr_onnx_layer layers[] = {{.layer = "groupnorm", .write = write_groupnorm}, {0}};

/* ---- Reading --------------------------------------------------------------------------------- */

static bool is_row(const tr_onnx_const *c, int64_t count)
{
    return c && c->f && c->count == (size_t)count;
}

static bool all_are(const tr_onnx_const *c, float v)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->f[i] != v) return false;
    return true;
}

/* `weight` and `bias` NULL: not affine. */
static void make_groupnorm(tr_onnx_reader *r, const tr_onnx_step *s, int from, int named,
                           int64_t groups, double eps, const tr_onnx_const *weight,
                           const tr_onnx_const *bias)
{
    int x, value;
    char text[32];
    if (!tr_onnx_operand_at(r, s, from, &x, NULL)) return;
    const tr_shape of = tr_onnx_shape(r, x);
    if (groups < 1 || of.ndim > 3 || of.dims[0] % groups != 0 ||
        (weight && (!is_row(weight, of.dims[0]) || !is_row(bias, of.dims[0])))) {
        tr_onnx_refuse(r, s, "only groups of channels with constants a channel are a layer");
        return;
    }
    const char *name = tr_onnx_make(
        r, s, "groupnorm", named, 1, &x, &value, "{groups: %lld, eps: %s%s}", (long long)groups,
        tr_format_real(tr_onnx_short(eps), text), weight ? "" : ", affine: false");
    if (!name) return;
    if (weight) {
        tr_onnx_fill_const(r, name, "weight", weight, false);
        tr_onnx_fill_const(r, name, "bias", bias, false);
    }
    tr_onnx_give(r, s, value);
}

static void read_group(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *weight = tr_onnx_const_in(r, s, 1), *bias = tr_onnx_const_in(r, s, 2);
    if (s->nin < 3 || !weight || !bias) {
        tr_onnx_refuse(r, s, "only with constant parameters is it a layer");
        return;
    }
    make_groupnorm(r, s, s->in[0], s->in[1], tr_onnx_get_int(s, "num_groups", 1),
                   tr_onnx_get_real(s, "epsilon", 1e-5f), weight, bias);
}

static void read_instance(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_const *weight = tr_onnx_const_in(r, s, 1), *bias = tr_onnx_const_in(r, s, 2);
    int x;
    if (!tr_onnx_operand(r, s, 0, &x, NULL)) return;
    if (!weight || !bias) {
        tr_onnx_refuse(r, s, "only with constant parameters is it a layer");
        return;
    }
    make_groupnorm(r, s, s->in[0], s->in[1], tr_onnx_shape(r, x).dims[0],
                   tr_onnx_get_real(s, "epsilon", 1e-5f), weight, bias);
}

/* The step that normalizes what the value is a reshape of, as groups of another: *x. NULL: none. */
static const tr_onnx_step *grouped(const tr_onnx_reader *r, int value, int *x)
{
    const tr_onnx_step *back = tr_onnx_made_by(r, value, "Reshape");
    const tr_onnx_step *norm =
        back ? tr_onnx_made_by(r, back->in[0], "InstanceNormalization") : NULL;
    const tr_onnx_step *there = norm ? tr_onnx_made_by(r, norm->in[0], "Reshape") : NULL;
    if (!there) return NULL;
    int64_t to[4];
    const tr_onnx_const *weight = tr_onnx_const_in(r, norm, 1),
                        *bias = tr_onnx_const_in(r, norm, 2);
    if (tr_onnx_numbers(r, there, 1, "shape", 4, to) != 3 || to[2] != -1 || !weight || !bias ||
        !is_row(weight, to[1]) || !is_row(bias, to[1]) || !all_are(weight, 1) || !all_are(bias, 0))
        return NULL;
    *x = there->in[0];
    return norm;
}

/* The constant that the value is, or is a reshape of; -1. */
static int constant_of(const tr_onnx_reader *r, int value)
{
    const tr_onnx_step *s = tr_onnx_shared_by(r, value, "Reshape");
    const int at = s ? s->in[0] : value;
    return tr_onnx_const_at(r, at) ? at : -1;
}

/* Add(Mul(reshaped, weight), bias): operands x, weight, bias. */
static const tr_onnx_step *affine_of(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[])
{
    for (int i = 0; i < 4 && s->nin == 2; i++) {
        const tr_onnx_step *scaled = tr_onnx_made_by(r, s->in[i & 1], "Mul");
        if (!scaled || scaled->nin != 2) continue;
        const tr_onnx_step *norm = grouped(r, scaled->in[i >> 1], &operands[0]);
        operands[1] = constant_of(r, scaled->in[1 - (i >> 1)]);
        operands[2] = constant_of(r, s->in[1 - (i & 1)]);
        if (norm && operands[1] >= 0 && operands[2] >= 0) return norm;
    }
    return NULL;
}

static bool match_affine(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    *n = 3;
    return affine_of(r, s, operands) != NULL;
}

static void read_affine(tr_onnx_reader *r, const tr_onnx_step *s)
{
    int operands[3];
    const tr_onnx_step *norm = affine_of(r, s, operands);
    const tr_onnx_const *ones = tr_onnx_const_in(r, norm, 1);
    make_groupnorm(r, s, operands[0], operands[1], (int64_t)ones->count,
                   tr_onnx_get_real(norm, "epsilon", 1e-5f), tr_onnx_const_at(r, operands[1]),
                   tr_onnx_const_at(r, operands[2]));
}

static bool match_plain(const tr_onnx_reader *r, const tr_onnx_step *s, int operands[], int *n)
{
    *n = 1;
    return s->nout == 1 && grouped(r, s->out[0], &operands[0]) != NULL;
}

static void read_plain(tr_onnx_reader *r, const tr_onnx_step *s)
{
    const tr_onnx_step *norm = tr_onnx_made_by(r, s->in[0], "InstanceNormalization");
    make_groupnorm(r, s, s->operands[0], -1, (int64_t)tr_onnx_const_in(r, norm, 1)->count,
                   tr_onnx_get_real(norm, "epsilon", 1e-5f), NULL, NULL);
}

static const tr_onnx_operator operators[] = {
    {"GroupNormalization", read_group}, {"InstanceNormalization", read_instance}, {NULL, NULL}};

static const tr_onnx_pattern patterns[] = {
    {"Add", match_affine, read_affine, false}, {"Reshape", match_plain, read_plain, false}, {0}};

const tr_onnx_family tr_onnx_groups = {
    .layers = layers, .operators = operators, .patterns = patterns};
