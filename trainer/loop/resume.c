/* A run that is gone on with: its config, key by key, beside the one that the checkpoint was made
 * with. */
#include "trainer/loop/resume.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/file.h"
#include "runtime/config/chosen.h"
#include "runtime/config/init_from.h"
#include "trainer/optimizer/schedule.h"
#include "trainer/stages/stages.h"

/* What is said of a change. */
typedef enum { HARMLESS, ROUNDING, NUMBERS, REFUSED, EFFECTS } effect;

/* Of layers, how their values begin: they are the checkpoint's. */
static const char *const beginning[] = {"init", "init_factor", "init_residual", "std"};

static bool is_beginning(const char *path)
{
    if (strncmp(path, "model.layers.", 13) != 0) return false;
    for (size_t i = 0; i < TR_COUNT(beginning); i++)
        if (strcmp(strrchr(path, '.') + 1, beginning[i]) == 0) return true;
    return false;
}

static const char *const words[EFFECTS] = {[HARMLESS] = "harmless",
                                           [ROUNDING] =
                                               "may change the last bits (sums in another order)",
                                           [NUMBERS] = "changes the numbers",
                                           [REFUSED] = "refused"};

typedef struct {
    const tr_trainer *t;
    const tr_config *was;
    bool say, changed;
    bool done;   /* it was trained in full, by its own config and by this one */
    bool shares; /* a key of how sums are shared out did */
    /* The first key that the training would go by, and what it was. */
    char trained[TR_ERROR_TEXT / 2], before[80], after[80];
    tr_status st; /* TR_CONFIG at the first key that is refused */
} comparison;

/* Values of another file, which the run did not begin from. */
static bool other_start(const tr_trainer *t)
{
    tr_init_from o;
    char sha256[65];
    if (tr_config_init_from(t->config, &o) != TR_OK) return true;
    char *path = o.file ? tr_config_path(t->config, o.file) : NULL;
    const bool other =
        path && (tr_file_sha256(path, sha256) != TR_OK || strcmp(sha256, t->origin.sha256) != 0);
    tr_free(path);
    tr_init_from_free(&o);
    return other;
}

/* Whether the learning rate follows from how long training goes on. */
static bool follows_length(const tr_config *c)
{
    const tr_schedule_config *s = &c->train.schedule.o;
    const int kind = c->train.schedule.kind.which;
    return (kind != TR_SCHEDULE_CONSTANT && kind != TR_SCHEDULE_PLATEAU) ||
           s->warmup.unit == TR_SPAN_PERCENT;
}

static effect effect_of(const comparison *c, const char *path, tr_change change)
{
    const tr_config *now = c->t->config;
    const bool host = c->t->backend->host;
    switch (change) {
    case TR_CHANGE_NOTHING:
        return HARMLESS;
    case TR_CHANGE_START:
        return other_start(c->t) ? REFUSED : HARMLESS;
    case TR_CHANGE_THREADS: /* of convolutions' weight gradients; without AVX-512 of products, too
                             */
        return host ? ROUNDING : HARMLESS;
    case TR_CHANGE_KERNELS:
        return host ? HARMLESS : ROUNDING;
    case TR_CHANGE_SUMS:
        return c->t->topology->size > 1 ? ROUNDING : HARMLESS;
    case TR_CHANGE_EVALUATIONS:
        return now->train.schedule.kind.which == TR_SCHEDULE_PLATEAU ? NUMBERS : HARMLESS;
    case TR_CHANGE_LENGTH:
        return follows_length(now) || follows_length(c->was) ? NUMBERS : HARMLESS;
    default:
        return is_beginning(path) ? HARMLESS : NUMBERS;
    }
}

/* Whether the values differ because memory chose one of them, in the place of what the other is. */
static bool asked_alike(const comparison *c, const char *path, const char *before,
                        const char *after)
{
    const char *was = tr_config_asked(c->was, path), *now = tr_config_asked(c->t->config, path);
    return (was || now) && strcmp(was ? was : before, now ? now : after) == 0;
}

