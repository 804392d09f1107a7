/* What rank 0 tells the user: the start, records, evaluations, the end summary. */
#include "trainer/loop/trainer.h"

#include <math.h>
#include <string.h>

#include "runtime/base/numbers.h"
#include "runtime/config/measures.h"
#include "trainer/device/device.h"
#include "trainer/plan/offload.h"
#include "trainer/run/environment.h"
#include "trainer/run/history.h"

/* What it costs that the optimizer's slots lie in host memory; nothing where they do not. */
static void report_offload(const tr_trainer *t)
{
    const tr_memory_of of = {.config = t->config,
                             .model = t->model,
                             .backend = t->backend,
                             .topology = t->topology,
                             .nccl = t->nccl};
    tr_offload_cost c;
    char text[160], seconds[32], rates[2][32];
    double up, down;
    tr_offload_cost_of(&of, &c);
    if (c.slots == 0) return;
    tr_offload_describe(&c, text, sizeof text);
    if (tr_offload_link(t->backend, t->backend_ctx, &up, &down) != TR_OK) {
        tr_log(TR_LOG_INFO, "run.offload: %s; the link's rate was not measured: %s", text,
               tr_last_error()->text);
        return;
    }
    const double longer = fmax((double)c.up / up, (double)c.down / down);
    tr_log(TR_LOG_INFO, "run.offload: %s, %s at the %s/s up and %s/s down that were measured", text,
           tr_format_seconds(longer, seconds, sizeof seconds),
           tr_format_bytes(up, rates[0], sizeof rates[0]),
           tr_format_bytes(down, rates[1], sizeof rates[1]));
}

void tr_report_start(tr_trainer *t)
{
    char backend[128], parameters[32], buckets[64];
    tr_device_describe(t->backend, t->backend_ctx, t->affinity.threads, backend, sizeof backend);
    tr_log(TR_LOG_INFO, "%s: %d rank%s on %d node%s, %s", t->config->name, t->topology->size,
           t->topology->size == 1 ? "" : "s", t->topology->nodes,
           t->topology->nodes == 1 ? "" : "s", backend);
    if (!tr_config_deterministic(t->config, t->backend->host))
        tr_log(
            TR_LOG_INFO,
            "run.deterministic: %s: the last bits may differ from run to run. on: the same bits, "
            "at the price of NCCL's sums in switches (NVLS), timed algorithms (run.benchmark) and "
            "those that add parts of a sum in any order",
            t->config->run.deterministic == TR_DETERMINISTIC_AUTO ? "auto is off on GPUs" : "off");
    tr_describe_buckets(t->model, buckets, sizeof buckets);
    tr_log(TR_LOG_INFO, "collectives: %s; gradients: %s", t->topology->reason,
           tr_reducer_name(t->reducer));
    tr_log(TR_LOG_INFO,
           "%s parameters in %s; %llu training sample%s, batch %lld in %d micro-batch%s, %llu "
           "step%s an "
           "epoch, "
           "%llu step%s; run folder %s",
           tr_format_count((double)t->model->nparameters, parameters, sizeof parameters), buckets,
           (unsigned long long)tr_dataset_samples(t->train_data),
           tr_plural(tr_dataset_samples(t->train_data)), (long long)t->config->train.batch,
           t->micro_batches, t->micro_batches == 1 ? "" : "es",
           (unsigned long long)t->steps_per_epoch, tr_plural(t->steps_per_epoch),
           (unsigned long long)t->total_steps, tr_plural(t->total_steps), t->config->output);
    report_offload(t);
}

static tr_status open_metrics(tr_trainer *t)
{
    const tr_metrics_options o = {.folder = tr_run_folder_path(t->folder),
                                  .resume = t->resume,
                                  .step = t->from,
                                  .quiet = t->quiet,
                                  .total_steps = t->total_steps,
                                  .total_epochs = (t->total_steps + t->steps_per_epoch - 1) /
                                                  t->steps_per_epoch};
    return tr_metrics_open(&o, &t->metrics);
}

