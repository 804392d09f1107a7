#include "trainer/models/train_model.h"

#include "runtime/optimizer/groups.h"

/* As data.buckets says. */
static tr_status shorten(const tr_config *c, tr_model *m)
{
    static const char key[] = "data.buckets";
    if (c->data.buckets.count > 0 && tr_config_mixes(c))
        return tr_config_fail(c, key, "a mixed sample has no length: not with data.augment.%s",
                              c->data.augment.mixup.present ? "mixup" : "cutmix");
    if (c->data.buckets.count > 0 && tr_config_distills(c))
        return tr_config_fail(c, key,
                              "the teacher has no plans for fewer rows: not with train.distill");
    const tr_status st = tr_model_shorten(m, &c->data.buckets);
    return st == TR_CONFIG ? tr_config_blame(c, key, st) : st;
}

/* PyTorch's optimizers refuse an empty list of parameters, its losses a graph without any. */
tr_status tr_train_model(const tr_config *c, tr_model **out)
{
    const int source = tr_source_kind(c, &c->data.train);
    tr_model *m = NULL;
    tr_status st;
    int *segments = NULL;
    TR_TRY(tr_model_open(c, 0, &m));
    TR_TRY(tr_groups_freeze(c, &m));
    TR_REQUIRE(m->nparams > 0, "model", "no layer has parameters: there is nothing to train");
    TR_REQUIRE(m->learned_count > 0, "model",
               "every parameter is frozen: there is nothing to train; leave `freeze: true` out "
               "where a layer shall learn%s",
               c->train.freeze ? ", and patterns out of train.freeze" : "");
    TR_REQUIRE(!tr_config_distills(c) || m->rows == 1, "train.distill",
               "a model with a class for each of %lld rows of a sample cannot be distilled: it "
               "takes (classes)",
               (long long)m->rows);
    TR_TRY(tr_model_trainable(m));
    TR_TRY(tr_groups_check(c, m));
    TR_TRY(tr_segments_read(c, m, &segments));
    TR_TRY(shorten(c, m));
    if (source == TR_FORMAT_TEXT || source == TR_FORMAT_TOKENS) tr_graph_warn_ahead(m);
    *out = m;
out:
    tr_free(segments);
    if (st != TR_OK) tr_model_close(m);
    return st;
}

/* A small first bucket: communication starts early. GPUs: what NCCL needs to come near the
 * bandwidth of its links; PyTorch's sizes, too. */
tr_status tr_train_buckets(const tr_config *c, const tr_backend *b, tr_model *m)
{
    const size_t mib = (size_t)1 << 20, chosen = (size_t)(c->run.bucket_mb * 1e6);
    const tr_status st = chosen > 0 ? tr_model_cut(m, chosen, chosen)
                                    : tr_model_cut(m, mib, b->host ? 4 * mib : 25 * mib);
    return st == TR_OK ? shorten(c, m) : st;
}

size_t tr_confusion_cells(const tr_model *m)
{
    enum { MOST = 1024 };
    const bool classes = m->labels || tr_loss_soft(&m->loss_config);
    return classes && m->classes <= MOST ? (size_t)(m->classes * m->classes) : 0;
}
