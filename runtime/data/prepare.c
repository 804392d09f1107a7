/* From a raw sample to what the first kernel reads: ids as int32, each checked, or float32, (x -
 * mean) / std by channel, for training a random crop from zero padding and a horizontal flip,
 * stored channels-last, in the graph's type. The padding is zero in the file's terms, as with
 * torchvision's RandomCrop before Normalize. What chance decides is keyed by the sample's ordinal:
 * the same on any rank and thread, and after a resume. */
#include "runtime/data/change.h"
#include "runtime/data/mix.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static bool is_image(const tr_input *in)
{
    return in->layout == TR_LAYOUT_CHANNELS_LAST;
}

const tr_normalize_config *tr_normalize_of(const tr_config *c, const tr_input *in)
{
    for (size_t i = 0; i < c->data.normalize.count; i++) {
        const tr_normalize_config *n = &c->data.normalize.inputs[i];
        if (n->input ? strcmp(n->input, in->name) == 0 : in->ids == 0) return n;
    }
    return NULL;
}

#define NORMALIZE_KEY (TR_NAME + 32)

/* "data.normalize.photo.mean", "data.normalize.mean"; value NULL: of the map with both. */
static const char *normalize_key(const tr_normalize_config *n, const char *value,
                                 char key[NORMALIZE_KEY])
{
    snprintf(key, NORMALIZE_KEY, "data.normalize%s%s%s%s", n->input ? "." : "",
             n->input ? n->input : "", value ? "." : "", value ? value : "");
    return key;
}

/* Is it clear what data.normalize means? */
static tr_status check_normalize(const tr_config *c, const tr_model *m)
{
    const tr_input *image = NULL, *other = NULL;
    char key[NORMALIZE_KEY];
    tr_status st = TR_OK;
    for (size_t k = 0; k < m->ninputs; k++) {
        const tr_input *in = &m->inputs[k];
        const tr_normalize_config *n = tr_normalize_of(c, in);
        TR_REQUIRE(in->ids == 0 || !n, normalize_key(n, NULL, key),
                   "the input \"%s\" holds ids, which embeddings look up", in->name);
        if (in->ids > 0) continue;
        if (is_image(in))
            image = in;
        else
            other = in;
    }
    const bool one = c->data.normalize.count > 0 && !c->data.normalize.inputs[0].input;
    TR_REQUIRE(image || other || (!one && !c->data.normalize.automatic), "data.normalize",
               "all inputs of the model are ids, which embeddings look up");
    TR_REQUIRE(!one || !image || !other, "data.normalize",
               "\"%s\" is an image, \"%s\" is not: say which one is meant, "
               "{%s: {mean: ..., std: ...}}, or both",
               image->name, other->name, image->name);
out:
    return st;
}

static tr_status take_stats(const tr_config *c, const tr_normalize_config *n, const tr_input *in,
                            tr_prepare *p, int k)
{
    const tr_reals *mean = &n->mean, *std = &n->std;
    char key[NORMALIZE_KEY];
    const int64_t places = is_image(in) ? in->dims[0] : in->ndim > 0 ? in->dims[in->ndim - 1] : 1;
    size_t most = mean->count > std->count ? mean->count : std->count;
    tr_status st = TR_OK;
    p->in[k].nstats = most > 1 ? most : 1;
    p->in[k].mean = tr_alloc(TR_MEM_OTHER, p->in[k].nstats, sizeof(double));
    p->in[k].std = tr_alloc(TR_MEM_OTHER, p->in[k].nstats, sizeof(float));
    TR_HAVE(p->in[k].mean && p->in[k].std);
    for (int which = 0; which < 2; which++) {
        const tr_reals *r = which ? std : mean;
        TR_REQUIRE(r->count <= 1 || r->count == (size_t)places,
                   normalize_key(n, which ? "std" : "mean", key),
                   "%zu values, expected 1 or one for each of the %" PRId64
                   " %s of the model's input \"%s\"",
                   r->count, places, is_image(in) ? "channels" : "features", in->name);
    }
    for (size_t i = 0; i < p->in[k].nstats; i++) {
        p->in[k].mean[i] = mean->count ? mean->v[mean->count > 1 ? i : 0] : 0;
        p->in[k].std[i] = std->count ? (float)std->v[std->count > 1 ? i : 0] : 1.0f;
        TR_REQUIRE(isfinite((float)p->in[k].mean[i]) && isfinite(p->in[k].std[i]) &&
                       p->in[k].std[i] > 0.0f,
                   normalize_key(n, NULL, key),
                   "mean %g, std %g, expected finite numbers and a positive std", p->in[k].mean[i],
                   (double)p->in[k].std[i]);
    }
out:
    return st;
}

