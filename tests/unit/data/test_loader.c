/* The loader: the same batches for any number of threads, ranks and starting points, held or
 * streamed, each evaluation sample once, errors handed over, nothing allocated while it runs. */
#include "helpers.h"

#define N     23
#define SIDE  4
#define C     2
#define ELEMS (C * SIDE * SIDE)

/* N images of 2 x 4 x 4 bytes that say which sample they are in every element. */
static void open_world(world *w)
{
    static uint8_t x[N][ELEMS], y[N];
    const hsize_t x_dims[] = {N, C, SIDE, SIDE}, y_dims[] = {N};
    world_open(w, 3, (int64_t[]){C, SIDE, SIDE}, N);
    for (int i = 0; i < N; i++) {
        for (int e = 0; e < ELEMS; e++) x[i][e] = (uint8_t)(i * 10 + e % 10);
        y[i] = (uint8_t)i;
    }
    write_h5(w, "a.h5", "x", H5T_STD_U8LE, H5T_NATIVE_UINT8, 4, x_dims, 0, 0, x);
    write_h5(w, "a.h5", "packed", H5T_STD_U8LE, H5T_NATIVE_UINT8, 4, x_dims, 5, 3, x);
    write_h5(w, "a.h5", "y", H5T_STD_U8LE, H5T_NATIVE_UINT8, 1, y_dims, 0, 0, y);
    w->c.data.train.path = "a.h5";
    w->c.data.train.inputs = scalar(w, 0, "x");
    w->c.data.train.labels = "y";
}

static tr_loader_options options(const world *w, tr_dataset *d, bool train)
{
    return (tr_loader_options){.config = &w->c,
                               .model = &w->m,
                               .dataset = d,
                               .train = train,
                               .batch = 8,
                               .micro_batches = 2,
                               .size = 1,
                               .dtype = TR_F32,
                               .prefetch = 2};
}

static tr_loader *loader_open(const tr_loader_options *o)
{
    tr_loader *l = NULL;
    tr_status st = tr_loader_open(o, &l);
    if (st != TR_OK) fail_msg("%s", tr_last_error()->text);
    return l;
}

/* What came out of `count` micro-batches from `step` on, as text that can be compared. */
static char *record(const tr_loader_options *o, uint64_t step, int count)
{
    tr_loader *l = loader_open(o);
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(tr_loader_seek(l, step), TR_OK);
    for (int i = 0; i < count; i++) {
        tr_batch b;
        assert_int_equal(tr_loader_next(l, &b), TR_OK);
        fprintf(f, "%" PRIu64 " %" PRIu64 " %d %" PRIu64 " %" PRId64 ":", b.step, b.epoch, b.micro,
                b.ordinal, b.count);
        for (int64_t k = 0; k < b.count; k++) {
            fprintf(f, " %d", ((const int32_t *)b.targets)[k]);
            for (size_t e = 0; e < ELEMS; e++) {
                if (o->dtype == TR_F32)
                    fprintf(f, ",%a", (double)((const float *)b.inputs[0])[(size_t)k * ELEMS + e]);
                else
                    fprintf(f, ",%x", ((const tr_bf16 *)b.inputs[0])[(size_t)k * ELEMS + e]);
            }
        }
        fputc('\n', f);
    }
    fclose(f);
    tr_loader_close(l);
    return text;
}

static void same_for_any_threads(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    w.c.data.augment.crop = 1;
    w.c.data.augment.flip = true;
    const char *const names[] = {"x", "x", "packed"};
    char *first[2] = {NULL, NULL};
    for (int source = 0; source < 3; source++) { /* held, streamed, by selections */
        w.c.data.cache_mb = source == 0;
        w.nodes[0].text = (char *)names[source];
        tr_dataset *d = opens(&w);
        for (int type = 0; type < 2; type++) {
            for (int workers = 0; workers < 5; workers++) {
                tr_loader_options o = options(&w, d, true);
                o.workers = workers;
                o.prefetch = 1 + workers * 2 % 5;
                o.dtype = type ? TR_BF16 : TR_F32;
                o.cpus = workers == 2 ? (const int[]){0} : NULL;
                o.ncpus = workers == 2;
                char *text = record(&o, 0, 50);
                if (!first[type])
                    first[type] = text;
                else
                    assert_string_equal(first[type], text);
                if (text != first[type]) free(text);
            }
        }
        tr_dataset_close(d);
    }
    assert_string_not_equal(first[0], first[1]);
    free(first[0]);
    free(first[1]);
    world_close(&w);
}

