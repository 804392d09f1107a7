/* `trainer plan`: opens dry sessions on the backend that a run would take (op lists, kernels and
 * offsets, but no memory for them), chooses for them as a run would, and judges whether that
 * fits. */
#include "trainer/plan/plan.h"

#include <stdlib.h>

#include "runtime/base/numbers.h"
#include "runtime/config/memory.h"
#include "trainer/models/train_model.h"
#include "trainer/plan/choose.h"
#include "trainer/plan/shares.h"

/* A program of a run so far: this one, and what MPI takes where ranks start it, which it does not
 * here. */
static size_t program(const tr_planned *r)
{
    const size_t mpi = (size_t)8 << 20;
    return tr_program_start(r->rss_before + (r->on.topology.size > 1 ? mpi : 0));
}

/* What a limit on memory leaves to choose is chosen as a run would: *chosen, for r. */
static tr_status choose(tr_planned *r, size_t memory, tr_config *chosen, tr_choice *choice)
{
    tr_status st;
    char line[400], of[64];
    const tr_config *c = r->c;
    const tr_space space = tr_space_of(r->on.backend);
    if (!tr_chooses(c)) return TR_OK;
    const size_t have = memory > 0 ? memory : space == TR_SPACE_HOST ? tr_mem_available() : 0;
    const size_t given = tr_memory_limit_of(c);
    if (have == 0 && (given == 0 || given == TR_MEMORY_AUTO)) {
        fprintf(r->notes, "what a GPU has is not known here: nothing is chosen for it; "
                          "--memory 80GB\n");
        return TR_OK;
    }
    TR_TRY(tr_plan_choose(r, space, tr_memory_limit(c, space, have),
                          tr_memory_programs(c, space, r->m, program(r), r->on.topology.local_size),
                          choice));
    tr_choice_describe(r->m, choice, line, sizeof line);
    tr_choice_of(c, of, sizeof of);
    fprintf(r->notes, "%s: %s%s\n", of, choice->fits ? "" : "nothing fits; the least: ", line);
    TR_TRY(tr_choice_apply(r, choice, chosen));
out:
    return st;
}

/* --largest. --memory is a limit like that of the config, and counted as a run counts it; the
 * smaller one holds. */
static tr_status report_largest(const tr_planned *r, const tr_plan_request *q, FILE *to)
{
    tr_status st;
    tr_largest l;
    char size[32];
    tr_config c = *r->c;
    const tr_space space = tr_space_of(r->on.backend);
    const size_t own = tr_memory_limit_of(&c);
    const bool given = own > 0 && own != TR_MEMORY_AUTO;
    TR_NEED(given || q->memory > 0 || space == TR_SPACE_HOST, TR_USAGE,
            "--largest: what a GPU has is not known here: give --memory 80GB");
    snprintf(size, sizeof size, "%zuB", q->memory);
    if (q->memory > 0 && (!given || q->memory < own)) c.run.memory_limit = size;
    const size_t limit = tr_memory_limit(&c, space, tr_mem_available());
    TR_TRY(tr_plan_largest(
        r, space, limit, tr_memory_programs(&c, space, r->m, program(r), r->on.topology.local_size),
        &l));
    tr_plan_largest_write(r, &l, limit, q->form, to);
    TR_NEED(l.batch > 0 || l.recomputed > 0 || l.micro_batch > 0, TR_MEMORY,
            "--largest: not one sample a rank fits %s",
            tr_format_bytes((double)limit, size, sizeof size));
out:
    return st;
}

static size_t rest_of(size_t memory, size_t programs)
{
    return memory > programs ? memory - programs : 0;
}

/* A GPU's memory is not known where none is; a node's is this machine's. Of what this one has left,
 * its own program is no part any more. A limit that something was chosen for counts where it leaves
 * less. */
