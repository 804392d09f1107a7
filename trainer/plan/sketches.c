/* What learning matrices in sketches saves: each such layer beside the dense one of the same
 * shape. */
#include "runtime/base/json.h"
#include "runtime/graph/facts.h"
#include "trainer/plan/planned.h"

enum { OWN, DENSE };

typedef struct {
    tr_sketch_facts facts;
    const tr_sketch *sketch;
    double memory[2];
} row;

/* In training, unsharded: weights, gradients and the optimizer's slots; the copies that kernels
 * read, of the sketch both whole matrices; and what lies between its products. */
static bool row_of(const tr_planned *r, const tr_layer *l, row *out)
{
    tr_sketch_facts *f = &out->facts;
    if (!tr_layer_sketch(r->m, l, f)) return false;
    const tr_params_options p = tr_params_options_of(r->c, r->m, r->on.backend);
    const double size =
        (double)tr_dtype_size(tr_precision_dtype((tr_precision)r->c->train.precision));
    const double places = (double)tr_shape_places(&l->output), width = (double)f->width;
    const double a_value = sizeof(float) * (2 + (double)p.nslots);
    const bool stacked = l->nparams > 1 && r->m->params[l->params[1]].sketch.side != TR_SKETCH_NONE;
    const double copies = stacked ? width * (double)(f->in + f->out)
                                  : width * ((double)f->out + (size < 4 ? (double)f->in : 0));
    out->sketch = &r->m->params[l->params[0]].sketch;
    out->memory[OWN] = f->parameters[OWN] * a_value + copies * size +
                       (double)r->train_batch * places * width * size;
    out->memory[DENSE] = f->parameters[DENSE] * (a_value + (size < 4 ? size : 0));
    return true;
}

static double part(const double v[2])
{
    return 100 * v[OWN] / v[DENSE];
}

void tr_planned_sketches(const tr_planned *r, FILE *to)
{
    bool any = false;
    char a[32], b[32];
    row s;
    for (size_t i = 0; i < r->m->nlayers; i++) {
        const tr_layer *l = &r->m->layers[i];
        if (!row_of(r, l, &s)) continue;
        if (!any) fprintf(to, "\nsketched layers, beside the dense ones\n");
        any = true;
        fprintf(to, "  %-18s %lld x %lld: terms %lld, rank %lld, seed %lld\n", l->name,
                (long long)s.facts.out, (long long)s.facts.in, (long long)s.sketch->terms,
                (long long)s.sketch->rank, (long long)s.sketch->seed);
        const double *const pairs[] = {s.facts.parameters, s.facts.multiply_adds};
        static const char *const names[] = {"weights", "multiply-adds"};
        for (size_t k = 0; k < TR_COUNT(names); k++)
            fprintf(to, "    %-16s %s for %s: %.1f %%\n", names[k],
                    tr_format_count(pairs[k][OWN], a, sizeof a),
                    tr_format_count(pairs[k][DENSE], b, sizeof b), part(pairs[k]));
        fprintf(to, "    %-16s %s for %s in training: %.1f %%\n", "memory",
                tr_format_bytes(s.memory[OWN], a, sizeof a),
                tr_format_bytes(s.memory[DENSE], b, sizeof b), part(s.memory));
    }
}

void tr_planned_sketches_note(const tr_planned *r)
{
    row s;
    for (size_t i = 0; i < r->m->nlayers; i++) {
        const tr_layer *l = &r->m->layers[i];
        if (!row_of(r, l, &s)) continue;
        const bool weights = part(s.facts.parameters) > 100;
        const bool arithmetic = part(s.facts.multiply_adds) > 100;
        if (!weights && !arithmetic) continue;
        const int64_t most = (int64_t)((double)s.facts.out * (double)s.facts.in /
                                       (double)(s.facts.out + s.facts.in) / 2);
        fprintf(r->notes,
                "layer %s: its sketch, terms %lld of rank %lld, has %.0f %% of the weights and "
                "%.0f %% of the arithmetic of the dense %lld x %lld: only terms * rank of at most "
                "%lld takes less arithmetic\n",
                l->name, (long long)s.sketch->terms, (long long)s.sketch->rank,
                part(s.facts.parameters), part(s.facts.multiply_adds), (long long)s.facts.out,
                (long long)s.facts.in, (long long)most);
    }
}

static void write_pair(const char *key, const double v[2], FILE *to)
{
    fprintf(to, ", \"%s\": ", key);
    tr_json_real(v[OWN], to);
    fprintf(to, ", \"dense_%s\": ", key);
    tr_json_real(v[DENSE], to);
}

void tr_planned_sketches_json(const tr_planned *r, FILE *to)
{
    int n = 0;
    row s;
    for (size_t i = 0; i < r->m->nlayers; i++) {
        const tr_layer *l = &r->m->layers[i];
        if (!row_of(r, l, &s)) continue;
        fprintf(to, n++ ? ",\n  {\"layer\": " : ",\n \"sketched_layers\": [{\"layer\": ");
        tr_json_text(l->name, to);
        fprintf(to, ", \"terms\": %lld, \"rank\": %lld, \"seed\": %lld", (long long)s.sketch->terms,
                (long long)s.sketch->rank, (long long)s.sketch->seed);
        write_pair("weights", s.facts.parameters, to);
        write_pair("multiply_adds", s.facts.multiply_adds, to);
        write_pair("training_bytes", s.memory, to);
        fputc('}', to);
    }
    if (n) fputc(']', to);
}