/* Starting anywhere gives the tail of what starting at 0 gives. */
static void resume(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    w.c.data.augment.flip = true;
    tr_dataset *d = opens(&w);
    for (int drop = 0; drop < 2; drop++) {
        w.c.data.drop_last = drop;
        tr_loader_options o = options(&w, d, true);
        o.workers = 2;
        char *all = record(&o, 0, 40);
        const char *at = all;
        for (uint64_t step = 0; step < 15; step++) {
            char *tail = record(&o, step, 40 - 2 * (int)step);
            assert_string_equal(at, tail);
            free(tail);
            for (int lines = 0; lines < 2; lines++) at = strchr(at, '\n') + 1;
        }
        free(all);
        /* also a seek on a loader that is running */
        tr_loader *l = loader_open(&o);
        tr_batch a, b;
        for (int i = 0; i < 7; i++) assert_int_equal(tr_loader_next(l, &a), TR_OK);
        int32_t kept[4];
        memcpy(kept, a.targets, (size_t)a.count * 4);
        assert_int_equal(a.step, 3);
        for (int round = 0; round < 20; round++) {
            assert_int_equal(tr_loader_seek(l, 3), TR_OK);
            assert_int_equal(tr_loader_next(l, &b), TR_OK);
            assert_true(b.step == 3 && b.micro == 0 && b.count == a.count &&
                        b.ordinal == a.ordinal);
            assert_memory_equal(kept, b.targets, (size_t)a.count * 4);
        }
        tr_loader_close(l);
    }
    tr_dataset_close(d);
    world_close(&w);
}

/* All ranks of a micro-batch together are what one rank alone gets, augmentation included. */
static void rank_independence(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    w.c.data.augment.crop = 2;
    w.c.data.augment.flip = true;
    tr_dataset *d = opens(&w);
    const int sizes[] = {2, 3, 4, 30};
    for (size_t s = 0; s < TR_COUNT(sizes); s++) {
        tr_loader *one, *all[30];
        tr_loader_options o = options(&w, d, true);
        one = loader_open(&o);
        for (int r = 0; r < sizes[s]; r++) {
            o.rank = r;
            o.size = sizes[s];
            all[r] = loader_open(&o);
        }
        for (int i = 0; i < 15; i++) {
            tr_batch b, part;
            assert_int_equal(tr_loader_next(one, &b), TR_OK);
            int64_t at = 0;
            for (int r = 0; r < sizes[s]; r++) {
                assert_int_equal(tr_loader_next(all[r], &part), TR_OK);
                assert_true(part.step == b.step && part.micro == b.micro && part.epoch == b.epoch);
                assert_true(part.ordinal == b.ordinal + (uint64_t)at && at + part.count <= b.count);
                assert_memory_equal((const int32_t *)b.targets + at, part.targets,
                                    (size_t)part.count * 4);
                assert_memory_equal((const float *)b.inputs[0] + at * ELEMS, part.inputs[0],
                                    (size_t)part.count * ELEMS * 4);
                at += part.count;
            }
            assert_int_equal(at, b.count);
        }
        tr_loader_close(one);
        for (int r = 0; r < sizes[s]; r++) tr_loader_close(all[r]);
    }
    tr_dataset_close(d);
    world_close(&w);
}

static void epochs(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    tr_dataset *d = opens(&w);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        w.c.data.shuffle = shuffle;
        tr_loader_options o = options(&w, d, true);
        o.workers = 1;
        tr_loader *l = loader_open(&o);
        assert_int_equal(tr_loader_steps_per_epoch(l), 3);
        assert_true(tr_loader_held(l) > 0);
        int32_t before[N] = {0};
        for (uint64_t epoch = 0; epoch < 4; epoch++) {
            int seen[N] = {0};
            int32_t order[N];
            int n = 0;
            for (int i = 0; i < 6; i++) {
                tr_batch b;
                assert_int_equal(tr_loader_next(l, &b), TR_OK);
                assert_int_equal(b.epoch, epoch);
                assert_int_equal(b.ordinal, epoch * N + (uint64_t)n);
                for (int64_t k = 0; k < b.count; k++) {
                    int32_t y = ((const int32_t *)b.targets)[k];
                    seen[y]++;
                    order[n++] = y;
                    assert_true(((const float *)b.inputs[0])[k * ELEMS] ==
                                (float)(uint8_t)(y * 10));
                }
            }
            for (int i = 0; i < N; i++) assert_int_equal(seen[i], 1);
            bool sorted = true;
            for (int i = 0; i < N; i++) sorted = sorted && order[i] == i;
            assert_int_equal(sorted, !shuffle);
            if (shuffle) assert_memory_not_equal(order, before, sizeof order);
            memcpy(before, order, sizeof order);
        }
        tr_loader_close(l);
    }
    tr_dataset_close(d);
    world_close(&w);
}

