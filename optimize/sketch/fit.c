/* Sketches of a matrix that is there: sketch.h has the formula. Matrices are of double, by rows. */
#include "optimize/sketch/sketch.h"

#include <math.h>
#include <string.h>

typedef struct {
    size_t rows, columns;
    double *v;
} matrix;

static tr_status open_matrix(size_t rows, size_t columns, matrix *m)
{
    *m = (matrix){rows, columns, tr_alloc(TR_MEM_OTHER, rows * columns, sizeof *m->v)};
    return m->v ? TR_OK : tr_last_status();
}

static double *row(const matrix *m, size_t r)
{
    return m->v + r * m->columns;
}

/* ---- Stops ----------------------------------------------------------------------------------- */

#define ASK_EVERY ((size_t)1 << 22) /* multiply-adds: some milliseconds */

typedef struct {
    const tr_sketch_options *o;
    size_t done; /* since it was asked last */
} asking;

static tr_status ask(asking *a)
{
    a->done = 0;
    return a->o->stop && a->o->stop(a->o->stop_ctx)
               ? TR_FAIL(TR_STOPPED,
                         "stopped while sketches were fitted, which begins again when the stage "
                         "does")
               : TR_OK;
}

static tr_status did(asking *a, size_t multiply_adds)
{
    a->done += multiply_adds;
    return a->done < ASK_EVERY ? TR_OK : ask(a);
}

/* ---- Matrices -------------------------------------------------------------------------------- */

/* c += factor * a b, or with `turned` a^T b. */
static tr_status multiply(asking *stop, double factor, const matrix *a, bool turned,
                          const matrix *b, matrix *c)
{
    tr_status st = TR_OK;
    const size_t n = turned ? a->rows : a->columns;
    for (size_t i = 0; i < c->rows; i++)
        for (size_t k = 0; k < n; k++) {
            const double f = factor * (turned ? row(a, k)[i] : row(a, i)[k]);
            const double *from = row(b, k);
            double *to = row(c, i);
            for (size_t j = 0; j < c->columns; j++) to[j] += f * from[j];
            TR_TRY(did(stop, c->columns));
        }
out:
    return st;
}

/* Its lower triangle becomes L of g + ridge = L L^T. */
static tr_status factorize(asking *stop, matrix *g)
{
    tr_status st = TR_OK;
    double trace = 0;
    for (size_t i = 0; i < g->rows; i++) trace += row(g, i)[i];
    for (size_t i = 0; i < g->rows; i++) row(g, i)[i] += 1e-11 * trace / (double)g->rows;
    for (size_t i = 0; i < g->rows; i++)
        for (size_t j = 0; j <= i; j++) {
            double sum = row(g, i)[j];
            for (size_t k = 0; k < j; k++) sum -= row(g, i)[k] * row(g, j)[k];
            row(g, i)[j] =
                i == j ? sqrt(fmax(sum, 1e-13 * trace / (double)g->rows)) : sum / row(g, j)[j];
            TR_TRY(did(stop, j));
        }
out:
    return st;
}

/* x_i -= factor * x_k */
static tr_status take(asking *stop, matrix *x, size_t i, double factor, size_t k)
{
    const double *from = row(x, k);
    double *to = row(x, i);
    for (size_t j = 0; j < x->columns; j++) to[j] -= factor * from[j];
    return did(stop, x->columns);
}

/* x becomes (L L^T)^-1 x. */
static tr_status solve(asking *stop, const matrix *l, matrix *x)
{
    tr_status st = TR_OK;
    for (size_t i = 0; i < l->rows; i++) {
        for (size_t k = 0; k < i; k++) TR_TRY(take(stop, x, i, row(l, i)[k], k));
        for (size_t j = 0; j < x->columns; j++) row(x, i)[j] /= row(l, i)[i];
    }
    for (size_t i = l->rows; i-- > 0;) {
        for (size_t k = i + 1; k < l->rows; k++) TR_TRY(take(stop, x, i, row(l, k)[i], k));
        for (size_t j = 0; j < x->columns; j++) row(x, i)[j] /= row(l, i)[i];
    }
out:
    return st;
}

static tr_status open_signs(const tr_sketch *s, tr_sketch_side side, size_t rows, size_t columns,
                            matrix *m)
{
    tr_sketch of = *s;
    tr_status st = TR_OK;
    float *v = tr_alloc(TR_MEM_OTHER, columns, sizeof *v);
    of.side = side;
    TR_HAVE(v);
    TR_TRY(open_matrix(rows, columns, m));
    for (size_t r = 0; r < rows; r++) {
        tr_sketch_signs(&of, (int64_t)r, 0, columns, tr_sketch_unit(s), v);
        for (size_t c = 0; c < columns; c++) row(m, r)[c] = (double)v[c];
    }
out:
    tr_free(v);
    return st;
}