static tr_status record_start(tr_trainer *t)
{
    char sha[65];
    tr_environment e;
    tr_environment_look(t->backend, t->backend_ctx, t->affinity.threads, &e);
    tr_sha256_hex(t->config_text, strlen(t->config_text), sha);
    return tr_metrics_event(
        t->metrics, "start",
        "ranks:u nodes:u device:s backend:s collectives:s reducer:s threads:u parameters:u "
        "samples:u batch:u "
        "micro_batches:u steps_per_epoch:u total_steps:u step:u deterministic:b config_sha256:s "
        "version:s host:s cpu:s cores:u memory_mb:d kernel:s mpi:s hdf5:s",
        (uint64_t)t->topology->size, (uint64_t)t->topology->nodes, t->backend->name, e.backend,
        t->topology->reason, tr_reducer_name(t->reducer), (uint64_t)t->affinity.threads,
        (uint64_t)t->model->nparameters, tr_dataset_samples(t->train_data),
        (uint64_t)t->config->train.batch, (uint64_t)t->micro_batches, t->steps_per_epoch,
        t->total_steps, t->from, (int)tr_config_deterministic(t->config, t->backend->host), sha,
        TR_VERSION, e.host.name, e.host.cpu, (uint64_t)e.host.cores, e.host.memory / 1e6,
        e.host.kernel, e.mpi, e.hdf5);
}

tr_status tr_report_follow(tr_trainer *t)
{
    bool moved;
    if (t->topology->rank != 0) return TR_OK;
    const tr_status st = tr_run_folder_follow(t->folder, &moved);
    if (st != TR_OK || !moved) return st;
    tr_metrics_move(t->metrics, tr_run_folder_path(t->folder));
    tr_checkpointer_move(t->checkpointer, tr_run_folder_path(t->folder));
    return TR_OK;
}

tr_status tr_report_begin(tr_trainer *t)
{
    tr_status st = TR_OK;
    if (t->topology->rank != 0 || t->metrics) return st;
    tr_comm_busy(t->comm, TR_BUSY_WRITES);
    TR_TRY(tr_report_follow(t));
    TR_TRY(tr_run_folder_begin(t->folder, t->config_text));
    if (t->chosen) TR_TRY(tr_run_folder_config(t->folder, t->config_text));
    TR_TRY(open_metrics(t));
    TR_TRY(record_start(t));
out:
    tr_comm_busy(t->comm, TR_BUSY_NOT);
    return st;
}

static void add_times(tr_times *to, const tr_times *from)
{
    to->total += from->total;
    to->compute += from->compute;
    to->comm_wait += from->comm_wait;
    to->data_wait += from->data_wait;
    to->idle += from->idle;
    to->steps += from->steps;
    to->samples += from->samples;
    to->targets += from->targets;
    to->utilization += from->utilization;
    to->looks += from->looks;
}

/* Megabytes of the device in use, and percent; NaN where there is no device, or it does not say.
 * `held`: megabytes that this process allocated there. */
static void look_at_device(tr_trainer *t, double *memory, double *utilization, double *held)
{
    tr_device_load load;
    *memory = *utilization = *held = NAN;
    if (!t->backend->load || !t->backend->load(t->backend_ctx, &load)) return;
    *memory = (double)load.used / 1e6;
    *held = (double)load.held / 1e6;
    *utilization = load.utilization;
    if (isnan(load.utilization)) return;
    t->since.utilization += load.utilization;
    t->since.looks++;
}

/* Of sequences, targets a second; 0: there are none. */
static double tokens_per_s(const tr_trainer *t, const tr_times *times)
{
    return tr_is_sequence(t->model) && times->total > 0 ? (double)times->targets / times->total : 0;
}

/* Only a device shows how long it waited for the host. */
static double idle_of(const tr_trainer *t, const tr_times *times)
{
    return t->backend->host ? NAN : times->idle;
}