/* What moves an image's pixels would part it from a target that is an image, too. */
static tr_status check_places(const tr_config *c, const tr_model *m)
{
    const char *key = c->data.augment.crop > 0              ? "data.augment.crop"
                      : c->data.augment.flip                ? "data.augment.flip"
                      : c->data.augment.rotate > 0          ? "data.augment.rotate"
                      : c->data.augment.scale.count > 0     ? "data.augment.scale"
                      : c->data.augment.translate.count > 0 ? "data.augment.translate"
                                                            : NULL;
    if (!key || !tr_target_is_image(m)) return TR_OK;
    return tr_config_fail(
        c, key,
        "the target is an image%s, which would stay where it is: leave crop, flip, rotate, scale "
        "and translate out, and store moved pairs of input and target in data.train's file",
        m->labels ? " (a class for each pixel)" : "");
}

/* Every class's scores of every row would have to be kept. */
static tr_status check_metrics(const tr_config *c, const tr_model *m)
{
    if (m->rows == 1 || !tr_config_measures(c, TR_METRIC_AUC, m->classes, tr_is_sequence(m)))
        return TR_OK;
    return tr_config_fail(c, "train.metrics",
                          "auc is not measured of a model with a class for each of %" PRId64
                          " rows of a sample",
                          m->rows);
}

tr_status tr_data_check(const tr_config *c, const tr_model *m)
{
    tr_prepare p;
    const tr_status st = tr_prepare_init(c, m, true, TR_F32, &p);
    if (st == TR_OK) tr_prepare_fini(&p);
    return st;
}

/* The first layer that takes input k as lengths. */
static void find_taker(const tr_model *m, int k, char name[TR_NAME])
{
    for (size_t l = 0; l < m->nlayers && !name[0]; l++)
        for (int i = 0; i < m->layers[l].nin && !name[0]; i++)
            if (m->layers[l].in[i] == k && (m->layers[l].ids >> i & 1u))
                snprintf(name, TR_NAME, "%s", m->layers[l].name);
}

tr_status tr_prepare_init(const tr_config *c, const tr_model *m, bool train, tr_dtype dtype,
                          tr_prepare *p)
{
    tr_status st = TR_OK;
    bool images = false;
    memset(p, 0, sizeof *p);
    TR_NEED(dtype == TR_F32 || dtype == TR_BF16 || dtype == TR_F16, TR_UNSUPPORTED,
            "the loader prepares float32, bfloat16 and float16, not %s", tr_dtype_name(dtype));
    p->ninputs = (int)m->ninputs;
    p->dtype = dtype;
    p->seed = (uint64_t)c->seed;
    TR_TRY(check_normalize(c, m));
    TR_TRY(check_metrics(c, m));
    for (int k = 0; k < p->ninputs; k++) {
        const tr_input *in = &m->inputs[k];
        p->in[k].count = 1;
        for (int d = 0; d < in->ndim; d++) p->in[k].count *= (size_t)in->dims[d];
        p->in[k].ids = in->ids;
        if (in->lengths) find_taker(m, k, p->in[k].taker);
        p->in[k].size = tr_dtype_size(in->ids > 0 ? TR_I32 : dtype);
        if (in->ids > 0) continue;
        if (p->in[k].count > p->scratch_count) p->scratch_count = p->in[k].count;
        p->in[k].image = is_image(in);
        if (is_image(in)) {
            p->in[k].c = in->dims[0];
            p->in[k].h = in->dims[1];
            p->in[k].w = in->dims[2];
        }
        images = images || is_image(in);
        const tr_normalize_config *stats = tr_normalize_of(c, in);
        if (stats) TR_TRY(take_stats(c, stats, in, p, k));
    }
    if (train && (c->data.augment.crop > 0 || c->data.augment.flip)) {
        TR_REQUIRE(images, "data.augment",
                   "the model has no input of 3 dimensions to crop or flip");
        for (size_t k = 0; k < m->ninputs; k++)
            TR_REQUIRE(
                !p->in[k].image ||
                    (c->data.augment.crop < p->in[k].h && c->data.augment.crop < p->in[k].w),
                "data.augment.crop",
                "%lld pixels of padding for an image of %lld x %lld: some crops would hold nothing "
                "of it",
                (long long)c->data.augment.crop, (long long)p->in[k].h, (long long)p->in[k].w);
        p->crop = c->data.augment.crop;
        p->flip = c->data.augment.flip;
    }
    if (train) TR_TRY(check_places(c, m));
    if (train) TR_TRY(tr_changes_open(c, p, &p->changes));
    if (train) TR_TRY(tr_mixing_take(c, p, m, &p->mixing));
    if (p->mixing.on) p->dtype = TR_F32;
out:
    if (st != TR_OK) tr_prepare_fini(p);
    return st;
}

