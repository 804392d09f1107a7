/* The data sets of `trainer demo`, made up: drawn digits, a function of four numbers, shapes in
 * colour. Samples differ by place, size, brightness and noise, all of which follow from a sample's
 * index. */
#include "trainer/start/start.h"

#include <math.h>

/* Numbers in [0, 1) of a sample, one after the other. */
typedef struct {
    uint64_t index;
    uint32_t next;
} draws;

static float draw(draws *d)
{
    const tr_philox p = tr_philox_at(1, TR_RNG_SYNTHETIC, 0, d->index, d->next / 4);
    return tr_uniform(p.v[d->next++ % 4]);
}

static float normal(draws *d)
{
    const tr_philox p = tr_philox_at(1, TR_RNG_SYNTHETIC, 1, d->index, d->next++);
    float two[2];
    tr_normal2(p.v[0], p.v[1], two);
    return two[0];
}

/* ---- digits ---------------------------------------------------------------------------------- */

/* Five columns by seven rows, a row a number, the leftmost column the highest bit. */
static const unsigned char glyphs[10][7] = {
    {14, 17, 19, 21, 25, 17, 14}, {4, 12, 4, 4, 4, 4, 14},  {14, 17, 1, 2, 4, 8, 31},
    {31, 2, 4, 2, 1, 17, 14},     {2, 6, 10, 18, 31, 2, 2}, {31, 16, 30, 1, 1, 17, 14},
    {6, 8, 16, 30, 17, 17, 14},   {31, 1, 2, 4, 8, 8, 8},   {14, 17, 17, 14, 17, 17, 14},
    {14, 17, 17, 15, 1, 2, 12}};

enum { SIDE = 10 };

static void make_digit(uint64_t index, float *x, float *y)
{
    draws d = {index, 0};
    const int digit = (int)(index % 10);
    const int left = (int)(draw(&d) * 6), top = (int)(draw(&d) * 4);
    const float ink = 0.6f + 0.4f * draw(&d);
    for (int r = 0; r < SIDE; r++)
        for (int c = 0; c < SIDE; c++) {
            const int gr = r - top, gc = c - left;
            const bool on =
                gr >= 0 && gr < 7 && gc >= 0 && gc < 5 && (glyphs[digit][gr] >> (4 - gc) & 1);
            x[r * SIDE + c] = (on ? ink : 0) + 0.15f * normal(&d);
        }
    *y = (float)digit;
}

/* ---- regression ------------------------------------------------------------------------------ */

static void make_values(uint64_t index, float *x, float *y)
{
    draws d = {index, 0};
    for (int i = 0; i < 4; i++) x[i] = 2 * draw(&d) - 1;
    y[0] = sinf(3 * x[0]) + x[1] * x[2] + 0.05f * normal(&d);
    y[1] = expf(x[3]) - x[0] * x[0] + 0.05f * normal(&d);
}

/* ---- images ---------------------------------------------------------------------------------- */

enum { PIXELS = 16 };

/* Is the point, from -1 to 1 both ways, in the shape? */
static bool inside(int shape, float u, float v)
{
    switch (shape) {
    case 0: /* disc */
        return u * u + v * v < 1;
    case 1: /* square */
        return fabsf(u) < 0.8f && fabsf(v) < 0.8f;
    case 2: /* triangle */
        return v < 0.9f && v > -0.9f && fabsf(u) < (v + 0.9f) / 1.8f;
    default: /* ring */
        return u * u + v * v < 1 && u * u + v * v > 0.35f;
    }
}

