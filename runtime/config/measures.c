/* What evaluations measure beside the loss, and which metrics go with it. */
#include "runtime/config/measures.h"

#include "runtime/config/internal.h"

#include <math.h>

static const tr_source_config *evaluated(const tr_config *c)
{
    return c->data.eval.present ? &c->data.eval : &c->data.train;
}

double tr_measures_bytes(const tr_config *c, const tr_source_config *s)
{
    return tr_source_kind(c, s) == TR_FORMAT_TEXT ? 1 : s->bytes_per_token;
}

double tr_config_bits_per_byte(const tr_config *c, double loss)
{
    return loss / M_LN2 / tr_measures_bytes(c, evaluated(c));
}

/* Whether its losses are of bytes, or of tokens of which so many are known. */
static bool of_text(const tr_config *c)
{
    return tr_measures_bytes(c, evaluated(c)) > 0;
}

bool tr_measures_likelihood(const tr_config *c, const tr_source_config *s)
{
    const tr_loss_config *l = &c->model.loss;
    return l->kind.which == TR_LOSS_CROSS_ENTROPY && l->label_smoothing == 0 && l->gamma == 0 &&
           l->class_weights.count == 0 && !s->weights;
}

bool tr_config_measures(const tr_config *c, tr_metric metric, int64_t classes, bool sequence)
{
    const int loss = c->model.loss.kind.which;
    const tr_list *asked = &c->train.metrics;
    sequence = sequence && tr_measures_likelihood(c, evaluated(c));
    if (asked->count == 0)
        return (metric == TR_METRIC_ACCURACY && tr_loss_counts(loss)) ||
               (metric == TR_METRIC_TOP5 && loss == TR_LOSS_CROSS_ENTROPY && classes > 5) ||
               (metric == TR_METRIC_PERPLEXITY && sequence) ||
               (metric == TR_METRIC_BITS_PER_BYTE && sequence && of_text(c));
    for (size_t i = 0; i < asked->count; i++)
        if (asked->items[i].which == (int)metric) return true;
    return false;
}

tr_status tr_config_check_metrics(tr_config *c)
{
    tr_status st = TR_OK;
    const int loss = c->model.loss.kind.which;
    const tr_list *asked = &c->train.metrics;
    for (size_t i = 0; i < asked->count; i++) {
        const tr_metric m = (tr_metric)asked->items[i].which;
        const bool values = m == TR_METRIC_MAE || m == TR_METRIC_R2;
        char path[64];
        snprintf(path, sizeof path, "train.metrics.%zu", i);
        const bool entropy =
            m == TR_METRIC_TOP5 || m == TR_METRIC_PERPLEXITY || m == TR_METRIC_BITS_PER_BYTE;
        if (values == tr_loss_counts(loss) || (entropy && loss != TR_LOSS_CROSS_ENTROPY)) {
            st = tr_node_fail(asked->items[i].at,
                              "%s: %s is not measured of a model with this loss: there are %s",
                              path, tr_metric_name(m),
                              !tr_loss_counts(loss) ? "mae, r2"
                              : loss == TR_LOSS_CROSS_ENTROPY
                                  ? "accuracy, top5, f1, auc, perplexity, bits_per_byte"
                                  : "accuracy, f1, auc");
            goto out;
        }
        TR_REQUIRE(
            m != TR_METRIC_BITS_PER_BYTE || of_text(c), path,
            "bits_per_byte is of bytes: it is measured on data of format text, or of tokens with "
            "bytes_per_token");
        TR_REQUIRE((m != TR_METRIC_PERPLEXITY && m != TR_METRIC_BITS_PER_BYTE) ||
                       tr_measures_likelihood(c, evaluated(c)),
                   path,
                   "%s is of the plain cross entropy, which the loss is not: it has "
                   "label_smoothing, gamma, class_weights or weights of samples",
                   tr_metric_name(m));
    }
    TR_REQUIRE(asked->count == 0 || tr_config_evaluates(c), "train.metrics",
               "without evaluations (data.eval, train.eval) nothing is measured");
out:
    return st;
}
