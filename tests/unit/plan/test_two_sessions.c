/* Two sessions of one device, which stages, records and makes teams: none is in the other's way. */
#include <stdarg.h>
#include <stddef.h>
#include "fake.h"

/* A device that stages, records and makes teams, as the fake does the rest. */
typedef struct {
    fake_ctx ctx;
    int stages, sets, teams, open;
} fake_device;

typedef struct {
    char *slot[2];
    size_t size, used;
    int batches;
} fake_stage;

typedef struct {
    fake_device *device;
    int threads;
} fake_team;

static tr_status stage_open(void *ctx, size_t nbytes, void **out)
{
    fake_stage *s = TR_NEW(TR_MEM_IO, fake_stage);
    ((fake_device *)ctx)->stages++;
    s->size = nbytes;
    for (int i = 0; i < 2; i++) s->slot[i] = tr_alloc(TR_MEM_IO, nbytes, 1);
    *out = s;
    return TR_OK;
}

static void stage_close(void *stage)
{
    fake_stage *s = stage;
    for (int i = 0; i < 2; i++) tr_free(s->slot[i]);
    tr_free(s);
}

static tr_status stage_begin(void *stage)
{
    fake_stage *s = stage;
    s->batches++;
    s->used = 0;
    return TR_OK;
}

static tr_status stage_part(void *stage, const void *data, size_t nbytes, void **where)
{
    fake_stage *s = stage;
    if (nbytes > s->size - s->used) return TR_FAIL(TR_INTERNAL, "larger than its slot");
    *where = memcpy(s->slot[s->batches % 2] + s->used, data, nbytes);
    s->used += tr_align_up(nbytes, TR_STAGE_ALIGN);
    return TR_OK;
}

static tr_status stage_poll(void *stage, bool *done)
{
    (void)stage;
    *done = true;
    return TR_OK;
}

static int stage_slot(const void *stage)
{
    return ((const fake_stage *)stage)->batches % 2;
}

static tr_status team_open(void *ctx, int threads, void **out)
{
    fake_team *t = TR_NEW(TR_MEM_OTHER, fake_team);
    *t = (fake_team){ctx, threads};
    t->device->teams += threads;
    *out = t;
    return TR_OK;
}

static void team_close(void *team)
{
    ((fake_team *)team)->device->teams -= ((fake_team *)team)->threads;
    tr_free(team);
}

static tr_status team_prepare(void *team, const tr_graph *g, const tr_op *op, tr_kernel **out)
{
    return fake_prepare(&((fake_team *)team)->device->ctx, g, op, out);
}

/* A set of recordings: how often each key was begun. */
typedef struct {
    fake_device *device;
    int begun[4];
} fake_set;

static tr_status set_open(void *ctx, void **out)
{
    fake_set *s = TR_NEW(TR_MEM_OTHER, fake_set);
    s->device = ctx;
    s->device->sets++;
    *out = s;
    return TR_OK;
}

static void set_close(void *set)
{
    ((fake_set *)set)->device->sets--;
    tr_free(set);
}

static tr_status set_begin(void *set, uint64_t key, bool *replay)
{
    fake_set *s = set;
    if (key >= 4 || s->device->open++) return TR_FAIL(TR_INTERNAL, "not now");
    *replay = s->begun[key]++ >= 2;
    return TR_OK;
}

static tr_status set_recorded(void *set, tr_status st, bool *was)
{
    (void)set;
    *was = false;
    return st;
}

static tr_status set_end(void *set, tr_status st)
{
    ((fake_set *)set)->device->open--;
    return st;
}

static const tr_device_staging staging = {.open = stage_open,
                                          .close = stage_close,
                                          .begin = stage_begin,
                                          .part = stage_part,
                                          .poll = stage_poll,
                                          .slot = stage_slot};
static const tr_device_sections sections = {.open = set_open,
                                            .close = set_close,
                                            .begin = set_begin,
                                            .recorded = set_recorded,
                                            .end = set_end};
static const tr_device_kernels teams = {.open = team_open,
                                        .close = team_close,
                                        .unsupported = fake_unsupported,
                                        .prepare = team_prepare};
static const tr_backend device = {.name = "device",
                                  .memory = &tr_host_memory,
                                  .kernels = &teams,
                                  .staging = &staging,
                                  .sections = &sections,
                                  .marks = &tr_host_marks};

