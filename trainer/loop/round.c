#include "trainer/loop/round.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"
#include "optimize/round/round.h"
#include "trainer/arguments/arguments.h"
#include "trainer/plan/assume.h"
#include "trainer/stages/stages.h"

/* What is named in the log. */
enum { NAMED = 8 };

/* All that `auto` can come to: lanes of a CPU, tiles of a GPU. */
enum { MOST = 64, LEAST = 4 };

/* CPUs: rows of whole vectors. Tensor cores take 16-bit matrices by 8 (fp32 as TF32 by 4), and
 * tiles of 64 without a rest where that adds little. */
static tr_status rule_of(const tr_config *c, tr_round_rule *rule)
{
    tr_assumed a;
    tr_status st = TR_OK;
    const int64_t n = c->model.round_dims;
    const bool wide = c->train.precision == TR_PRECISION_FP32;
    *rule = (tr_round_rule){n, n, 1e18};
    if (n != TR_ROUND_AUTO) return TR_OK;
    TR_TRY(tr_assume(c, 1, 1, &a));
    const int64_t lanes = (tr_cpu_isa() >= TR_ISA_AVX512 ? 16 : 8) * (wide ? 1 : 2);
    *rule = a.backend->host ? (tr_round_rule){lanes, lanes / 2, 0.125}
                            : (tr_round_rule){MOST, wide ? LEAST : 8, 0.125};
out:
    return st;
}

/* The model that the run in the folder has; *out stays NULL: there is none. *Collective.* */
static tr_status open_kept(tr_comm *comm, const char *folder, tr_model **out)
{
    tr_variant_def stages[TR_STAGES + 1];
    char *path = tr_sprintf("%s/config.yaml", folder), *text = NULL;
    size_t n;
    tr_config *c = NULL;
    tr_status st = TR_OK;
    bool any = path && tr_comm_topology(comm)->rank == 0 && access(path, F_OK) == 0;
    TR_TRY(tr_agree(comm, path ? TR_OK : tr_last_status(), NULL));
    TR_TRY(tr_comm_broadcast(comm, &any, sizeof any, 0));
    if (!any) goto out;
    TR_TRY(tr_read_shared(path, false, comm, &text, &n));
    tr_stages_known(stages);
    st = tr_config_open(path, text, n, NULL, 0, stages, &c);
    if (st == TR_OK) st = tr_model_open(c, 0, out);
    TR_TRY(tr_agree(comm, st, NULL));
out:
    tr_config_close(c);
    tr_free(text);
    tr_free(path);
    return st;
}

static void say(const tr_round_row *rows, size_t n)
{
    char line[NAMED * 96];
    size_t used = 0;
    line[0] = 0;
    for (size_t i = 0; i < n && i < NAMED; i++)
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s.%s %lld -> %lld",
                                 i ? ", " : "", rows[i].layer, rows[i].option,
                                 (long long)rows[i].from, (long long)rows[i].to);
    if (n > NAMED) snprintf(line + used, sizeof line - used, ", and %zu more like that", n - NAMED);
    tr_log(TR_LOG_INFO, "model.round_dims: %s", n ? line : "nothing is to be rounded");
}

/* As the model is written, a file that training starts from goes with it. */
static tr_status derive(const tr_config *c, const tr_model *m, tr_config **out)
{
    tr_status st = TR_OK;
    char *from = NULL, *text = NULL;
    const char *texts[1];
    tr_overrides all = {.texts = texts};
    if (c->model.init_from) {
        TR_TRY(tr_node_line(c->model.init_from, &from));
        TR_HAVE(text = tr_sprintf("model.init_from=%s", from));
        texts[all.count++] = text;
    }
    st = tr_model_config(m, c, &all, out);
out:
    tr_free(from);
    tr_free(text);
    return st;
}

/* Local. */
static tr_status rounded(const tr_config *c, const tr_round_rule *rule, const tr_round_kept *kept,
                         bool tell, tr_config **out)
{
    tr_status st = TR_OK;
    tr_model *m = NULL, *made = NULL;
    tr_round_row *rows = NULL;
    size_t n;
    TR_TRY(tr_model_open(c, 0, &m));
    TR_TRY(tr_round_widths(m, rule, kept, &made, &rows, &n));
    if (tell) say(rows, n);
    if (made) TR_TRY(derive(c, made, out));
out:
    tr_free(rows);
    tr_model_close(made);
    tr_model_close(m);
    return st;
}

tr_status tr_config_round(tr_comm *comm, const tr_config *c, const char *kept, tr_config **out)
{
    tr_round_rule rule;
    tr_round_kept widths = {0};
    tr_model *there = NULL;
    tr_status st = TR_OK;
    *out = NULL;
    if (c->model.round_dims == 0) return TR_OK;
    st = rule_of(c, &rule);
    if (!comm) {
        TR_TRY(st);
        return rounded(c, &rule, NULL, true, out);
    }
    TR_TRY(tr_agree(comm, st, NULL));
    TR_TRY(tr_comm_broadcast(comm, &rule, sizeof rule, 0)); /* of unequal machines: one's */
    if (kept) TR_TRY(open_kept(comm, kept, &there));
    widths.model = there;
    if (c->model.round_dims == TR_ROUND_AUTO) widths.most = MOST, widths.least = LEAST;
    const bool root = tr_comm_topology(comm)->rank == 0;
    st = tr_agree(comm, rounded(c, &rule, there ? &widths : NULL, root, out), NULL);
out:
    tr_model_close(there);
    return st;
}