static tr_status judge(const tr_planned *r, size_t memory, const tr_choice *choice, tr_fit *f)
{
    const tr_space space = tr_space_of(r->on.backend);
    const bool given = memory > 0;
    const int ranks = r->on.topology.local_size, starting = ranks - (given ? 0 : 1);
    size_t have = given ? memory : space == TR_SPACE_HOST ? tr_mem_available() : 0;
    size_t programs = tr_program_bytes(space, r->m, program(r), starting, ranks);
    const bool limited =
        choice->limit > 0 &&
        (have == 0 || rest_of(choice->limit, choice->programs) < rest_of(have, programs));
    *f = (tr_fit){.space = space, .need = tr_planned_need(r, space)};
    if (limited) {
        have = choice->limit;
        programs = choice->programs;
    }
    if (have == 0) return TR_OK;
    const tr_status st = tr_plan_fit(r, space, have, programs, f);
    f->given = given;
    f->limited = limited;
    if (limited && !choice->fits) f->least = tr_choice_least(choice);
    return st;
}

static tr_status write_report(const tr_planned *r, const tr_fit *f, const char *notes,
                              tr_plan_form form, FILE *to)
{
    if (form == TR_PLAN_JSON) {
        tr_plan_write_json(r, f, notes, to);
        return TR_OK;
    }
    for (const char *s = notes, *end; *s; s = end + 1) {
        end = strchr(s, '\n');
        fprintf(to, "note: %.*s\n\n", (int)(end - s), s);
    }
    if (form == TR_PLAN_TEXT) return tr_plan_write_text(r, f, to);
    tr_plan_write_summary(r, f, to);
    return TR_OK;
}

/* Where the report says that the job does not fit, so does the status, which scripts go by; not of
 * a job that is to train all the same. */
static tr_status refuse(const tr_config *c, const tr_fit *f)
{
    char have[32];
    if (!f->known || f->fits || c->run.overcommit_memory) return TR_OK;
    if (f->limited) return tr_choice_refuse(c, f->space, f->have);
    return TR_FAIL(TR_MEMORY, "%s: training does not fit %s",
                   f->given ? "--memory" : "what is available here now",
                   tr_format_bytes((double)f->have, have, sizeof have));
}

tr_status tr_plan_report(const tr_config *c, tr_model *m, const tr_plan_request *q, FILE *to)
{
    tr_status st = TR_OK;
    tr_planned r = {.c = c, .m = m, .rss_before = tr_mem_rss()};
    tr_fit fit;
    tr_config chosen;
    tr_choice choice = {0};
    int *segments = NULL;
    char *notes = NULL;
    size_t length;
    TR_NEED(r.notes = open_memstream(&notes, &length), TR_MEMORY, "no memory for notes");
    TR_TRY(tr_assume(c, q->ranks, q->nodes, &r.on));
    TR_TRY(tr_offload_check(c, r.on.backend));
    TR_TRY(tr_train_buckets(c, r.on.backend, m));
    TR_TRY(r.on.backend->open(&r.on.options, &r.backend_ctx));
    if (r.on.note[0]) fprintf(r.notes, "%s\n", r.on.note);
    r.micro_batches = tr_micro_batches(c, q->ranks);
    TR_TRY(tr_segments_read(c, m, &segments));
    r.segments = segments;
    tr_planned_count(&r);
    TR_TRY(tr_planned_teacher(&r));
    if (q->largest) {
        st = report_largest(&r, q, to);
        goto out;
    }
    TR_TRY(choose(&r, q->memory, &chosen, &choice));
    TR_TRY(tr_planned_sessions(&r));
    TR_TRY(tr_planned_evaluation(&r));
    if (tr_micro_batch_matters(
            r.c, tr_plan_graph(tr_session_plan(r.both, TR_MODE_TRAIN, r.train_batch))))
        fprintf(r.notes, TR_MICRO_BATCH_ADVICE "\n", r.micro_batches);
    tr_planned_sketches_note(&r);
    TR_TRY(judge(&r, q->memory, &choice, &fit));
    TR_NEED(fflush(r.notes) == 0, TR_MEMORY, "no memory for notes");
    TR_TRY(write_report(&r, &fit, notes, q->form, to));
    st = refuse(c, &fit);
out:
    tr_planned_close_sessions(&r);
    tr_planned_close_data(&r);
    tr_teacher_close(r.teacher);
    tr_comm_close(r.comm);
    if (r.backend_ctx) r.on.backend->close(r.backend_ctx);
    tr_choice_free(&choice);
    tr_free(segments);
    if (r.notes) fclose(r.notes);
    free(notes);
    return st;
}