tr_status tr_report_step(tr_trainer *t)
{
    tr_times *s = &t->since;
    double n = s->steps > 0 ? (double)s->steps : 1;
    tr_step_record r = {
        .step = t->state.step,
        .epoch = (t->state.step - 1) / t->steps_per_epoch,
        .loss = t->loss,
        .lr = t->lr,
        .grad_norm = t->grad_norm,
        .loss_scale = t->state.loss_scale,
        .samples_per_s = s->total > 0 ? (double)s->samples / s->total : 0,
        .tokens_per_s = tokens_per_s(t, s),
        .step_ms = s->total / n * 1e3,
        .compute_ms = s->compute / n * 1e3,
        .comm_wait_ms = s->comm_wait / n * 1e3,
        .data_wait_ms = s->data_wait / n * 1e3,
        .idle_ms = idle_of(t, s) / n * 1e3,
        .skipped = t->skipped,
    };
    double held;
    look_at_device(t, &r.gpu_memory_mb, &r.gpu_utilization, &held);
    tr_history_add_step(&t->history, &(struct tr_history_step){
                                         .step = r.step,
                                         .epoch = r.epoch,
                                         .loss = r.loss,
                                         .lr = r.lr,
                                         .grad_norm = r.grad_norm,
                                         .seconds = t->state.seconds + tr_now() - t->started,
                                     });
    add_times(&t->all, s);
    memset(s, 0, sizeof *s);
    tr_status st = tr_report_follow(t);
    if (st == TR_OK) st = tr_metrics_step(t->metrics, &r);
    return st == TR_OK ? tr_memory_watch_record(t, "start") : st;
}

double tr_report_perplexity(const tr_trainer *t, double loss)
{
    return tr_trainer_measures(t, TR_METRIC_PERPLEXITY) ? exp(loss) : NAN;
}

double tr_report_bits_per_byte(const tr_trainer *t, double loss)
{
    return tr_trainer_measures(t, TR_METRIC_BITS_PER_BYTE)
               ? tr_config_bits_per_byte(t->config, loss)
               : NAN;
}

/* ", accuracy 97.50 %" and whatever else was measured. */
static void say_measured(const tr_trainer *t, const struct tr_history_eval *e, char *text,
                         size_t size)
{
    const struct {
        const char *name;
        double value;
        bool percent;
    } of[] = {{"accuracy", e->accuracy, true},
              {"top-5", e->top5, true},
              {"F1", e->f1, false},
              {"AUC", e->auc, false},
              {"MAE", e->mae, false},
              {"R2", e->r2, false},
              {"perplexity", tr_report_perplexity(t, e->loss), false},
              {"bits per byte", tr_report_bits_per_byte(t, e->loss), false}};
    size_t n = 0;
    text[0] = 0;
    for (size_t i = 0; i < TR_COUNT(of); i++)
        if (!isnan(of[i].value) && n < size)
            n += (size_t)snprintf(text + n, size - n, of[i].percent ? ", %s %.2f %%" : ", %s %.5g",
                                  of[i].name, of[i].percent ? of[i].value * 100 : of[i].value);
}

/* "64 samples", and where these have several targets, how many. */
static void say_counted(uint64_t samples, uint64_t targets, char *text, size_t size)
{
    const int n =
        snprintf(text, size, "%llu sample%s", (unsigned long long)samples, tr_plural(samples));
    if (targets > 0 && n > 0 && (size_t)n < size)
        snprintf(text + n, size - (size_t)n, " of %llu target%s", (unsigned long long)targets,
                 tr_plural(targets));
}

/* Libraries print nan, -nan and inf each in its own way. */
static void say_loss(double loss, char *text, size_t size)
{
    if (isfinite(loss))
        snprintf(text, size, "%.5f", loss);
    else
        snprintf(text, size, "not finite");
}

