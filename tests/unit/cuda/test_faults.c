/* Every call to CUDA that the backend's own parts make is made to fail once: the error names it,
 * everything is released, the process goes on. The program runs itself for each ("scenario"),
 * because a process has one fault. On a real GPU the scenario runs once, without faults. */
#include "core_harness.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the child says by its status. */
enum { FAILED = 10, WENT_WELL = 11, HELD_MEMORY = 12 };

static tr_status section(tr_cuda *cuda, void *sections, void *to, const void *from, size_t n)
{
    tr_status st = TR_OK;
    bool replay;
    TR_TRY(b->sections->begin(sections, 7, &replay));
    return b->sections->end(sections, replay ? TR_OK : b->memory->copy(cuda, to, from, n));
out:
    return st;
}

/* A little of everything. Frees what it got, however far it comes. */
static tr_status use(tr_cuda *cuda, unsigned char *host, size_t n)
{
    tr_status st = TR_OK;
    const tr_control_input in = {.ordinal = 4, .first = 1};
    tr_control now;
    tr_device_load load;
    bool done = false;
    double seconds[1];
    void *where, *stage = NULL, *sections = NULL, *training = NULL, *marks = NULL;
    unsigned char *pinned = b->memory->host_alloc(cuda, TR_MEM_DATA, 512);
    char *a = pinned ? b->memory->alloc(cuda, TR_MEM_OTHER, n) : NULL;
    tr_control *c = a ? b->memory->alloc(cuda, TR_MEM_OTHER, sizeof *c) : NULL;
    if (!c) st = tr_last_error()->status;
    if (st != TR_OK) goto out;
    TR_TRY(b->memory->upload(cuda, a, host, n));
    TR_TRY(b->memory->upload(cuda, a, pinned, 512));
    TR_TRY(b->staging->open(cuda, 512, &stage));
    TR_TRY(b->sections->open(cuda, &sections));
    TR_TRY(b->training->open(cuda, 1, &training));
    TR_TRY(b->marks->open(cuda, 2, &marks));
    for (int k = 0; k < 6; k++) {
        for (done = false; !done;) TR_TRY(b->staging->poll(stage, &done));
        TR_TRY(b->staging->begin(stage));
        TR_TRY(b->staging->part(stage, pinned, 512, &where));
        TR_TRY(b->training->set_input(training, c, &in));
        TR_TRY(section(cuda, sections, a, where, 512));
        TR_TRY(b->training->report_begin(training, c, 0));
    }
    for (int k = 0; k < 70; k++)
        TR_TRY(b->training->set_input(training, c, &in)); /* around the ring */
    TR_TRY(b->marks->set(marks, 0));
    TR_TRY(b->memory->zero(cuda, a, n));
    TR_TRY(b->marks->set(marks, 1));
    TR_TRY(b->marks->read(marks, seconds, 1));
    b->load(cuda, &load);
    TR_TRY(b->stream->finish(cuda));
    TR_TRY(b->training->report_poll(training, 0, &now, &done));
    TR_NEED(done && now.in.ordinal == 4, TR_INTERNAL, "the report did not come");
    TR_TRY(b->memory->download(cuda, host, a, n));
    for (size_t i = 0; i < n; i++) TR_NEED(host[i] == 0, TR_INTERNAL, "byte %zu was not zeroed", i);
out:
    if (cuda->stream) (void)b->stream->finish(cuda);
    b->marks->close(marks);
    b->training->close(training);
    b->sections->close(sections);
    b->staging->close(stage);
    b->memory->free(cuda, c);
    b->memory->free(cuda, a);
    b->memory->host_free(cuda, pinned);
    return st;
}

static int scenario(void)
{
    const size_t n = (9 << 20) + 5;
    const tr_backend_options o = {.graphs = true, .workspace = 1 << 20};
    unsigned char *host = calloc(n, 1);
    void *ctx = NULL;
    char text[TR_ERROR_TEXT] = "";
    tr_status st = b->open(&o, &ctx);
    if (st == TR_OK) st = use(ctx, host, n);
    if (st != TR_OK) memcpy(text, tr_last_error()->text, sizeof text);
    b->close(ctx);
    free(host);
    if (held() > 0) return HELD_MEMORY;
    puts(text);
    return st == TR_OK ? WENT_WELL : FAILED;
}