static tr_status differs(void *ctx, const char *path, const tr_node *was, const tr_node *now)
{
    comparison *c = ctx;
    char before[80], after[80];
    const tr_change change = tr_config_change(path);
    effect e = effect_of(c, path, change);
    c->changed = true;
    c->shares = c->shares || change == TR_CHANGE_THREADS;
    tr_node_brief(was, before, sizeof before);
    tr_node_brief(now, after, sizeof after);
    if (e == NUMBERS && c->done && asked_alike(c, path, before, after)) e = HARMLESS;
    if (e == NUMBERS && !c->trained[0] && change != TR_CHANGE_MACHINE) {
        snprintf(c->trained, sizeof c->trained, "%s", path);
        snprintf(c->before, sizeof c->before, "%s", before);
        snprintf(c->after, sizeof c->after, "%s", after);
    }
    if (c->say)
        tr_log(e <= ROUNDING ? TR_LOG_INFO : TR_LOG_WARN, "%s: %s: %s, was %s", words[e], path,
               after, before);
    if (e == REFUSED && c->st == TR_OK)
        c->st = tr_config_fail(c->t->config, path,
                               "%s, was %s: the run began from other values, and cannot begin anew "
                               "in the middle: leave the key as it was, or start over (--force)",
                               after, before);
    return TR_OK;
}

/* The keys are as they were, and cores are others, or among how many ranks of a node they are
 * dealt. */
static void say_threads(const comparison *c, const tr_train_state *state)
{
    const uint64_t now = (uint64_t)c->t->affinity.threads, was = state->threads;
    if (!c->t->backend->host || c->shares || was == 0 || was == now) return;
    tr_log(TR_LOG_INFO, "%s: threads of a rank: %llu, was %llu", words[ROUNDING],
           (unsigned long long)now, (unsigned long long)was);
}

/* ---- The learning rate ----------------------------------------------------------------------- */

/* How the schedule can be had to begin anew; "" where it cannot. */
static void advise(const tr_trainer *t, char *text, size_t size)
{
    static const char *const names[] = {[TR_SCHEDULE_COSINE] = "cosine",
                                        [TR_SCHEDULE_LINEAR] = "linear",
                                        [TR_SCHEDULE_POLYNOMIAL] = "polynomial",
                                        [TR_SCHEDULE_ONE_CYCLE] = "one_cycle"};
    const size_t kind = (size_t)t->config->train.schedule.kind.which;
    text[0] = 0;
    if (kind >= TR_COUNT(names) || !names[kind] || t->config->train.schedule.o.restart.count > 0)
        return;
    snprintf(text, size,
             "; train.schedule.%s.restart=[%llu] leaves the curve so far as it was and begins it "
             "anew here",
             names[kind], (unsigned long long)t->state.step);
}

/* Steps of an epoch as the checkpoint's config has them; 0: not known. */
static uint64_t epoch_before(const tr_config *was, const tr_train_state *state)
{
    return tr_steps_per_epoch(state->samples, was->train.batch, was->data.drop_last);
}

/* Steps of all that it asked for; 0: not known. */
static uint64_t total_before(const tr_config *was, const tr_train_state *state)
{
    return was->train.steps > 0 ? (uint64_t)was->train.steps
                                : (uint64_t)was->train.epochs * epoch_before(was, state);
}

/* Where the rate of the next step is not what it would have been. */
static void say_jump(const comparison *c, const tr_train_state *state)
{
    const tr_trainer *t = c->t;
    const tr_config *was = c->was;
    const uint64_t step = state->step;
    const uint64_t epoch = epoch_before(was, state), total = total_before(was, state);
    char advice[200];
    if (epoch == 0 || step == 0 || step >= t->total_steps) return;
    const double last = tr_schedule_lr(was, state, step - 1, total, epoch);
    const double planned = tr_schedule_lr(was, state, step, total, epoch);
    const double next = tr_schedule_lr(t->config, state, step, t->total_steps, t->steps_per_epoch);
    if (fabs(next - planned) <= 0.01 * fmax(next, planned)) return;
    advise(t, advice, sizeof advice);
    tr_log(TR_LOG_WARN, "the learning rate goes from %g at step %llu to %g%s%s", last,
           (unsigned long long)step, next,
           step >= total ? ": the schedule of before was through" : "", advice);
}