/* The solution of what is of the rows alone, x = P^+ w (turned: P^T w, else those that w starts
 * from). */
static tr_status project(asking *stop, const matrix *p, const matrix *w, bool least, double start,
                         matrix *x)
{
    tr_status st = TR_OK;
    matrix g = {0};
    TR_TRY(open_matrix(p->columns, w->columns, x));
    TR_TRY(multiply(stop, least ? 1 : start, p, true, w, x));
    if (!least) goto out;
    TR_TRY(open_matrix(p->columns, p->columns, &g));
    TR_TRY(multiply(stop, 1, p, true, p, &g));
    TR_TRY(factorize(stop, &g));
    TR_TRY(solve(stop, &g, x));
out:
    tr_free(g.v);
    return st;
}

static tr_status turn(const matrix *m, matrix *out)
{
    const tr_status st = open_matrix(m->columns, m->rows, out);
    for (size_t r = 0; st == TR_OK && r < m->rows; r++)
        for (size_t c = 0; c < m->columns; c++) row(out, c)[r] = row(m, r)[c];
    return st;
}

static void give(const matrix *m, float *to)
{
    for (size_t i = 0; i < m->rows * m->columns; i++) to[i] = (float)m->v[i];
}

static double norm(const matrix *m)
{
    double sum = 0;
    for (size_t i = 0; i < m->rows * m->columns; i++) sum += m->v[i] * m->v[i];
    return sqrt(sum);
}

typedef struct {
    matrix w, p, q, x, y, z, turned, qt;
} work;

/* S2, as y of (in, ...) turned; and what both halves could have goes to each by half. */
static tr_status fit_columns(asking *stop, work *k, bool least, double start)
{
    tr_status st = TR_OK;
    matrix yt = {0};
    TR_TRY(turn(&k->w, &k->turned));
    TR_TRY(turn(&k->q, &k->qt));
    TR_TRY(project(stop, &k->qt, &k->turned, least, start, &yt)); /* (K, out) */
    TR_TRY(turn(&yt, &k->y));
    if (!least) goto out;
    TR_TRY(project(stop, &k->p, &k->y, true, 0, &k->z)); /* P^+ W Q^+ (K, K) */
    TR_TRY(multiply(stop, -0.5, &k->z, false, &k->q, &k->x));
    TR_TRY(multiply(stop, -0.5, &k->p, false, &k->z, &k->y));
out:
    tr_free(yt.v);
    return st;
}

/* Of those above, where they are most: the system of P and Z beside all others. */
double tr_sketch_fit_bytes(bool both, int64_t out, int64_t in, int64_t k, bool least_squares)
{
    const double width = (double)k * (both ? 1 : 2), sides = (double)out + (double)in;
    const double squares = !least_squares ? 0 : both ? 2 : 1, copies = both ? 2 : 1;
    return sizeof(double) * (copies * (double)out * (double)in + (both ? 3 : 1) * width * sides +
                             squares * width * width);
}

tr_status tr_sketch_fit(const tr_sketch *s, const float *w, int64_t out, int64_t in,
                        const tr_sketch_options *o, float *s1, float *s2, double *error)
{
    tr_status st = TR_OK;
    work k = {0};
    asking stop = {.o = o};
    const bool both = s->side != TR_SKETCH_SIGNS, least = o->least_squares;
    const size_t width = (size_t)(s->terms * s->rank) * (both ? 1 : 2);
    const double start = 2 * (double)s->terms;
    TR_TRY(ask(&stop));
    TR_TRY(open_matrix((size_t)out, (size_t)in, &k.w));
    for (size_t i = 0; i < (size_t)(out * in); i++) k.w.v[i] = (double)w[i];
    const double all = norm(&k.w);
    TR_TRY(open_signs(s, TR_SKETCH_UP, (size_t)out, width, &k.p));
    TR_TRY(project(&stop, &k.p, &k.w, least, start, &k.x));
    if (both) {
        TR_TRY(open_signs(s, TR_SKETCH_DOWN, width, (size_t)in, &k.q));
        TR_TRY(fit_columns(&stop, &k, least, start));
        give(&k.y, s2);
        TR_TRY(multiply(&stop, -1, &k.y, false, &k.q, &k.w));
    }
    give(&k.x, s1);
    TR_TRY(multiply(&stop, -1, &k.p, false, &k.x, &k.w));
    *error = all > 0 ? norm(&k.w) / all : 0;
out:
    for (matrix *m = &k.w; m <= &k.qt; m++) tr_free(m->v);
    return st;
}