static void evaluation(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    w.c.data.drop_last = true; /* training only */
    w.c.data.augment.flip = true;
    tr_dataset *d = opens(&w);
    for (int size = 1; size < 31; size += 7) {
        int seen[N] = {0};
        for (int r = 0; r < size; r++) {
            tr_loader_options o = options(&w, d, false);
            o.rank = r;
            o.size = size;
            o.workers = r % 3;
            tr_loader *l = loader_open(&o);
            for (int round = 0; round < 2; round++) {
                assert_int_equal(tr_loader_seek(l, 0), TR_OK);
                int32_t last = -1;
                for (int i = 0; i < 6; i++) {
                    tr_batch b;
                    assert_int_equal(tr_loader_next(l, &b), TR_OK);
                    assert_true(b.step == (uint64_t)i / 2 && b.step < 3);
                    for (int64_t k = 0; k < b.count; k++) {
                        int32_t y = ((const int32_t *)b.targets)[k];
                        assert_true(y > last); /* file order */
                        last = y;
                        if (round == 0) seen[y]++;
                        /* not flipped: row 0 of channel 0, stored channels-last */
                        for (int x = 0; x < SIDE; x++)
                            assert_true(((const float *)b.inputs[0])[k * ELEMS + x * C] ==
                                        (float)(uint8_t)(y * 10 + x));
                    }
                }
                for (int i = 0; i < 2; i++) {
                    tr_batch b;
                    assert_int_equal(tr_loader_next(l, &b), TR_OK);
                    assert_true(b.count == 0 && b.step == 3);
                }
            }
            tr_loader_close(l);
        }
        for (int i = 0; i < N; i++) assert_int_equal(seen[i], 1);
    }
    tr_dataset_close(d);
    world_close(&w);
}

/* A file that is cut while it streams: the error arrives whole, again and again, and a seek to
 * where the file is still good cannot bring it back (the file changed). */
static void errors(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        world w;
        open_world(&w);
        w.c.data.cache_mb = 0;
        tr_dataset *d = opens(&w);
        tr_loader_options o = options(&w, d, true);
        o.workers = workers;
        tr_loader *l = loader_open(&o);
        tr_batch b;
        assert_int_equal(tr_loader_next(l, &b), TR_OK);
        assert_int_equal(truncate(in_folder(&w, "a.h5"), 10), 0);
        tr_status st = TR_OK;
        for (int i = 0; i < 10 && st == TR_OK; i++) st = tr_loader_next(l, &b);
        assert_int_equal(st, TR_DATA);
        for (int i = 0; i < 3; i++) {
            tr_set_error(&(tr_error){.status = TR_OK});
            assert_int_equal(tr_loader_next(l, &b), TR_DATA);
            assert_non_null(strstr(tr_last_error()->text, "a.h5"));
            assert_int_equal(tr_last_error()->status, TR_DATA);
        }
        assert_int_equal(tr_loader_seek(l, 0), TR_OK);
        assert_int_equal(tr_loader_next(l, &b), TR_DATA);
        tr_loader_close(l);
        tr_dataset_close(d);
        world_close(&w);
    }
}

static void no_allocation(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    w.c.data.augment.crop = 1;
    for (int held = 0; held < 2; held++) {
        w.c.data.cache_mb = held;
        tr_dataset *d = opens(&w);
        for (int workers = 0; workers < 3; workers++) {
            tr_loader_options o = options(&w, d, true);
            o.workers = workers;
            o.dtype = TR_BF16;
            tr_loader *l = loader_open(&o);
            uint64_t calls = tr_mem_calls();
            tr_batch b;
            for (int i = 0; i < 60; i++) assert_int_equal(tr_loader_next(l, &b), TR_OK);
            assert_int_equal(tr_loader_seek(l, 5), TR_OK);
            for (int i = 0; i < 60; i++) assert_int_equal(tr_loader_next(l, &b), TR_OK);
            assert_int_equal(tr_mem_calls(), calls);
            tr_loader_close(l);
        }
        /* memory that runs out at any moment of opening: an error, and nothing left behind */
        size_t other = tr_mem_held(TR_MEM_OTHER), io = tr_mem_held(TR_MEM_IO);
        tr_loader_options o = options(&w, d, true);
        o.workers = 2;
        tr_status st = TR_MEMORY;
        for (uint64_t n = 1; st == TR_MEMORY; n++) {
            tr_loader *l = NULL;
            tr_mem_fail_at(n);
            st = tr_loader_open(&o, &l);
            tr_loader_close(l);
            assert_true(n < 100);
        }
        tr_mem_fail_at(0);
        assert_int_equal(st, TR_OK);
        assert_true(other == tr_mem_held(TR_MEM_OTHER) && io == tr_mem_held(TR_MEM_IO));
        tr_dataset_close(d);
    }
    world_close(&w);
}

