/* The stage `report`: the run on one page. */
#include <string.h>
#include <unistd.h>

#include "optimize/report/report.h"
#include "optimize/stages/stages.h"

typedef struct {
    tr_stage_common common;
    bool markdown;
} report_options;

static const tr_field fields[] = {
    TR_STAGE_COMMON(report_options),
    TR_BOOL("markdown", offsetof(report_options, markdown), "true",
            "beside report.html also report.md"),
    TR_END,
};

/* In the run's folder; of a file by hand beside it. Allocated. */
static char *page_path(const tr_stage_job *job, const char *extension)
{
    return job->by_hand ? tr_sprintf("%s.%s", job->path, extension)
                        : tr_sprintf("%s/report.%s", job->folder, extension);
}

static tr_status write_pages(const tr_stage_job *job)
{
    tr_status st = TR_OK;
    const report_options *o = job->options;
    char *html = page_path(job, "html"), *markdown = page_path(job, "md");
    char *model = tr_sprintf("%s/model.h5", job->folder);
    TR_HAVE(html && markdown && model);
    const tr_report_options page = {.folder = job->folder,
                                    .model = access(model, F_OK) == 0 ? model : job->file,
                                    .last = job->file,
                                    .config = job->config,
                                    .lineage = job->lineage,
                                    .html = html,
                                    .markdown = o->markdown ? markdown : NULL};
    TR_TRY(tr_report_write(&page));
    TR_TRY(tr_stage_wrote(job, html));
    if (o->markdown) TR_TRY(tr_stage_wrote(job, markdown));
    tr_log(TR_LOG_INFO, "report: %s", html);
out:
    tr_free(html);
    tr_free(markdown);
    tr_free(model);
    return st;
}

static tr_status run(const tr_stage_job *job, tr_stage_result *out, bool *agreed)
{
    (void)out;
    *agreed = true;
    const bool root = tr_comm_topology(job->comm)->rank == 0;
    return tr_agree(job->comm, root ? write_pages(job) : TR_OK, NULL);
}

const tr_stage tr_stage_report = {
    .name = "report",
    .doc = "Writes `report.html`, one page that opens anywhere and needs nothing else: the run, "
           "its curves, and what "
           "every stage found; and the same as `report.md`",
    .fields = fields,
    .options_size = sizeof(report_options),
    .run = run,
};
