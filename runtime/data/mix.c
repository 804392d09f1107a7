/* Mixup (Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018) and CutMix (Yun et
 * al., ICCV 2019) as torchvision's v2 transforms MixUp and CutMix make them of a batch: one share
 * and one box for all samples of a step. A sample's partner is another one of the whole step, by a
 * permutation that is drawn anew each time, where theirs is the next one. Draws are Philox's, keyed
 * by seed and global step. */
#include "runtime/data/mix.h"

#include <inttypes.h>
#include <math.h>

static const char *key_of(const tr_config *c)
{
    return c->data.augment.mixup.present ? "data.augment.mixup" : "data.augment.cutmix";
}

static tr_status check_input(const tr_config *c, const tr_prepare *p, const tr_model *m, int k)
{
    const char *name = m->inputs[k].name;
    tr_status st = TR_OK;
    TR_REQUIRE(p->in[k].ids == 0, key_of(c),
               "the input \"%s\" holds ids, of which there is nothing between two", name);
    if (!c->data.augment.cutmix.present) goto out;
    TR_REQUIRE(p->in[k].image, "data.augment.cutmix",
               "the input \"%s\" is no image, expected 3 dimensions", name);
    TR_REQUIRE(p->in[k].h == p->in[0].h && p->in[k].w == p->in[0].w, "data.augment.cutmix",
               "the images \"%s\" and \"%s\" differ in height or width: one rectangle cannot be "
               "cut of both",
               m->inputs[0].name, name);
out:
    return st;
}

tr_status tr_mixing_take(const tr_config *c, const tr_prepare *p, const tr_model *model,
                         tr_mixing *m)
{
    tr_status st = TR_OK;
    m->on = tr_config_mixes(c);
    if (!m->on) return TR_OK;
    for (int k = 0; k < p->ninputs; k++) TR_TRY(check_input(c, p, model, k));
    TR_REQUIRE(!model->labels || model->rows == 1, key_of(c),
               "a sample has %" PRId64 " labels, expected one, or probabilities of classes",
               model->rows);
    TR_REQUIRE(!c->data.augment.cutmix.present || !tr_target_is_image(model), "data.augment.cutmix",
               "the target is an image, in which the rectangle would not be cut: expected mixup "
               "alone");
    m->up = c->data.augment.mixup;
    m->cut = c->data.augment.cutmix;
    m->height = p->in[0].h;
    m->width = p->in[0].w;
out:
    return st;
}

/* In (0, 1). */
static double inside(uint32_t bits)
{
    return ((double)bits + 0.5) * 0x1p-32;
}

/* One try of Joehnk's method (1964), for alpha up to 1: in logarithms, as powers of 1 / alpha
 * vanish. */
static bool try_small(double alpha, const tr_philox *r, double *out)
{
    const double x = log(inside(r->v[0])) / alpha, y = log(inside(r->v[1])) / alpha;
    const double top = x > y ? x : y, sum = top + log(exp(x - top) + exp(y - top));
    *out = exp(x - sum);
    return sum <= 0;
}

/* One try of Cheng's algorithm BB ("Generating beta variates with nonintegral shape parameters",
 * CACM 21, 1978) with both parameters alpha > 1. */
static bool try_large(double alpha, const tr_philox *r, double *out)
{
    const double u = inside(r->v[0]), beta = 1 / sqrt(alpha), gamma = alpha + sqrt(alpha);
    const double v = beta * log(u / (1 - u)), w = alpha * exp(v), z = u * u * inside(r->v[1]);
    const double s = alpha + gamma * v - log(4.0) - w;
    *out = w / (alpha + w);
    return s + 1 + log(5.0) >= 5 * z ||
           gamma * v - log(4.0) + 2 * alpha * log(2 * alpha / (alpha + w)) >= log(z);
}

double tr_beta_draw(double alpha, uint64_t seed, uint64_t step)
{
    double share = 0.5;
    for (uint32_t attempt = 0; attempt < 1000; attempt++) {
        const tr_philox r = tr_philox_at(seed, TR_RNG_AUGMENT, TR_STREAM_MIX_SHARE, step, attempt);
        if ((alpha > 1 ? try_large : try_small)(alpha, &r, &share)) break;
    }
    return share;
}

static int64_t clamp(int64_t v, int64_t most)
{
    return v < 0 ? 0 : v > most ? most : v;
}

tr_mix tr_mix_cut(double share, int64_t down, int64_t right, int64_t height, int64_t width)
{
    tr_mix x = {.kind = TR_MIX_CUT};
    const double half = 0.5 * sqrt(1 - share);
    const int64_t w = (int64_t)(half * (double)width), h = (int64_t)(half * (double)height);
    x.box.left = clamp(right - w, width);
    x.box.top = clamp(down - h, height);
    x.box.width = clamp(right + w, width) - x.box.left;
    x.box.height = clamp(down + h, height) - x.box.top;
    x.share = (float)(1 - (double)(x.box.height * x.box.width) / (double)(height * width));
    return x;
}

static int64_t below(uint32_t bits, int64_t n)
{
    return (int64_t)(((uint64_t)bits * (uint64_t)n) >> 32);
}

tr_mix tr_mix_draw(const tr_mixing *m, uint64_t seed, uint64_t step)
{
    const tr_philox r = tr_philox_at(seed, TR_RNG_AUGMENT, TR_STREAM_MIX, step, 0);
    const bool cuts = m->cut.present && (!m->up.present || r.v[0] >> 31);
    const tr_mix_config *c = cuts ? &m->cut : &m->up;
    if (!m->on || inside(r.v[1]) >= c->probability) return (tr_mix){.share = 1};
    const double share = tr_beta_draw(c->alpha, seed, step);
    if (!cuts) return (tr_mix){.kind = TR_MIX_UP, .share = (float)share};
    return tr_mix_cut(share, below(r.v[3], m->height), below(r.v[2], m->width), m->height,
                      m->width);
}

uint64_t tr_mix_partner(uint64_t seed, uint64_t step, uint64_t n, uint64_t i)
{
    return tr_permute(tr_philox_key(seed, TR_RNG_AUGMENT, TR_STREAM_MIX_PARTNER), step, n, i);
}

void tr_mix_input(const tr_mix *x, const tr_prepare *p, int k, float *own, const float *other)
{
    const int64_t C = p->in[k].c, W = p->in[k].w;
    const tr_box *b = &x->box;
    if (x->kind == TR_MIX_UP)
        for (size_t i = 0; i < p->in[k].count; i++)
            own[i] = own[i] * x->share + other[i] * (1 - x->share);
    if (x->kind != TR_MIX_CUT) return;
    for (int64_t y = b->top; y < b->top + b->height; y++)
        for (int64_t i = (y * W + b->left) * C; i < (y * W + b->left + b->width) * C; i++)
            own[i] = other[i];
}