/* ---- The whole ------------------------------------------------------------------------------- */

static tr_status parse(const char *text, tr_config **out)
{
    tr_variant_def stages[TR_STAGES + 1];
    tr_stages_known(stages);
    return tr_config_open("the checkpoint's config", text, strlen(text), NULL, 0, stages, out);
}

/* As this version resolves it: keys that it did not have yet are no change. */
static tr_status compare_texts(comparison *c, const char *was)
{
    tr_status st;
    tr_document a = {0}, b = {0};
    TR_TRY(tr_document_parse("the checkpoint's config", was, strlen(was), &a));
    TR_TRY(tr_document_parse("the config", c->t->config_text, strlen(c->t->config_text), &b));
    TR_TRY(tr_node_compare("", a.root, b.root, differs, c));
    st = c->st;
out:
    tr_document_close(&a);
    tr_document_close(&b);
    return st;
}

/* What was trained in full, by its own config and by this one, does not come to be as other keys
 * would have made it. */
static tr_status check_trained(const comparison *c, const tr_train_state *was)
{
    if (!c->trained[0] || !c->done) return TR_OK;
    return tr_config_fail(c->t->config, c->trained,
                          "%s, was %s: the training is done, at step %llu of %llu, and stays as it "
                          "was: leave the key, train longer (train.steps), give a stage keys of "
                          "its own (finetune: {train: ...}), or start over (--force)",
                          c->after, c->before, (unsigned long long)was->step,
                          (unsigned long long)c->t->total_steps);
}

tr_status tr_resume_compare(const tr_trainer *t, const tr_train_state *was, const char *text,
                            bool say, bool *changed)
{
    tr_status st = TR_OK;
    tr_config *config = NULL;
    char *resolved = NULL;
    *changed = true;
    if (parse(text, &config) != TR_OK) {
        if (say)
            tr_log(TR_LOG_WARN, "what changed since the checkpoint is not known: %s",
                   tr_last_error()->text);
        return TR_OK;
    }
    comparison c = {.t = t, .was = config, .say = say};
    c.done = was->step >= t->total_steps && was->step >= total_before(config, was);
    TR_TRY(tr_config_text(config, &resolved));
    TR_TRY(compare_texts(&c, resolved));
    *changed = c.changed;
    if (say) TR_TRY(check_trained(&c, was));
    if (say) say_threads(&c, was);
    if (say) say_jump(&c, was);
out:
    free(resolved);
    tr_config_close(config);
    return st;
}

/* Rank 0. */
static bool model_is_there(const tr_trainer *t, const char *path)
{
    tr_config *made_with = NULL;
    tr_train_state state;
    char *text = NULL;
    const bool best = tr_trainer_choice(t).weights == TR_RESULT_BEST;
    bool is = access(path, F_OK) == 0 && tr_store_verify(path, &state) == TR_OK &&
              state.step == (best ? t->state.best_step : t->state.step) &&
              tr_store_config(path, &text) == TR_OK && parse(text, &made_with) == TR_OK;
    is = is && made_with->train.result == t->config->train.result &&
         (made_with->train.ema > 0) == (t->config->train.ema > 0);
    tr_config_close(made_with);
    tr_free(text);
    return is;
}

tr_status tr_resume_complete(tr_trainer *t, bool *is)
{
    tr_status st = TR_OK;
    char *path = NULL;
    const bool looks = t->topology->rank == 0 && t->resume && t->folder && !t->metrics;
    *is = false;
    if (looks) tr_comm_busy(t->comm, TR_BUSY_READS);
    if (looks) {
        path = tr_sprintf("%s/model.h5", tr_run_folder_path(t->folder));
        if (path)
            *is = model_is_there(t, path);
        else
            st = tr_last_status();
    }
    tr_free(path);
    st = tr_agree(t->comm, st, NULL);
    tr_comm_busy(t->comm, TR_BUSY_NOT);
    return st == TR_OK ? tr_comm_broadcast(t->comm, is, sizeof *is, 0) : st;
}