tr_status tr_report_eval(tr_trainer *t, const tr_eval_record *e)
{
    tr_history *h = &t->history;
    tr_history_add_eval(h, &(struct tr_history_eval){e->step, e->loss, e->accuracy, e->top5, e->f1,
                                                     e->auc, e->mae, e->r2});
    if (t->confusion && h->confusion) {
        h->classes = t->model->classes;
        memcpy(h->confusion, t->confusion, tr_confusion_cells(t->model) * sizeof *h->confusion);
    }
    char measured[200];
    say_measured(t, &h->evals[h->nevals - 1], measured, sizeof measured);
    char counted[64];
    say_counted(e->samples, e->targets, counted, sizeof counted);
    char loss[40];
    say_loss(e->loss, loss, sizeof loss);
    tr_log(TR_LOG_INFO, "step %llu: evaluation loss %s%s%s (%s, %.2f s)",
           (unsigned long long)e->step, loss, measured, t->improved ? ", best so far" : "", counted,
           e->seconds);
    const tr_status st = tr_metrics_eval(t->metrics, e);
    return st == TR_OK ? tr_memory_watch_record(t, "eval") : st;
}

tr_status tr_report_epoch(tr_trainer *t)
{
    const tr_train_state *s = &t->state;
    const uint64_t steps = t->steps_per_epoch, last = s->step - 1;
    const bool classes = tr_loss_counts(t->config->model.loss.kind.which);
    const tr_epoch_record r = {
        .step = s->step,
        .epoch = last / steps,
        .samples = s->epoch_samples,
        .loss = s->epoch_loss / s->epoch_weight,
        .accuracy = classes ? s->epoch_correct / (double)s->epoch_targets : NAN,
        .targets = t->model->rows > 1 ? s->epoch_targets : 0,
        .seconds = s->epoch_seconds,
    };
    char accuracy[64] = "", part[64] = "", counted[64], loss[40], seconds[32] = "";
    say_loss(r.loss, loss, sizeof loss);
    say_counted(r.samples, r.targets, counted, sizeof counted);
    if (!isnan(r.accuracy))
        snprintf(accuracy, sizeof accuracy, ", accuracy %.2f %%", r.accuracy * 100);
    if (s->step % steps > 0)
        snprintf(part, sizeof part, " (up to step %llu of %llu)",
                 (unsigned long long)(s->step % steps), (unsigned long long)steps);
    if (!isnan(r.seconds)) snprintf(seconds, sizeof seconds, ", %.2f s", r.seconds);
    tr_log(TR_LOG_INFO, "epoch %llu/%llu%s: training loss %s%s (%s%s)",
           (unsigned long long)r.epoch + 1,
           (unsigned long long)((t->total_steps + steps - 1) / steps), part, loss, accuracy,
           counted, seconds);
    return tr_metrics_epoch(t->metrics, &r);
}

static void say_times(const tr_trainer *t, const tr_times *a)
{
    const double per = 100 / a->total;
    char idle[48] = "";
    if (!t->backend->host) snprintf(idle, sizeof idle, ", GPU without work %.1f %%", a->idle * per);
    tr_log(TR_LOG_INFO,
           "rank 0's time    compute %.1f %%, exposed communication %.1f %%, data wait %.1f %%%s",
           a->compute * per, a->comm_wait * per, a->data_wait * per, idle);
}

/* Of the processes, as they were gathered: all of few, of many those at both ends. */
static void say_peaks(const tr_trainer *t)
{
    enum { FEW = 8 };
    char text[400] = "", one[32];
    size_t n = 0;
    uint64_t least = UINT64_MAX;
    const int size = t->topology->size;
    for (int r = 0; r < size; r++) {
        if (t->gathered[r] < least) least = t->gathered[r];
        if (size <= FEW)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", r ? ", " : "",
                                  tr_format_bytes((double)t->gathered[r], one, sizeof one));
    }
    if (size > FEW)
        snprintf(text, sizeof text, "at the least %s",
                 tr_format_bytes((double)least, one, sizeof one));
    tr_log(TR_LOG_INFO, "peaks by rank    %s; the most %s, of rank %d", text,
           tr_format_bytes((double)t->watch.peak_most, one, sizeof one), t->watch.peak_rank);
}