static void make_image(uint64_t index, float *x, float *y)
{
    draws d = {index, 0};
    const int shape = (int)(index % 4);
    const float size = 4 + 3 * draw(&d);
    const float cu = size + (PIXELS - 2 * size) * draw(&d);
    const float cv = size + (PIXELS - 2 * size) * draw(&d);
    float colors[2][3];
    for (int k = 0; k < 3; k++) {
        colors[0][k] = 0.5f * draw(&d);
        colors[1][k] = 0.5f + 0.5f * draw(&d);
    }
    for (int k = 0; k < 3; k++)
        for (int r = 0; r < PIXELS; r++)
            for (int c = 0; c < PIXELS; c++) {
                const bool in =
                    inside(shape, ((float)c + 0.5f - cu) / size, ((float)r + 0.5f - cv) / size);
                x[(k * PIXELS + r) * PIXELS + c] = colors[in][k] + 0.05f * normal(&d);
            }
    *y = (float)shape;
}

/* ---- The list -------------------------------------------------------------------------------- */

#define ENDING(batch, epochs, metrics)                                                             \
    "\n"                                                                                           \
    "train:\n"                                                                                     \
    "  epochs: " epochs "                    # or steps:\n"                                        \
    "  batch: " batch "                     # of a step, over all ranks\n"                         \
    "  optimizer: {adamw: {lr: 0.003}}\n"                                                          \
    "  schedule: {cosine: {warmup: 20}}\n"                                                         \
    "  eval: {every_epochs: 1}\n"                                                                  \
    "  metrics: " metrics "\n"                                                                     \
    "  checkpoint: {every_epochs: 5, keep: 2}\n"                                                   \
    "  result: best                  # model.h5 holds the best evaluation's weights\n"

const tr_demo tr_demos[] = {
    {"digits",
     "drawn digits in images of 10 x 10: a small convolutional network",
     1500,
     500,
     3,
     {1, SIDE, SIDE},
     0,
     make_digit,
     "model:\n"
     "  input: [1, 10, 10]            # channels, height, width\n"
     "  layers:\n"
     "    - conv2d: {out: 16, kernel: 3, padding: 1, bias: false}\n"
     "    - batchnorm\n"
     "    - relu\n"
     "    - maxpool2d: {kernel: 2}\n"
     "    - conv2d: {out: 32, kernel: 3, padding: 1, bias: false}\n"
     "    - batchnorm\n"
     "    - relu\n"
     "    - flatten\n"
     "    - linear: {out: 10, name: head}\n"
     "  loss: cross_entropy\n" ENDING("64", "10", "[accuracy, f1]")},
    {"regression",
     "two functions of four numbers: a network of linear layers",
     2000,
     500,
     1,
     {4},
     2,
     make_values,
     "model:\n"
     "  input: [4]\n"
     "  layers:\n"
     "    - linear: {out: 64}\n"
     "    - relu\n"
     "    - linear: {out: 64}\n"
     "    - relu\n"
     "    - linear: {out: 2, name: head}\n"
     "  loss: mse\n" ENDING("64", "20", "[mae, r2]")},
    {"images",
     "shapes in colour, 16 x 16: residual blocks",
     1200,
     400,
     3,
     {3, PIXELS, PIXELS},
     0,
     make_image,
     "model:\n"
     "  input: [3, 16, 16]            # channels, height, width\n"
     "  layers:\n"
     "    - conv2d: {out: 16, kernel: 3, padding: 1, bias: false}\n"
     "    - batchnorm\n"
     "    - relu\n"
     "    - residual:                 # body plus its input\n"
     "        body:\n"
     "          - conv2d: {out: 16, kernel: 3, padding: 1, bias: false}\n"
     "          - batchnorm\n"
     "          - relu\n"
     "          - conv2d: {out: 16, kernel: 3, padding: 1, bias: false}\n"
     "          - batchnorm\n"
     "    - relu\n"
     "    - maxpool2d: {kernel: 2}\n"
     "    - conv2d: {out: 32, kernel: 3, padding: 1, bias: false}\n"
     "    - batchnorm\n"
     "    - relu\n"
     "    - maxpool2d: {kernel: 2}\n"
     "    - flatten\n"
     "    - linear: {out: 4, name: head}\n"
     "  loss: cross_entropy\n" ENDING("64", "12", "[accuracy, f1]")},
};
const size_t tr_demo_count = TR_COUNT(tr_demos);