static void refuses(void **state)
{
    (void)state;
    world w;
    open_world(&w);
    tr_dataset *d = opens(&w);
    tr_loader *l = NULL;
    tr_loader_options o = options(&w, d, true);
    o.batch = N + 1;
    w.c.data.drop_last = true;
    assert_int_equal(tr_loader_open(&o, &l), TR_DATA);
    assert_non_null(strstr(tr_last_error()->text, "23 samples, fewer than a batch of 24"));
    w.c.data.drop_last = false;
    o.dtype = TR_I32;
    assert_int_equal(tr_loader_open(&o, &l), TR_UNSUPPORTED);
    o.dtype = TR_F32;
    normalize_by(&w, 3, 0, NULL);
    assert_int_equal(tr_loader_open(&o, &l), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "data.normalize.mean: 3 values"));
    normalize_by(&w, 0, 1, NULL); /* 0 */
    assert_int_equal(tr_loader_open(&o, &l), TR_CONFIG);
    normalize_by(&w, 0, 0, NULL);
    w.c.data.augment.flip = true;
    w.inputs[0].ndim = 1;
    w.inputs[0].layout = TR_LAYOUT_PLAIN;
    w.inputs[0].dims[0] = ELEMS;
    assert_int_equal(tr_loader_open(&o, &l), TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "data.augment"));
    assert_null(l);
    tr_dataset_close(d);
    world_close(&w);
}

/* Targets that are images come as an output of their shape is stored, channels-last, from any
 * source: held, streamed, by selections, flat in the file, made up. */
static void image_targets(void **state)
{
    (void)state;
    enum { TC = 3, TH = 2, TW = 5, AREA = TH * TW, COUNT = TC * AREA };
    static float y[N][COUNT];
    const hsize_t dims[] = {N, TC, TH, TW}, flat[] = {N, COUNT};
    world w;
    open_world(&w);
    for (int v = 0; v < N * COUNT; v++) y[v / COUNT][v % COUNT] = (float)(v % 97) / 97.0f;
    write_h5(&w, "a.h5", "t", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 4, dims, 0, 0, y);
    write_h5(&w, "a.h5", "t_packed", H5T_IEEE_F64LE, H5T_NATIVE_FLOAT, 4, dims, 5, 3, y);
    write_h5(&w, "a.h5", "t_flat", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 2, flat, 0, 0, y);
    world_targets(&w, 3, (int64_t[]){TC, TH, TW});
    w.c.data.shuffle = false;
    const char *const names[] = {"t", "t_packed", "t_flat", NULL};
    for (size_t source = 0; source < TR_COUNT(names); source++)
        for (int run = 0; run < 4;
             run++) { /* mse and bce, held and not, with and without workers */
            w.c.data.cache_mb = run % 2;
            w.c.model.loss.kind.which = run / 2 ? TR_LOSS_BCE : TR_LOSS_MSE;
            w.c.data.train = (tr_source_config){.path = "a.h5", .inputs = &w.nodes[0]};
            w.c.data.train.labels = (char *)names[source];
            if (!names[source])
                w.c.data.train = (tr_source_config){.format = TR_FORMAT_SYNTHETIC, .samples = N};
            tr_dataset *d = opens(&w);
            tr_loader_options o = options(&w, d, run % 2);
            o.workers = run;
            tr_loader *l = loader_open(&o);
            uint64_t i = 0;
            for (tr_batch b; i < N;) {
                assert_int_equal(tr_loader_next(l, &b), TR_OK);
                assert_true(b.count > 0);
                for (int64_t k = 0; k < b.count; k++, i++)
                    for (size_t e = 0; e < COUNT; e++) {
                        const float got =
                            ((const float *)
                                 b.targets)[(size_t)k * COUNT + e % AREA * TC + e / AREA];
                        assert_true(got == (float)target_at(d, i, e));
                        if (names[source]) assert_true(got == y[i][e]);
                    }
            }
            tr_loader_close(l);
            tr_dataset_close(d);
        }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_for_any_threads), cmocka_unit_test(resume),
        cmocka_unit_test(rank_independence),    cmocka_unit_test(epochs),
        cmocka_unit_test(evaluation),           cmocka_unit_test(errors),
        cmocka_unit_test(no_allocation),        cmocka_unit_test(refuses),
        cmocka_unit_test(image_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
