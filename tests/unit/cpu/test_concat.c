/* Concatenation of images, rows and sequences along any of their dimensions, and its gradient with
 * parts that nobody wants. Both only move values, so the comparison is exact. */
#include "tests/unit/cpu/loop_levels.h"

/* Dims of part i of a concatenation: dims[axis] differs. */
typedef struct {
    int ndim, axis;
    int64_t dims[4], widths[3];
} shape;

static const shape shapes[] = {
    {4, 1, {2, 0, 3, 5}, {4, 1, 3}},   {4, 1, {1, 0, 1, 1}, {1, 1, 1}},
    {4, 1, {5, 0, 8, 4}, {16, 7, 40}}, {4, 2, {2, 3, 0, 5}, {4, 1, 3}},
    {4, 3, {2, 3, 4, 0}, {1, 5, 2}},   {2, 1, {150, 0}, {3, 20, 1}},
    {3, 1, {3, 0, 6}, {2, 5, 1}},      {3, 2, {3, 50, 0}, {2, 5, 1}},
};

static void dims_of(const shape *s, int64_t width, int64_t d[4])
{
    memcpy(d, s->dims, 4 * sizeof *d);
    d[s->axis] = width;
}

/* Logical place in the whole of element e of the part that starts at place `from` of the axis. */
static size_t place(const shape *s, int64_t width, int64_t from, size_t e)
{
    const int64_t whole = s->widths[0] + s->widths[1] + s->widths[2];
    int64_t inner = 1;
    for (int i = s->axis + 1; i < s->ndim; i++) inner *= s->dims[i];
    const int64_t row = (int64_t)e / (width * inner), in_row = (int64_t)e % (width * inner);
    return (size_t)(row * whole * inner + from * inner + in_row);
}

static void check(const shape *s, tr_precision p, unsigned absent)
{
    const tr_concat_attrs attrs = {.axis = s->axis,
                                   .width = {s->widths[0], s->widths[1], s->widths[2]}};
    int64_t d[4], total = s->widths[0] + s->widths[1] + s->widths[2], from = 0;
    harness f = open_level("concat", p, TR_ISA_BASE, 2), b = open_level("concat.grad", p, 1, 2);
    const tr_dtype t = h_activation(&f);
    int in[3], out[3];
    dims_of(s, total, d);
    const int dy = h_in(&b, t, s->ndim, d);
    for (int i = 0; i < 3; i++) {
        dims_of(s, s->widths[i], d);
        in[i] = h_in(&f, t, s->ndim, d);
        h_fill(&f, in[i], (uint32_t)i);
        if (absent >> i & 1) {
            out[i] = -1;
            h_absent_out(&b);
        } else {
            out[i] = h_out(&b, t, s->ndim, d);
        }
    }
    dims_of(s, total, d);
    const int y = h_out(&f, t, s->ndim, d);
    h_fill(&b, dy, 9);
    h_prepare(&f, &attrs, TR_ACT_NONE);
    h_prepare(&b, &attrs, TR_ACT_NONE);
    h_run(&f, false);
    h_run(&b, false);
    for (int i = 0; i < 3; i++) {
        for (size_t e = 0; e < f.tensors[in[i]].count; e++) {
            const size_t at = place(s, s->widths[i], from, e);
            assert_true(h_get(&f, y, at) == h_get(&f, in[i], e));
            if (out[i] >= 0) assert_true(h_get(&b, out[i], e) == h_get(&b, dy, at));
        }
        from += s->widths[i];
    }
    h_close(&f);
    h_close(&b);
}

static void values_move(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(shapes); i++) FOR_PRECISIONS(p)
        {
            check(&shapes[i], p, 0);
            for (unsigned absent = 1; absent < 7; absent++) check(&shapes[i], p, absent);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_move)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
