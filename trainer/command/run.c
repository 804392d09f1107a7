/* `trainer CONFIG`, `trainer sweep FILE` and commands on a run file (STAGE, evaluate): MPI up,
 * config agreed, the work done, one exit status for all. */
#include "trainer/loop/trainer.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/store/store.h"
#include "trainer/arguments/arguments.h"
#include "trainer/command/by_hand.h"
#include "trainer/command/commands.h"
#include "trainer/command/sample.h"
#include "trainer/device/advice.h"
#include "trainer/loop/signals.h"
#include "trainer/pipeline/job.h"
#include "trainer/pipeline/pipeline.h"
#include "trainer/sweep/sweep.h"

/* Started by something that speaks to MPI? A plain start is one rank, and needs no MPI. */
static bool launched(void)
{
    static const char *const names[] = {
        "OMPI_COMM_WORLD_SIZE", "PMIX_RANK",    "PMI_RANK", "PMI_SIZE",
        "MPI_LOCALRANKID",      "SLURM_STEP_ID"};
    for (size_t i = 0; i < TR_COUNT(names); i++)
        if (getenv(names[i])) return true;
    return false;
}

/* Without a config: what it takes to agree on one. */
static tr_status open_comm(bool mpi, const tr_config *c, double start_timeout,
                           tr_watchdog *watchdog, tr_comm **out)
{
    tr_comm_options o = {
        .mpi = mpi, .timeout = 60, .start_timeout = start_timeout, .watchdog = watchdog};
    if (c) {
        o.stop_asked = tr_signals_pending;
        o.shared_allowed = c->run.collectives != TR_COLL_MPI;
        o.shared_required = c->run.collectives == TR_COLL_SHARED;
        o.timeout = c->run.timeout;
        o.start_timeout = c->run.start_timeout;
    }
    return tr_comm_open(&o, out);
}

/* *Collective.* A word that is neither a command's name nor a file's is told as such. */
static tr_status open_config(const tr_arguments *a, tr_comm *comm, tr_config **out)
{
    const bool word = !a->run_file && tr_comm_topology(comm)->rank == 0;
    tr_status st;
    TR_TRY(tr_arguments_agree(a, comm));
    TR_TRY(tr_agree(comm, word ? tr_command_check_file(a->config) : TR_OK, NULL));
    st = tr_arguments_config(a, comm, out);
out:
    return st;
}

/* A config's, a sweep's, or a stage's; not a look at a model. */
static bool starts_job(const tr_arguments *a)
{
    return !a->on_run_file || a->on_run_file == tr_stage_by_hand;
}

/* *Collective.* */
static tr_status work(const tr_arguments *a, tr_comm *comm, tr_config *c, tr_sweep *sweep,
                      bool *agreed)
{
    tr_status st;
    *agreed = true;
    (void)tr_mem_rss_first();
    TR_TRY(tr_comm_warn_of_hooks(comm));
    if (starts_job(a) && !a->quiet) tr_comm_warn_of_leftovers(comm);
    if (sweep) return tr_sweep_run(sweep, comm, agreed);
    TR_TRY(tr_agree(comm, tr_device_check(c), NULL));
    const tr_job job = {.comm = comm,
                        .config = c,
                        .resume = a->resume,
                        .force = a->force,
                        .quiet = a->quiet,
                        .from = a->from,
                        .until = a->until};
    st = a->on_run_file ? a->on_run_file(a, comm, c, agreed) : tr_job_run(&job, agreed);
out:
    return st;
}

/* *Collective.* One rank says it; all end alike. Where ranks can no longer agree, the job is
 * ended. */
static int end(tr_comm *control, tr_comm *comm, tr_status st, bool agreed)
{
    if (!agreed && comm) (void)tr_comm_break(comm, st); /* peers may wait for us */
    const bool broken = tr_comm_broken(control) || (comm && tr_comm_broken(comm));
    bool said = !agreed;
    tr_comm *last = broken && comm ? comm : control;
    if (agreed || broken)
        st = tr_agree(last, st, &said); /* Local once broken: one rank a node speaks */
    if (st != TR_OK && said) tr_log_failure(st == TR_STOPPED ? TR_LOG_INFO : TR_LOG_ERROR);
    if (!agreed || broken || tr_comm_broken(control))
        tr_comm_abort(last, st == TR_OK ? 1 : tr_status_exit_code(st));
    return tr_status_exit_code(st);
}

/* MPI_Init and MPI_Finalize, in which peers cannot be looked at. */
static void watch_mpi(tr_watchdog *w, double seconds, const char *call)
{
    char host[64] = "";
    const int rank = tr_launched_rank();
    gethostname(host, sizeof host - 1);
    tr_watchdog_watch(w, seconds + 0.2 * (rank < 20 ? rank : 20), 1,
                      "trainer: error: rank %d (%s): %s took longer than %.0f s "
                      "(run.start_timeout): some rank %s, was stopped, or cannot be reached",
                      rank, host, call, seconds,
                      strcmp(call, "MPI_Init") == 0 ? "did not start" : "did not end");
}

