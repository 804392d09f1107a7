/* `trainer evaluate MODEL [key=value ...] [--json] [-o FILE.json] [--force]`: the model of a run
 * file on data.eval of its config, or on what is given in its place, in full. */
#include "trainer/command/by_hand.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "optimize/evaluation/metrics.h"
#include "runtime/base/file.h"
#include "runtime/base/visible.h"
#include "runtime/data/reads.h"
#include "trainer/pipeline/frame.h"

tr_status tr_output_is_free(const tr_arguments *a, const tr_config *c)
{
    if (!a->output || !tr_file_there(a->output)) return TR_OK;
    if (a->config && tr_file_same(a->output, a->config))
        return TR_FAIL(TR_USAGE, TR_READ_ALREADY, a->output);
    const tr_status st = c ? tr_data_spare(c, a->output) : TR_OK;
    if (st != TR_OK) return st;
    if (a->force) return TR_OK;
    return TR_FAIL(TR_USAGE, "%s is there: move it away, or replace it (--force)", a->output);
}

tr_status tr_output_is_free_of(const tr_arguments *a, tr_comm *comm, const tr_config *c)
{
    const bool root = tr_comm_topology(comm)->rank == 0;
    if (root) tr_comm_busy(comm, TR_BUSY_READS);
    const tr_status st = root ? tr_output_is_free(a, c) : TR_OK;
    tr_comm_busy(comm, TR_BUSY_NOT);
    return tr_agree(comm, st, NULL);
}

static tr_status write_file(const char *path, const tr_full_evaluation *e)
{
    tr_text_file f;
    tr_status st = tr_text_file_open(&f, path);
    if (st == TR_OK) st = tr_full_write_json(e, f.to);
    return tr_text_file_close(&f, st);
}

/* Rank 0. */
static tr_status say(const tr_arguments *a, const tr_full_evaluation *e)
{
    tr_status st = TR_OK;
    if (a->output) TR_TRY(write_file(a->output, e));
    if (a->json)
        TR_TRY(tr_full_write_json(e, stdout));
    else if (!a->quiet)
        TR_TRY(tr_full_write_text(e, stdout));
    TR_NEED(fflush(stdout) == 0, TR_IO, "standard output could not be written: %s",
            strerror(errno));
out:
    return st;
}

/* Ids that are bytes, as texts on a terminal show them; a blank would be none in a table. Ids
 * beyond are numbers. */
static tr_status name_bytes(size_t count, tr_output_names *names)
{
    enum { ROOM = 24 };
    const char **of = tr_alloc(TR_MEM_OTHER, count, sizeof *of + ROOM); /* and their texts */
    if (!of) return tr_last_status();
    char *text = (char *)(of + count);
    for (size_t k = 0; k < count; k++, text += ROOM) {
        const char byte = (char)k;
        of[k] = text;
        if (k > UCHAR_MAX)
            snprintf(text, ROOM, "%zu", k);
        else if (byte == ' ')
            snprintf(text, ROOM, "\\x%02x", byte);
        else
            tr_visible_next(&byte, 1, text);
    }
    *names = (tr_output_names){.of = of, .count = count};
    return TR_OK;
}

/* What stands for each class, or value. */
static tr_status name_outputs(const tr_frame *f, tr_full_evaluation *e, tr_output_names *names)
{
    const tr_config *c = f->chain.config;
    const bool bytes = c->model.loss.kind.which == TR_LOSS_CROSS_ENTROPY &&
                       tr_source_kind(c, &c->data.train) == TR_FORMAT_TEXT;
    const size_t outputs = tr_kept_outputs(f->chain.network->model);
    tr_status st = tr_output_names_of(c, outputs, e->classes, names);
    if (st == TR_OK && names->count == 0 && bytes) st = name_bytes(e->classes, names);
    if (st == TR_OK && names->count == (e->classes ? e->classes : e->outputs)) e->names = names->of;
    return st;
}

tr_status tr_evaluate_by_hand(const tr_arguments *a, tr_comm *comm, const tr_config *c,
                              bool *agreed)
{
    tr_status st;
    const bool root = tr_comm_topology(comm)->rank == 0;
    tr_frame f = {.comm = comm, .config = c, .quiet = a->quiet, .by_hand = true};
    tr_full_evaluation e = {0};
    tr_output_names names = {0};
    *agreed = true;
    TR_NEED(tr_config_has_eval(c), TR_CONFIG,
            "%s: its config has no data.eval: give the data (data.eval.path=..., "
            "data.eval.inputs=..., data.eval.labels=...)",
            a->config);
    TR_TRY(tr_output_is_free_of(a, comm, c));
    TR_TRY(tr_chain_load(comm, a->config, a->overrides, a->noverrides, &f.chain));
    TR_TRY(tr_frame_enter_device(&f));
    TR_TRY(tr_evaluate_full(f.evaluator, f.chain.network, f.chain.config, TR_OVER_EVAL, &e));
    TR_TRY(tr_agree(comm, name_outputs(&f, &e, &names), NULL));
    if (root && !isfinite(e.mean.loss))
        tr_log(TR_LOG_WARN,
               "the loss is not finite: look at the data, and at the weights (trainer inspect)");
    st = tr_agree(comm, root ? say(a, &e) : TR_OK, NULL);
out:
    tr_full_free(&e);
    tr_free(names.of);
    if (*agreed) {
        const tr_error why = *tr_last_error();
        tr_frame_close(&f);
        tr_set_error(&why);
    }
    return st;
}