void tr_prepare_fini(tr_prepare *p)
{
    for (int k = 0; k < p->ninputs; k++) {
        tr_free(p->in[k].mean);
        tr_free(p->in[k].std);
        p->in[k].mean = NULL;
        p->in[k].std = NULL;
    }
    tr_free(p->changes);
    p->changes = NULL;
}

/* One run of elements with one mean and std, in the output type. */
static void normalize(const tr_prepare *p, tr_elem elem, const void *raw, size_t count, double mean,
                      float std, float *scratch, void *out)
{
    if (p->dtype == TR_BF16) {
        tr_normalize_bf16(elem, raw, count, mean, std, scratch, out);
    } else if (p->dtype == TR_F16) {
        tr_normalize_f32(elem, raw, count, mean, std, scratch);
        tr_round_f16(scratch, count, out);
    } else {
        tr_normalize_f32(elem, raw, count, mean, std, out);
    }
}

/* Features lie next to each other, each with a mean and std of its own. */
static void normalize_rows(const tr_prepare *p, int k, tr_elem elem, const void *raw,
                           float *scratch, void *out)
{
    const size_t count = p->in[k].count, n = p->in[k].nstats;
    const float *std = p->in[k].std;
    float *v = p->dtype == TR_F32 ? out : scratch;
    tr_elem_minus(elem, raw, count, p->in[k].mean, n, 1, v);
    for (size_t row = 0; row < count; row += n)
        for (size_t i = 0; i < n; i++) v[row + i] /= std[i];
    if (p->dtype != TR_F32) tr_round_to(p->dtype, v, count, out);
}

/* How a sample is cut: element (y, x) of the result is (y + dy, x + dx) of the file, mirrored in
 * x. */
typedef struct {
    int64_t dy, dx;
    bool mirror;
} cut;

static cut draw(const tr_prepare *p, uint64_t ordinal)
{
    cut a = {0};
    if (p->crop == 0 && !p->flip) return a;
    tr_philox r = tr_philox_at(p->seed, TR_RNG_AUGMENT, TR_STREAM_CUT, ordinal, 0);
    uint64_t places = 2 * (uint64_t)p->crop + 1;
    a.dy = (int64_t)((r.v[0] * places) >> 32) - p->crop;
    a.dx = (int64_t)((r.v[1] * places) >> 32) - p->crop;
    a.mirror = p->flip && r.v[2] >> 31;
    return a;
}

/* From planes in[c][h][w] to out[h][w][c], cut. */
static void lay_out(const tr_prepare *p, int k, cut a, const float *in, float *out)
{
    const int64_t C = p->in[k].c, H = p->in[k].h, W = p->in[k].w;
    for (int64_t y = 0; y < H; y++) {
        int64_t sy = y + a.dy;
        /* columns [from, to) of the cut come from the file, the rest is padding */
        int64_t from = a.dx < 0 ? -a.dx : 0, to = a.dx > 0 ? W - a.dx : W;
        if (from > W) from = W;
        if (sy < 0 || sy >= H || to < from) to = from;
        for (int64_t c = 0; c < C; c++) {
            const int64_t s = p->in[k].nstats > 1 ? c : 0;
            float pad = p->in[k].nstats ? (0.0f - (float)p->in[k].mean[s]) / p->in[k].std[s] : 0.0f;
            float *o = out + (y * W + (a.mirror ? W - 1 : 0)) * C + c;
            int64_t stride = a.mirror ? -C : C;
            for (int64_t x = 0; x < from; x++) o[x * stride] = pad;
            if (from < to) {
                const float *row = in + (c * H + sy) * W + a.dx;
                for (int64_t x = from; x < to; x++) o[x * stride] = row[x];
            }
            for (int64_t x = to; x < W; x++) o[x * stride] = pad;
        }
    }
}

