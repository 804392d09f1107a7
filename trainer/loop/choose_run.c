/* A run under a limit on memory: rank 0 chooses for the ranks that have the least room, all take
 * what it says. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/crc32c.h"
#include "runtime/config/chosen.h"
#include "runtime/config/memory.h"
#include "trainer/loop/resolve.h"
#include "trainer/loop/run_fit.h"
#include "trainer/models/chain.h"
#include "trainer/plan/choose.h"
#include "trainer/plan/shares.h"
#include "trainer/stages/stages.h"

/* *Collective.* What rank 0's node, or GPU, may count on where no other has less for a rank. */
static tr_status least_available(const tr_trainer *t, tr_space space, size_t *have)
{
    tr_status st;
    const int size = t->topology->size;
    const size_t local = space == TR_SPACE_HOST ? (size_t)t->topology->local_size : 1;
    uint64_t own = tr_planned_available(t, space) / local, least = UINT64_MAX;
    TR_TRY(tr_comm_all_gather(t->comm, &own, t->gathered, sizeof own));
    for (int i = 0; i < size; i++)
        if (t->gathered[i] < least) least = t->gathered[i];
    *have = least > SIZE_MAX / local ? SIZE_MAX : least * local;
out:
    return st;
}

/* Rank 0. The micro-batch, or batch of evaluations, that a resumed run began with. */
static tr_status keep(const tr_trainer *t, const char *path, int64_t *value)
{
    char *text = NULL;
    const tr_status st = tr_config_kept(t->config->output, path, &text);
    const char *equals = text ? strchr(text, '=') : NULL;
    const long long n = equals ? strtoll(equals + 1, NULL, 10) : 0;
    if (st == TR_OK && n > 0) *value = n;
    tr_free(text);
    return st;
}

/* Rank 0. `c`: t->config with that. */
static tr_status keep_all(const tr_trainer *t, tr_config *c)
{
    tr_status st = TR_OK;
    *c = *t->config;
    if (!t->resume) return TR_OK;
    if (c->train.accumulate == 0 && c->train.micro_batch <= 0)
        TR_TRY(keep(t, "train.micro_batch", &c->train.micro_batch));
    if (c->train.eval.batch == 0) TR_TRY(keep(t, "train.eval.batch", &c->train.eval.batch));
out:
    return st;
}

/* Rank 0. What is short, the smallest limit that would do, and what takes less than the least that
 * was found. */
static tr_status refuse(tr_planned *r, tr_space space, const tr_choice *choice)
{
    tr_status st;
    tr_fit fit;
    char text[700] = "";
    size_t n = 0;
    tr_config of;
    const tr_config *own = r->c;
    TR_TRY(tr_choice_apply(r, choice, &of));
    TR_TRY(tr_planned_sessions(r));
    TR_TRY(tr_plan_fit(r, space, choice->limit, choice->programs, &fit));
    for (int i = 0; i < fit.nadvice && n < sizeof text; i++) {
        char need[32];
        const size_t all = fit.advice[i].need + choice->programs;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %s%s", i ? ", " : "; less take ",
                              fit.advice[i].set, tr_format_bytes((double)all, need, sizeof need),
                              fit.advice[i].fits ? " (fits)" : "");
    }
    const char *about = tr_about(space);
    const size_t least = tr_choice_least(choice) >> 20;
    st = tr_choice_refuse(r->c, space, choice->limit);
    if (tr_memory_limit_of(r->c) > 0)
        (void)tr_fail_behind(st, "%s%s%s: the smallest limit that would do is %s%zuMiB%s",
                             choice->recompute ? ", whatever is recomputed" : "",
                             choice->offload ? ", the optimizer's state in host memory" : "",
                             choice->micro
                                 ? ", with one sample at once"
                                 : " (micro-batches are as the config, or batchnorm, wants them)",
                             about, least, text);
    else
        (void)tr_fail_behind(st,
                             ", %s (train.micro_batch: max): it takes %s%zuMiB%s; "
                             "run.memory_limit=auto%s looks for layers to recompute, too",
                             choice->micro ? "with one sample at once"
                                           : "in the micro-batches that the run began with",
                             about, least, text,
                             r->c->train.recompute.kind.which == TR_RECOMPUTE_AUTO
                                 ? ""
                                 : " with train.recompute=auto");
out:
    r->c = own;
    return st;
}

/* Rank 0. What a training needs that stage `place` will make of the same model, beside so many
 * networks. */