static void say_memory(const tr_trainer *t, const tr_memory_total *predicted, size_t held,
                       double device_held, double device_used)
{
    char p[32], h[32], rss[32], before[32], stage[64] = "";
    const size_t all = predicted->total[TR_SPACE_HOST] + predicted->total[TR_SPACE_DEVICE];
    if (tr_held_beside(t) > 0)
        snprintf(stage, sizeof stage, " beside the stage's %s",
                 tr_format_bytes((double)tr_held_beside(t), p, sizeof p));
    tr_log(TR_LOG_INFO,
           "rank 0's memory  predicted %s, held %s%s; the process %s at its peak, %s of it before "
           "the first plan",
           tr_format_bytes((double)all, p, sizeof p), tr_format_bytes((double)held, h, sizeof h),
           stage, tr_format_bytes((double)tr_mem_peak_rss(), rss, sizeof rss),
           tr_format_bytes((double)t->rss_before, before, sizeof before));
    if (t->topology->size > 1 && t->watch.peak_most > 0) say_peaks(t);
    if (isnan(device_held)) return;
    tr_log(TR_LOG_INFO,
           "of it on its GPU predicted %s, held %s; in use there, libraries and all, %s",
           tr_format_bytes((double)predicted->total[TR_SPACE_DEVICE], p, sizeof p),
           tr_format_bytes(device_held * 1e6, h, sizeof h),
           tr_format_bytes(device_used * 1e6, rss, sizeof rss));
}

/* Where what the best evaluation was of is kept: a write that failed left an older best.h5, or
 * none. */
static void find_best(const tr_trainer *t, char *buf, size_t size)
{
    tr_train_state in;
    buf[0] = 0;
    if (!t->folder || !t->config->train.checkpoint.best) return;
    char *path = tr_sprintf("%s/checkpoints/best.h5", tr_run_folder_path(t->folder));
    if (!path) return;
    if (tr_store_train(path, &in) != TR_OK)
        snprintf(buf, size, ", which could not be saved");
    else if (in.step != t->state.best_step)
        snprintf(buf, size, ", which could not be saved; checkpoints/best.h5 holds step %llu",
                 (unsigned long long)in.step);
    else
        snprintf(buf, size, " (checkpoints/best.h5)");
    tr_free(path);
}

/* The best evaluation, and the file that holds what it was of. */
static void say_best(const tr_trainer *t)
{
    const tr_train_state *s = &t->state;
    const tr_history *h = &t->history;
    char measured[200] = "", file[120];
    if (isnan(s->best)) return;
    find_best(t, file, sizeof file);
    for (size_t i = 0; i < h->nevals; i++)
        if (h->evals[i].step == s->best_step)
            say_measured(t, &h->evals[i], measured, sizeof measured);
    tr_log(TR_LOG_INFO, "best evaluation  step %llu: loss %.5f%s%s",
           (unsigned long long)s->best_step, s->best, measured, file);
}

/* Which file holds what. */
static void say_files(const tr_trainer *t, tr_ending how)
{
    static const char *const of[] = {[TR_RESULT_LAST] = "the weights after step",
                                     [TR_RESULT_BEST] = "the weights of the best evaluation, step",
                                     [TR_RESULT_EMA] = "the running average after step"};
    const tr_result r = tr_trainer_choice(t).weights;
    const unsigned long long step = t->state.step;
    say_best(t);
    if (how == TR_ENDING_STOPPED)
        tr_log(
            TR_LOG_INFO,
            "files            checkpoints/step-%08llu.h5 holds step %llu, to go on from; model.h5 "
            "is written at the end of the training",
            step, step);
    if (how == TR_ENDING_DONE)
        tr_log(TR_LOG_INFO, "model.h5         %s %llu", of[r],
               r == TR_RESULT_BEST ? (unsigned long long)t->state.best_step : step);
}

