/* data.augment beside crop and flip: read from the config once, done to each sample. In this order:
 * color_jitter; rotate, scale and translate in one; (crop and flip;) (normalize;) random_erasing.
 * All image inputs of a sample are changed alike. */
#include "runtime/data/change.h"

#include <string.h>

struct tr_changes {
    bool affine, erase;
    tr_jitter_config jitter;
    tr_affine_range place;
    tr_erasing_range erasing;
    size_t nvalue;
    float value[16];
};

static bool wanted(const tr_config *c)
{
    return c->data.augment.rotate > 0 || c->data.augment.scale.count > 0 ||
           c->data.augment.translate.count > 0 || c->data.augment.jitter.present ||
           c->data.augment.erasing.present;
}

static tr_status check(const tr_config *c, const tr_prepare *p)
{
    tr_status st = TR_OK;
    const size_t values = c->data.augment.erasing.value.count;
    bool images = false;
    for (int k = 0; k < p->ninputs; k++) {
        if (!p->in[k].image) continue;
        images = true;
        TR_REQUIRE(!c->data.augment.jitter.present || p->in[k].c == 1 || p->in[k].c == 3,
                   "data.augment.color_jitter", "an image of %lld channels, expected 1 or 3",
                   (long long)p->in[k].c);
        TR_REQUIRE(!c->data.augment.erasing.present || values == 1 || (int64_t)values == p->in[k].c,
                   "data.augment.random_erasing.value",
                   "%zu values, expected 1 or one for each of the %lld channels", values,
                   (long long)p->in[k].c);
    }
    TR_REQUIRE(images, "data.augment",
               "the model has no input of 3 dimensions: there is no image to change");
    TR_REQUIRE(!c->data.augment.erasing.present || values <= 16,
               "data.augment.random_erasing.value", "%zu values, expected at most 16", values);
out:
    return st;
}

static void take_pair(const tr_reals *from, double to[2])
{
    for (size_t i = 0; i < 2 && from->count > 0; i++) to[i] = from->v[from->count > 1 ? i : 0];
}

tr_status tr_changes_open(const tr_config *c, const tr_prepare *p, struct tr_changes **out)
{
    tr_status st = TR_OK;
    struct tr_changes *x = NULL;
    if (!wanted(c)) goto out;
    TR_TRY(check(c, p));
    TR_HAVE(x = tr_alloc(TR_MEM_OTHER, 1, sizeof *x));
    x->jitter = c->data.augment.jitter;
    x->place = (tr_affine_range){.degrees = c->data.augment.rotate, .scale = {1, 1}};
    take_pair(&c->data.augment.scale, x->place.scale);
    take_pair(&c->data.augment.translate, x->place.translate);
    x->affine = c->data.augment.rotate > 0 || c->data.augment.scale.count > 0 ||
                c->data.augment.translate.count > 0;
    x->erase = c->data.augment.erasing.present;
    if (x->erase) {
        x->erasing.p = c->data.augment.erasing.p;
        take_pair(&c->data.augment.erasing.scale, x->erasing.scale);
        take_pair(&c->data.augment.erasing.ratio, x->erasing.ratio);
        x->nvalue = c->data.augment.erasing.value.count;
        for (size_t i = 0; i < x->nvalue; i++)
            x->value[i] = (float)c->data.augment.erasing.value.v[i];
    }
    *out = x;
out:
    return st;
}

static float bound_of(tr_elem elem)
{
    return elem == TR_ELEM_U8 ? 255.0f : elem == TR_ELEM_U16 ? 65535.0f : 1.0f;
}

bool tr_changes_apply(const tr_prepare *p, int k, tr_elem elem, uint64_t ordinal, float *planes,
                      float *other)
{
    const struct tr_changes *x = p->changes;
    const int64_t C = p->in[k].c, H = p->in[k].h, W = p->in[k].w;
    if (x->jitter.present) {
        const tr_jitter j = tr_jitter_draw(&x->jitter, p->seed, ordinal);
        tr_jitter_apply(&j, C, H * W, bound_of(elem), planes);
    }
    if (!x->affine) return false;
    const tr_affine a = tr_affine_draw(&x->place, H, W, p->seed, ordinal);
    tr_affine_apply(&a, C, H, W, planes, other);
    return true;
}

void tr_changes_erase(const tr_prepare *p, int k, uint64_t ordinal, float *v)
{
    const struct tr_changes *x = p->changes;
    const int64_t C = p->in[k].c, W = p->in[k].w;
    tr_box box;
    if (!x->erase || !tr_erasing_draw(&x->erasing, p->in[k].h, W, p->seed, ordinal, &box)) return;
    for (int64_t y = box.top; y < box.top + box.height; y++)
        for (int64_t i = 0; i < box.width * C; i++)
            v[(y * W + box.left) * C + i] = x->value[x->nvalue > 1 ? i % C : 0];
}