/* Changed in the file's values, normalized, cut, erased in. */
static void prepare_changed(const tr_prepare *p, int k, tr_elem elem, const void *raw,
                            uint64_t ordinal, cut a, float *scratch, void *out)
{
    const size_t count = p->in[k].count, n = p->in[k].nstats, run = n > 1 ? count / n : count;
    float *planes = scratch, *other = scratch + p->scratch_count;
    tr_elem_to_f32(elem, raw, count, planes);
    if (tr_changes_apply(p, k, elem, ordinal, planes, other)) {
        float *kept = planes;
        planes = other;
        other = kept;
    }
    for (size_t i = 0; i < n; i++)
        tr_normalize_f32(TR_ELEM_F32, planes + i * run, run, p->in[k].mean[i], p->in[k].std[i],
                         planes + i * run);
    float *laid = p->dtype == TR_F32 ? out : other;
    lay_out(p, k, a, planes, laid);
    tr_changes_erase(p, k, ordinal, laid);
    if (p->dtype != TR_F32) tr_round_to(p->dtype, laid, count, out);
}

void tr_prepare_sample(const tr_prepare *p, int k, tr_elem elem, const void *raw, uint64_t ordinal,
                       float *scratch, void *out)
{
    const size_t count = p->in[k].count, n = p->in[k].nstats > 1 ? p->in[k].nstats : 1;
    const bool image = p->in[k].image, stats = p->in[k].nstats > 0;
    cut a = image ? draw(p, ordinal) : (cut){0};
    if (image && p->changes) {
        prepare_changed(p, k, elem, raw, ordinal, a, scratch, out);
        return;
    }
    if (!image && n > 1) {
        normalize_rows(p, k, elem, raw, scratch, out);
        return;
    }
    bool straight = !image || (p->in[k].c == 1 && a.dy == 0 && a.dx == 0 && !a.mirror);
    float *planes = scratch;
    size_t run = count / n, esize = tr_elem_size(elem), osize = tr_dtype_size(p->dtype);
    for (size_t i = 0; i < n; i++) {
        const char *from = (const char *)raw + i * run * esize;
        const double mean = stats ? p->in[k].mean[i] : 0;
        const float std = stats ? p->in[k].std[i] : 1.0f;
        if (straight)
            normalize(p, elem, from, run, mean, std, scratch, (char *)out + i * run * osize);
        else
            tr_normalize_f32(elem, from, run, mean, std, planes + i * run);
    }
    if (straight) return;
    if (p->dtype == TR_F32) {
        lay_out(p, k, a, planes, out);
    } else {
        float *laid = scratch + p->scratch_count;
        lay_out(p, k, a, planes, laid);
        tr_round_to(p->dtype, laid, count, out);
    }
}

static void say_expected(const tr_prepare *p, int k, char *text, size_t size)
{
    const int64_t ids = p->in[k].ids;
    if (p->in[k].taker[0])
        snprintf(text, size,
                 "expected a length: a whole number from 0 to %" PRId64
                 ", which layer \"%s\" takes",
                 ids - 1, p->in[k].taker);
    else
        snprintf(text, size,
                 "expected an id: a whole number from 0 to %" PRId64 " (an embedding of %" PRId64
                 " rows reads it)",
                 ids - 1, ids);
}

/* As targets.c does with labels. */
tr_status tr_prepare_ids(const tr_prepare *p, int k, const tr_array *a, const void *raw, uint64_t i,
                         int32_t *out)
{
    for (size_t e = 0; e < p->in[k].count; e++) {
        const double v = tr_elem_value(a->elem, raw, e);
        if (!(v >= 0 && v < (double)p->in[k].ids) || v != floor(v)) {
            char where[512], expected[160 + TR_NAME];
            tr_array_where(a, i, where, sizeof where);
            say_expected(p, k, expected, sizeof expected);
            return TR_FAIL(TR_DATA, "%s: element %zu is %.10g, %s", where, e, v, expected);
        }
        out[e] = (int32_t)v;
    }
    return TR_OK;
}