static tr_session *open_on(fake_device *d, fake_model *m, fake_graph *g, int threads)
{
    tr_session_options o = fake_options(m, &d->ctx);
    tr_graph *graph = &g->g;
    tr_session *s = NULL;
    o.backend = &device;
    o.backend_ctx = d;
    o.threads = threads;
    assert_int_equal(tr_session_open_graphs(&o, &graph, 1, false, &s), TR_OK);
    return s;
}

/* One step in a section, from a buffer that is written over as soon as the run was started; whether
 * it was a replay. */
static bool staged_step(tr_session *s, int64_t batch, double *loss)
{
    float x[4 * IN], t[4 * OUT];
    double tally[TR_TALLY] = {0};
    const tr_run run = {.tally = tally, .params_changed = true, .last = true, .loss_scale = 1};
    tr_plan *p = tr_session_plan(s, TR_MODE_TRAIN, batch);
    bool replay = true, done;
    for (size_t i = 0; i < TR_COUNT(x); i++) x[i] = (float)(i % 5) - 1.5f;
    for (size_t i = 0; i < TR_COUNT(t); i++) t[i] = (float)(i % 3) - 1;
    assert_int_equal(tr_session_staged(s, &done), TR_OK);
    assert_true(done);
    assert_int_equal(tr_session_stage(s), TR_OK);
    assert_int_equal(tr_plan_set_input(p, 0, x), TR_OK);
    assert_int_equal(tr_plan_set_target(p, t), TR_OK);
    memset(x, 0xff, sizeof x);
    memset(t, 0xff, sizeof t);
    assert_int_equal(tr_session_section_begin(s, 1, &replay), TR_OK);
    assert_int_equal(tr_plan_run(p, &run), TR_OK);
    assert_int_equal(tr_session_section_end(s, TR_OK), TR_OK);
    *loss = tally[TR_TALLY_LOSS];
    return replay;
}

/* Each has its own stage, recordings, team, arena and marks: in turn they give what each gives
 * alone. The second is closed before the first; nothing is left. */
static void test_two_sessions(void **state)
{
    (void)state;
    enum { FEW = 3, TURNS = 8 };
    const size_t held = tr_mem_held(TR_MEM_IO), other = tr_mem_held(TR_MEM_OTHER);
    fake_device d = {0};
    fake_model m[2];
    fake_graph g[2];
    tr_session *s[2];
    double alone[2], loss;
    float grads[2][128];
    for (int i = 0; i < 2; i++) {
        const int64_t batch = i == 0 ? 4 : FEW;
        fake_model_init(&m[i]);
        fake_mlp(&g[i], &m[i], batch, true);
        s[i] = open_on(&d, &m[i], &g[i], 1 + i);
        staged_step(s[i], batch, &alone[i]);
        memcpy(grads[i], m[i].grads, sizeof grads[i]);
        tr_session_close(s[i]);
    }
    assert_true(alone[0] != alone[1]);
    for (int i = 0; i < 2; i++) s[i] = open_on(&d, &m[i], &g[i], 1 + i);
    assert_int_equal(d.teams, 3);
    assert_int_equal(d.sets, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            tr_plan_time_ops(tr_session_plan(s[i], TR_MODE_TRAIN, i == 0 ? 4 : FEW), true), TR_OK);
    int replays[2] = {0};
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < 2; i++) {
            double seconds[FAKE_OPS] = {0};
            if (i == 1 && turn == TURNS / 2) tr_session_close(s[1]);
            if (i == 1 && turn >= TURNS / 2) continue;
            memset(m[i].grads, 0xff, sizeof m[i].grads);
            replays[i] += staged_step(s[i], i == 0 ? 4 : FEW, &loss);
            assert_true(loss == alone[i]);
            assert_memory_equal(m[i].grads, grads[i], OUT * HIDDEN * sizeof(float));
            assert_memory_equal(m[i].grads + 48, grads[i] + 48, HIDDEN * IN * sizeof(float));
            assert_int_equal(
                tr_plan_op_seconds(tr_session_plan(s[i], TR_MODE_TRAIN, i == 0 ? 4 : FEW), seconds),
                TR_OK);
        }
    assert_int_equal(d.teams, 1);
    assert_int_equal(d.sets, 1);
    assert_true(replays[0] > 0);
    tr_session_close(s[0]);
    assert_int_equal(d.teams, 0);
    assert_int_equal(d.sets, 0);
    assert_int_equal(d.open, 0);
    assert_int_equal(d.stages, 4);
    assert_int_equal(tr_mem_held(TR_MEM_IO), held);
    assert_int_equal(tr_mem_held(TR_MEM_OTHER), other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