tr_status tr_report_end(tr_trainer *t, tr_ending how, const char *why)
{
    tr_metrics_progress_end(t->metrics);
    double device_used, utilization, device_held;
    look_at_device(t, &device_used, &utilization, &device_held);
    add_times(&t->all, &t->since);
    memset(&t->since, 0, sizeof t->since);
    const tr_times *a = &t->all;
    /* of this start's steps; NaN (null in the record) when it made none */
    const double per_step = 1e3 / (double)a->steps, rate = (double)a->samples / a->total;
    const double loss = a->steps > 0            ? t->loss
                        : t->history.nsteps > 0 ? t->history.steps[t->history.nsteps - 1].loss
                                                : NAN;
    tr_memory_total predicted;
    const size_t held = tr_held_memory(t);
    tr_predicted_memory(t, &predicted);
    char seconds[32], samples[32], tokens[64] = "";
    const double targets = tokens_per_s(t, a);
    const double on_device = isnan(device_held) ? NAN : (double)predicted.total[TR_SPACE_DEVICE];
    tr_log(TR_LOG_INFO, "%s: step %llu, %s in steps of this start", why,
           (unsigned long long)t->state.step, tr_format_seconds(a->total, seconds, sizeof seconds));
    if (a->steps > 0) {
        if (targets > 0)
            snprintf(tokens, sizeof tokens, "%s tokens/s, ",
                     tr_format_count(targets, samples, sizeof samples));
        tr_log(TR_LOG_INFO, "throughput       %s samples/s, %s%.2f ms a step",
               tr_format_count(rate, samples, sizeof samples), tokens, a->total * per_step);
    }
    if (a->steps > 0) say_times(t, a);
    say_memory(t, &predicted, held, device_held, device_used);
    tr_log(TR_LOG_INFO, "checkpoints      held the loop up for %s in all",
           tr_format_seconds(t->stall, seconds, sizeof seconds));
    if (t->state.skipped > 0)
        tr_log(TR_LOG_INFO, "skipped updates  %llu", (unsigned long long)t->state.skipped);
    say_files(t, how);
    const double peak = t->watch.peak_most > 0 ? (double)t->watch.peak_most / 1e6 : NAN;
    const tr_status st = tr_memory_watch_record(t, "end");
    if (st != TR_OK) return st;
    return tr_metrics_event(
        t->metrics, "end",
        "reason:s steps:u seconds:d samples_per_s:d step_ms:d compute_ms:d "
        "comm_wait_ms:d data_wait_ms:d "
        "peak_rss_mb:d program_rss_mb:d predicted_mb:d held_mb:d first_step_s:d final_loss:d "
        "skipped:u checkpoint_stall_s:d best_step:u best_loss:o "
        "highest_peak_rss_mb:o highest_peak_rank:o "
        "idle_ms:o predicted_device_mb:o held_device_mb:o gpu_memory_mb:o gpu_utilization:o "
        "tokens_per_s:o stage_mb:o",
        why, t->state.step, t->state.seconds + tr_now() - t->started, rate, a->total * per_step,
        a->compute * per_step, a->comm_wait * per_step, a->data_wait * per_step,
        (double)tr_mem_peak_rss() / 1e6, (double)t->rss_before / 1e6,
        (double)(predicted.total[TR_SPACE_HOST] + predicted.total[TR_SPACE_DEVICE]) / 1e6,
        (double)held / 1e6, t->first_step_s > 0 ? t->first_step_s : NAN, loss, t->state.skipped,
        t->stall, t->state.best_step, t->state.best, peak,
        isnan(peak) ? NAN : (double)t->watch.peak_rank, idle_of(t, a) * per_step, on_device / 1e6,
        device_held, device_used, a->looks > 0 ? a->utilization / (double)a->looks : NAN,
        targets > 0 ? targets : NAN, tr_held_beside(t) > 0 ? (double)tr_held_beside(t) / 1e6 : NAN);
}