static int run_under_mpi(const tr_arguments *a, bool mpi, tr_watchdog *watchdog)
{
    tr_config *own = NULL;
    const tr_config *config = NULL;
    tr_sweep *sweep = NULL;
    tr_comm *control = NULL, *comm = NULL;
    int status = 1;
    bool agreed = true;
    double limit = tr_arguments_start_timeout(a);
    tr_status st = TR_OK;
    int provided = MPI_THREAD_FUNNELED;
    tr_signals_tell_bus_errors();
    if (mpi) {
        watch_mpi(watchdog, limit, "MPI_Init");
        if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return 1;
        tr_watchdog_rest(watchdog);
    }
    tr_signals_install();
    st = provided >= MPI_THREAD_FUNNELED
             ? open_comm(mpi, NULL, limit, watchdog, &control)
             : TR_FAIL(TR_IO, "this MPI allows no threads beside the one that calls it "
                              "(MPI_THREAD_FUNNELED), which the data loader needs");
    if (st != TR_OK) {
        tr_log(TR_LOG_ERROR, "%s", tr_last_error()->text);
        goto out;
    }
    tr_log_init(tr_comm_topology(control)->rank, tr_comm_topology(control)->size,
                a->quiet ? TR_LOG_WARN : TR_LOG_INFO);
    st = a->sweep ? tr_sweep_open(a, control, &sweep) : open_config(a, control, &own);
    if (st == TR_OK) config = sweep ? tr_sweep_base(sweep) : own;
    if (st == TR_OK) limit = config->run.start_timeout;
    if (st == TR_OK) st = open_comm(mpi, config, limit, watchdog, &comm);
    if (st == TR_OK) st = work(a, comm, own, sweep, &agreed);
    status = end(control, comm, st, agreed);
out:
    tr_comm_close(comm);
    tr_comm_close(control);
    tr_sweep_close(sweep);
    tr_config_close(own);
    if (mpi) {
        watch_mpi(watchdog, limit, "MPI_Finalize");
        MPI_Finalize();
        tr_watchdog_rest(watchdog);
    }
    return status;
}

static int start(tr_arguments *a, tr_status st)
{
    tr_watchdog *watchdog = NULL;
    if (st != TR_OK) return tr_command_end(st);
    tr_store_accept_unverified(a->accept_unverified);
    const bool mpi = launched();
    if (mpi) st = tr_watchdog_open(&watchdog);
    const int status = st == TR_OK ? run_under_mpi(a, mpi, watchdog) : tr_command_end(st);
    tr_watchdog_close(watchdog);
    tr_arguments_free(a);
    return status;
}

int tr_cmd_run(int argc, char **argv)
{
    tr_arguments a;
    tr_status st = tr_arguments_parse(
        argc, argv, "--resume --force --quiet --from --until --accept-unverified", &a);
    if (st == TR_USAGE && argv[1][0] != '-') { /* arguments of a command that is mistyped */
        const tr_status word = tr_command_check_file(argv[1]);
        if (word != TR_OK) st = word;
    }
    return start(&a, st);
}

int tr_cmd_stage(int argc, char **argv)
{
    tr_arguments a;
    const tr_status st = tr_arguments_parse_stage(argc, argv, &a);
    if (st == TR_OK) a.on_run_file = tr_stage_by_hand;
    return start(&a, st);
}

int tr_cmd_evaluate(int argc, char **argv)
{
    tr_arguments a;
    const tr_status st = tr_arguments_parse_run_file(
        argc, argv, "--json -o --force --quiet --accept-unverified", &a);
    if (st == TR_OK) a.on_run_file = tr_evaluate_by_hand;
    return start(&a, st);
}

int tr_cmd_predict(int argc, char **argv)
{
    tr_arguments a;
    const tr_status st = tr_arguments_parse_run_file(
        argc, argv, "-o --data --top --raw --force --quiet --accept-unverified", &a);
    if (st == TR_OK) a.on_run_file = tr_predict_by_hand;
    return start(&a, st);
}

int tr_cmd_sample(int argc, char **argv)
{
    tr_arguments a = {0};
    tr_sample_options o = {0};
    char flags[256] = "--quiet --accept-unverified";
    tr_status st = TR_OK;
    tr_sample_flags(flags, sizeof flags);
    TR_TRY(tr_sample_options_parse(&argc, argv, &o));
    TR_TRY(tr_arguments_parse_run_file(argc, argv, flags, &a));
    a.on_run_file = tr_sample_by_hand;
    a.options = &o;
out:;
    const int status = start(&a, st);
    tr_arguments_free(&a);
    tr_sample_options_free(&o);
    return status;
}

int tr_cmd_sweep(int argc, char **argv)
{
    tr_arguments a;
    const tr_status st =
        tr_arguments_parse(argc, argv, "--resume --force --quiet --accept-unverified --schema", &a);
    if (st == TR_OK && a.schema) {
        tr_sweep_schema(stdout);
        tr_arguments_free(&a);
        return tr_command_end(TR_OK);
    }
    if (st == TR_OK) a.sweep = true;
    return start(&a, st);
}