static tr_status judge_later(const tr_trainer *t, const tr_planned *r, size_t place,
                             const tr_node *train, size_t networks, tr_space space, size_t limit)
{
    tr_status st;
    tr_choice choice = {0};
    tr_config *c = NULL;
    tr_model *m = NULL;
    int *segments = NULL;
    TR_TRY(tr_config_derive(t->config, &(tr_overrides){.train = train}, &c));
    if (!tr_chooses(c)) goto out;
    TR_TRY(tr_train_model(c, &m));
    TR_TRY(tr_train_buckets(c, t->backend, m));
    TR_TRY(tr_segments_read(c, m, &segments));
    tr_planned v = *r;
    v.c = c;
    v.m = m;
    v.segments = segments;
    v.micro_batches = tr_micro_batches(c, t->topology->size);
    const size_t beside = networks * (m->flat_count + m->state_count) * sizeof(float),
                 programs =
                     tr_memory_programs(c, space, m, tr_program_start(t->rss_before) + beside,
                                        t->topology->local_size);
    TR_TRY(tr_plan_choose(&v, space, limit, programs, &choice));
    if (choice.fits) goto out;
    st = refuse(&v, space, &choice);
    tr_planned_close_sessions(&v);
    if (st == TR_MEMORY)
        st = tr_fail_before(st, "stage %02zu-%s: ", place, tr_stage_at(t->config, place)->name);
out:;
    const tr_error why = *tr_last_error();
    tr_choice_free(&choice);
    tr_free(segments);
    tr_model_close(m);
    tr_config_close(c);
    tr_set_error(&why);
    return st;
}

/* Rank 0. What stages behind this training train, as far as their model is known. */
static tr_status judge_stages(const tr_trainer *t, const tr_planned *r, tr_space space,
                              size_t limit)
{
    tr_status st = TR_OK;
    const tr_list *p = &t->config->pipeline;
    for (size_t i = 1; i < p->count && st == TR_OK; i++) {
        const tr_node *train = NULL;
        const tr_stage *s = tr_stage_at(t->config, i);
        const size_t networks = s->trains ? s->trains(p->items[i].options, &train) : 0;
        if (networks > 0) st = judge_later(t, r, i, train, networks, space, limit);
        if (s->makes) break;
    }
    return st;
}

/* Rank 0. *text: overrides; allocated. */
static tr_status choose(tr_trainer *t, tr_space space, size_t have, char **text)
{
    tr_status st;
    tr_planned r = {0};
    tr_choice choice = {0};
    tr_config c;
    char line[400], of[64];
    const size_t limit = tr_memory_limit(t->config, space, have);
    const size_t programs = tr_memory_programs(t->config, space, t->model,
                                               tr_program_start(t->rss_before) + tr_held_beside(t),
                                               t->topology->local_size);
    TR_TRY(keep_all(t, &c));
    TR_TRY(tr_planned_of_run(t, &r));
    r.c = &c;
    r.micro_batches = tr_micro_batches(&c, t->topology->size);
    TR_TRY(tr_plan_choose(&r, space, limit, programs, &choice));
    st = choice.fits ? judge_stages(t, &r, space, limit) : refuse(&r, space, &choice);
    if (st == TR_MEMORY && t->config->run.overcommit_memory) {
        const char *why = tr_last_error()->text;
        if (tr_comm_first_to_say(t->comm, TR_NOTICE_FIT, tr_crc32c(0, why, strlen(why))))
            tr_log(TR_LOG_WARN, "%s", why);
        st = TR_OK;
    }
    TR_TRY(st);
    tr_choice_describe(t->model, &choice, line, sizeof line);
    tr_choice_of(t->config, of, sizeof of);
    tr_log(TR_LOG_INFO, "%s: %s", of, line);
    if (c.train.micro_batch > 0 && !choice.micro) {
        choice.micro = t->config->train.micro_batch <= 0;
        choice.at_once = c.train.micro_batch;
    }
    if (choice.eval == 0 && t->config->train.eval.batch == 0) choice.eval = c.train.eval.batch;
    st = tr_choice_overrides(t->config, t->model, &choice, text);
out:
    tr_choice_free(&choice);
    tr_planned_leave_run(t, &r);
    return st;
}

/* Lines of `text` are cut apart. */
static tr_status take(tr_trainer *t, char *text)
{
    tr_status st = TR_OK;
    const char *lines[2 * TR_CHOSEN_MOST];
    tr_overrides all = {.texts = lines};
    for (char *line; all.count < TR_COUNT(lines) && (line = strsep(&text, "\n")) && *line;)
        lines[all.count++] = line;
    TR_TRY(tr_config_derive(t->config, &all, &t->chosen));
    TR_TRY(tr_config_text(t->chosen, &t->chosen_text));
    t->config = t->chosen;
    t->config_text = t->chosen_text;
    tr_free(t->segments);
    t->segments = NULL;
    TR_TRY(tr_segments_read(t->config, t->model, &t->segments));
    t->micro_batches = tr_micro_batches(t->config, t->topology->size);
out:
    return st;
}

tr_status tr_plan_choose_run(tr_trainer *t)
{
    tr_status st;
    size_t have;
    char *text = NULL;
    const tr_space space = tr_space_of(t->backend);
    const bool root = t->topology->rank == 0;
    TR_TRY(least_available(t, space, &have));
    tr_memory_watch_limit(t, tr_memory_limit(t->config, space, have));
    if (root) tr_comm_busy(t->comm, TR_BUSY_COMPUTES);
    st = root ? choose(t, space, have, &text) : TR_OK;
    tr_comm_busy(t->comm, TR_BUSY_NOT);
    TR_TRY(tr_agree(t->comm, st, NULL));
    TR_TRY(tr_comm_share_text(t->comm, &text));
    TR_TRY(tr_agree(t->comm, take(t, text), NULL));
out:
    tr_free(text);
    return st;
}
