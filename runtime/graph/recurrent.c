/* The structures `lstm` and `gru`: layers one on another, of one direction or both, written out as
 * the layers that a config would name one by one, and read as those. */
#include "runtime/graph/parse.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/numbers.h"

typedef struct {
    int64_t hidden, layers;
    double dropout;
    int output;
    bool bidirectional, bias;
} recurrent_attrs;

enum { OUTPUT_ALL, OUTPUT_LAST };
static const char *const outputs[] = {"all", "last", NULL};

#define AT(name) offsetof(recurrent_attrs, name)

static const tr_field fields[] = {
    TR_INT("hidden", AT(hidden), NULL, 1, INT32_MAX / 4, NULL, "features of a direction's state"),
    TR_INT("layers", AT(layers), "1", 1, 1024, NULL, "one on another"),
    TR_BOOL("bidirectional", AT(bidirectional), "false",
            "a second direction from the last row to the first, whose features stand behind the "
            "first one's"),
    TR_BOOL("bias", AT(bias), "true", "add learned biases, one to each product"),
    TR_REAL("dropout", AT(dropout), "0", 0, 0.999, NULL,
            "probability that a feature of what a layer hands to the next is dropped"),
    TR_CHOICE("output", AT(output), outputs, "all",
              "all: every row, (rows, hidden times directions); last: (hidden times directions), "
              "the states where the directions end, as PyTorch's h_n of the last layer"),
    {0},
};

#define LAYERS                                                                                     \
    "It stands for plain layers, which `trainer check` prints, named `NAME.l0`, "                  \
    "`NAME.l0_reverse`, `NAME.concat0`, `NAME.drop0`, then `NAME.l1`..., and `NAME.last`, "        \
    "`NAME.last_reverse`, `NAME.h_n` of `output: last`."
#define LENGTHS                                                                                    \
    "A second input in `from`, of shape (1), holds the samples' lengths, 0 to rows, as "           \
    "pack_padded_sequence takes them, in any order: rows from there on give 0, and "               \
    "`output: last` what h_n of a packed sequence is (of a length of 0, which PyTorch refuses, "   \
    "0). "
#define RECURRENT .fields = fields, .attrs_size = sizeof(recurrent_attrs), .min_in = 1, .max_in = 2

const tr_op_def tr_type_lstm = {
    .name = "lstm",
    .example = "lstm: {hidden: 16, layers: 2, dropout: 0.2, output: last}",
    .doc = "An LSTM over (rows, features), PyTorch's nn.LSTM with batch_first, from a state of "
           "zeros. " LENGTHS LAYERS,
    RECURRENT,
};

const tr_op_def tr_type_gru = {
    .name = "gru",
    .example = "gru: {hidden: 16, bidirectional: true}",
    .doc = "A GRU over (rows, features), PyTorch's nn.GRU with batch_first, from a state of "
           "zeros. " LENGTHS LAYERS,
    RECURRENT,
};

/* ---- The layers, as text --------------------------------------------------------------------- */

static void direction(FILE *f, const tr_layer *l, int64_t i, bool reverse, const char *from)
{
    const recurrent_attrs *a = l->attrs;
    const bool lengths = l->nin > 1;
    fprintf(f, "- %s_layer: {name: l%lld%s, hidden: %lld, bias: %s, reverse: %s, ", l->def->name,
            (long long)i, reverse ? "_reverse" : "", (long long)a->hidden,
            a->bias ? "true" : "false", reverse ? "true" : "false");
    /* the rows behind a sample's end hold its state where the last row is what counts */
    if (lengths && !reverse && i == a->layers - 1 && a->output == OUTPUT_LAST)
        fprintf(f, "hold: true, ");
    fprintf(f, "from: [%s%s]}\n", from, lengths ? ", " TR_NAME_LENGTHS : "");
}

static void last_rows(FILE *f, const recurrent_attrs *a)
{
    const long long top = (long long)a->layers - 1;
    fprintf(f, "- select: {name: last, index: -1, from: l%lld}\n", top);
    if (!a->bidirectional) return;
    fprintf(f, "- select: {name: last_reverse, index: 0, from: l%lld_reverse}\n", top);
    fprintf(f, "- concat: {name: h_n, from: [last, last_reverse]}\n");
}

static void one_layer(FILE *f, const tr_layer *l, int64_t i, char from[32])
{
    const recurrent_attrs *a = l->attrs;
    const bool top = i == a->layers - 1;
    char p[32];
    direction(f, l, i, false, from);
    if (a->bidirectional) direction(f, l, i, true, from);
    if (top && a->output == OUTPUT_LAST) {
        last_rows(f, a);
        return;
    }
    snprintf(from, 32, a->bidirectional ? "concat%lld" : "l%lld", (long long)i);
    if (a->bidirectional)
        fprintf(f, "- concat: {name: %s, axis: -1, from: [l%lld, l%lld_reverse]}\n", from,
                (long long)i, (long long)i);
    if (top || a->dropout <= 0) return;
    fprintf(f, "- dropout: {name: drop%lld, p: %s, from: %s}\n", (long long)i,
            tr_format_real(a->dropout, p), from);
    snprintf(from, 32, "drop%lld", (long long)i);
}

static char *layers_text(const tr_layer *l)
{
    char *text = NULL, from[32] = "input";
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f) return NULL;
    for (int64_t i = 0; i < ((const recurrent_attrs *)l->attrs)->layers; i++)
        one_layer(f, l, i, from);
    if (fclose(f) == 0) return text;
    free(text);
    return NULL;
}

tr_status tr_parse_recurrent(tr_parser *p, const tr_layer *l, int *output)
{
    const recurrent_attrs *a = l->attrs;
    tr_status st = TR_OK;
    if (a->dropout > 0 && a->layers == 1)
        return tr_layer_fail(l, TR_CONFIG,
                             "dropout is between layers, of which there is one: layers: 2 or more");
    TR_TRY(tr_layer_rank(l, 2, 2, "(rows, features)"));
    TR_TRY(tr_parse_written(p, l, l->name, layers_text(l), l->in[0], output));
    st = tr_name_add(p->mk, l->where, l->name, *output);
out:
    return st;
}