static void test_without(void **state)
{
    (void)state;
    assert_int_equal(scenario(), WENT_WELL);
}

#ifndef TR_REAL_GPU
/* What the child printed, in `text`; its status. */
static int child(const char *settings, char *text, size_t size)
{
    char self[512], command[1024];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    snprintf(command, sizeof command, "%s FAKEGPU_LEAKS=%s '%s' scenario", settings,
             strstr(settings, "Destroy") || strstr(settings, "Free") ? "" : "strict", self);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    text[0] = 0;
    if (fgets(text, (int)size, f)) text[strcspn(text, "\n")] = 0;
    const int status = pclose(f);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Calls without which the work still gets done: releases, questions out of curiosity. */
static bool may_pass(const char *call)
{
    static const char *const words[] = {"Destroy",         "Free",       "PCIBusId",
                                        "MemGetInfo",      "GetVersion", "LastError",
                                        "PeekAtLastError", "SetDevice",  "StreamSynchronize"};
    for (size_t i = 0; i < TR_COUNT(words); i++)
        if (strstr(call, words[i])) return true;
    return false;
}

static void check_fault(const char *call, unsigned long long n, bool sticky)
{
    char settings[200], text[2 * TR_ERROR_TEXT];
    snprintf(settings, sizeof settings, "FAKEGPU_FAIL=%s:%llu FAKEGPU_STICKY=%d", call, n, sticky);
    const int status = child(settings, text, sizeof text);
    const char *named = strcmp(call, "cudaLaunchKernel") == 0     ? "launch of"
                        : strcmp(call, "cudaGetDeviceCount") == 0 ? "no CUDA device"
                                                                  : call;
    if (status == WENT_WELL && may_pass(call)) return;
    if (status != FAILED) fail_msg("%s: status %d, \"%s\"", settings, status, text);
    if (!sticky && !strstr(text, named) && !strstr(text, call))
        fail_msg("%s: \"%s\"", settings, text);
    if (!strchr(text, '(')) fail_msg("%s: no library's own text: \"%s\"", settings, text);
}

static void walk(bool sticky)
{
    char path[64], counted[80], settings[120], text[TR_ERROR_TEXT], call[100];
    unsigned long long times;
    snprintf(path, sizeof path, "/tmp/trireme_calls.%d", (int)getpid());
    snprintf(settings, sizeof settings, "FAKEGPU_COUNT=%s", path);
    assert_int_equal(child(settings, text, sizeof text), WENT_WELL);
    snprintf(counted, sizeof counted, "%s.0", path);
    FILE *f = fopen(counted, "r");
    assert_non_null(f);
    int names = 0;
    while (fscanf(f, "%99s %llu", call, &times) == 2) {
        names++;
        /* All, but of what is called again and again: the first and the last. */
        const unsigned long long ends = sticky ? 1 : 12;
        for (unsigned long long n = 1; n <= times; n++)
            if (n <= ends || n + ends > times) check_fault(call, n, sticky);
    }
    fclose(f);
    unlink(counted);
    assert_true(names > 20);
}

static void test_every_call(void **state)
{
    (void)state;
    walk(false);
}

/* A fault after which every call fails, as after an illegal address. */
static void test_lost_device(void **state)
{
    (void)state;
    walk(true);
}

static void test_no_device(void **state)
{
    (void)state;
    char text[TR_ERROR_TEXT];
    assert_int_equal(child("FAKEGPU_DEVICES=0", text, sizeof text), FAILED);
    assert_non_null(strstr(text, "no CUDA device: "));
    assert_non_null(strstr(text, "(cudaErrorNoDevice)"));
    assert_int_equal(child("CUDA_VISIBLE_DEVICES=", text, sizeof text), FAILED);
    assert_non_null(strstr(text, "CUDA_VISIBLE_DEVICES is \"\""));
}
#endif

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "scenario") == 0) return scenario();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without),
#ifndef TR_REAL_GPU
        cmocka_unit_test(test_every_call),
        cmocka_unit_test(test_lost_device),
        cmocka_unit_test(test_no_device),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
