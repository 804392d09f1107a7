/* The structure `patch_embedding`: an image cut into patches, each of which becomes a row of
 * features (Dosovitskiy et al. 2021): a convolution whose stride is its kernel, and its places as
 * rows. Images are stored channels-last, so that those rows are its output as it lies: the two
 * rearrangements are views. */
#include "runtime/graph/parse.h"

#include <stdlib.h>

typedef struct {
    tr_ints size;
    int64_t dim;
    bool bias;
} patch_attrs;

static const tr_field fields[] = {
    TR_INTS("size", offsetof(patch_attrs, size), NULL, 1, INT16_MAX, "pixels",
            "of a patch, or [height, width]; patches cover the image and do not overlap"),
    TR_INT("dim", offsetof(patch_attrs, dim), NULL, 1, INT32_MAX, NULL, "features of a patch"),
    TR_BOOL("bias", offsetof(patch_attrs, bias), "true", "add a learned bias"),
    {0},
};

const tr_op_def tr_type_patch_embedding = {
    .name = "patch_embedding",
    .example = "patch_embedding: {size: 4, dim: 16}",
    .doc = "(channels, height, width) to (patches, dim), row by row of the image, as ViT begins. "
           "It stands for plain layers, "
           "which `trainer check` prints, named `NAME.proj` (the convolution, weight (dim, "
           "channels, height, width) and bias "
           "as timm's patch_embed.proj), `NAME.grid`, `NAME.rows`; the latter two move nothing.",
    .fields = fields,
    .attrs_size = sizeof(patch_attrs),
    .min_in = 1,
    .max_in = 1,
};

static char *layers_text(const patch_attrs *a, const int64_t size[2])
{
    const long long h = size[0], w = size[1], dim = a->dim;
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    fprintf(
        f,
        "- conv2d: {name: proj, out: %lld, kernel: [%lld, %lld], stride: [%lld, %lld], bias: %s}\n"
        "- reshape: {name: grid, dims: [%lld, -1]}\n- permute: {name: rows, dims: [2, 1]}\n",
        dim, h, w, h, w, a->bias ? "true" : "false", dim);
    if (fclose(f) == 0) return text;
    free(text);
    return NULL;
}

tr_status tr_parse_patches(tr_parser *p, const tr_layer *l, int *output)
{
    const patch_attrs *a = l->attrs;
    const tr_shape *x = &l->inputs[0];
    int64_t size[2];
    char text[TR_SHAPE_TEXT];
    tr_status st = TR_OK;
    TR_TRY(tr_layer_image(l));
    TR_TRY(tr_layer_pair(l, "size", &a->size, size));
    if (x->dims[1] % size[0] || x->dims[2] % size[1])
        return tr_layer_fail(l, TR_SHAPE, "patches of (%lld, %lld) do not cover its input %s",
                             (long long)size[0], (long long)size[1], tr_shape_text(x, text));
    TR_TRY(tr_parse_written(p, l, l->name, layers_text(a, size), l->in[0], output));
    st = tr_name_add(p->mk, l->where, l->name, *output);
out:
    return st;
}
