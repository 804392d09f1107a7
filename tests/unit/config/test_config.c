/* The config as a whole: values, defaults, the way back to YAML, memory. */
#include "tests/unit/config/good.h"
#include "runtime/config/internal.h"

#include <unistd.h>

static const char *const SMALL = "name: small\n"
                                 "data: {train: {format: synthetic, samples: 10}}\n"
                                 "model: {input: 4, layers: [relu], loss: mse}\n"
                                 "train: {steps: 5, batch: 2}\n";

static void test_values(void **state)
{
    (void)state;
    tr_config *c = open_good(NULL);
    assert_string_equal(c->name, "digits");
    assert_int_equal(c->seed, 7);
    assert_int_equal(c->device, TR_DEVICE_CPU);
    assert_string_equal(c->directory, ".");
    assert_true(c->data.train.present && c->data.eval.present);
    assert_string_equal(c->data.train.inputs->text, "x_train");
    assert_int_equal(c->data.train.samples, 0);
    assert_int_equal(c->data.eval.samples, 100);
    assert_int_equal(c->data.normalize.count, 1);
    assert_null(c->data.normalize.inputs[0].input);
    assert_int_equal(c->data.normalize.inputs[0].mean.count, 1);
    assert_int_equal(c->data.normalize.inputs[0].std.count, 3);
    assert_true(c->data.normalize.inputs[0].std.v[2] == 4);
    assert_int_equal(c->data.augment.crop, 2);
    assert_true(c->data.augment.flip && c->data.shuffle && c->data.drop_last);
    assert_int_equal(c->data.workers, 3);
    assert_int_equal(c->model.input.count, 3);
    assert_int_equal(c->model.input.v[0], 3);
    assert_int_equal(c->model.layers->count, 4);
    assert_int_equal(c->model.layers->values[2]->line, 17);
    assert_int_equal(c->model.layers->values[2]->column, 7);
    assert_int_equal(c->model.loss.kind.which, TR_LOSS_CROSS_ENTROPY);
    assert_true(c->model.loss.label_smoothing == 0.1);
    assert_true(c->model.loss.class_weights.v[2] == 0.5);
    assert_int_equal(c->model.init, 1);
    assert_int_equal(c->train.epochs, 20);
    assert_int_equal(c->train.steps, 0);
    assert_int_equal(c->train.micro_batch, 16);
    assert_int_equal(c->train.precision, TR_PRECISION_FP16);
    assert_true(c->train.loss_scale == -1); /* what fp16 gets when nothing is said */
    assert_true(c->train.clip_norm == 1.5);
    assert_int_equal(c->train.optimizer.kind.which, TR_OPT_SGD);
    assert_true(c->train.optimizer.o.lr == 0.1 && c->train.optimizer.o.momentum == 0.9);
    assert_true(c->train.optimizer.o.nesterov);
    assert_int_equal(c->train.schedule.kind.which, TR_SCHEDULE_STEP);
    assert_int_equal((int)c->train.schedule.o.milestones.v[1].value, 15);
    assert_int_equal(c->train.recompute.kind.which, TR_RECOMPUTE_EVERY);
    assert_int_equal(c->train.recompute.every, 2);
    assert_int_equal(c->train.checkpoint.every_steps, 200);
    assert_int_equal(c->train.checkpoint.every_epochs, 0);
    assert_int_equal(c->train.checkpoint.keep, 0);
    assert_int_equal(c->train.eval.every_epochs, 1);
    assert_int_equal(c->train.on_nonfinite, TR_NONFINITE_ROLLBACK);
    assert_int_equal(c->run.threads, 2);
    assert_int_equal(c->run.collectives, TR_COLL_SHARED);
    assert_int_equal(c->run.wire, 1);
    assert_true(c->run.timeout == 20);
    assert_int_equal(c->pipeline.count, 1);
    assert_int_equal(c->pipeline.items[0].which, 0);
    assert_null(c->pipeline.items[0].options);
    assert_int_equal(c->pipeline.items[0].at->line, 36);
    tr_config_close(c);
}

static void test_defaults(void **state)
{
    (void)state;
    tr_config *c = NULL;
    assert_int_equal(open_with(SMALL, NULL, 0, &c), TR_OK);
    assert_int_equal(c->seed, 0);
    assert_string_equal(c->output, "runs/small");
    assert_int_equal(c->device, TR_DEVICE_AUTO);
    assert_false(c->data.eval.present);
    assert_int_equal(c->data.workers, 1);
    assert_int_equal(c->data.prefetch, 2);
    assert_int_equal(c->data.cache_mb, 1024);
    assert_true(c->data.shuffle && !c->data.drop_last);
    assert_int_equal(c->data.normalize.count, 0);
    assert_int_equal(c->model.input.count, 1);
    assert_int_equal(c->model.init, 0);
    assert_int_equal(c->train.log_every, 10);
    assert_int_equal(c->train.micro_batch, 0);
    assert_true(c->train.loss_scale == 0 && c->train.loss_scale_init == 65536);
    assert_int_equal(c->train.loss_scale_window, 2000);
    assert_int_equal(c->train.sync_batchnorm, TR_SYNC_ALL);
    assert_true(c->train.clip_norm == 0 && c->train.ema == 0 && c->train.max_seconds == 0);
    assert_int_equal(c->train.optimizer.kind.which, TR_OPT_ADAMW);
    const tr_optimizer_config *o = &c->train.optimizer.o;
    assert_true(o->lr == 0.001 && o->beta1 == 0.9 && o->beta2 == 0.999 && o->eps == 1e-8);
    assert_true(o->weight_decay == 0.01 && !o->decay_all);
    assert_int_equal(c->train.schedule.kind.which, TR_SCHEDULE_CONSTANT);
    assert_int_equal(c->train.recompute.kind.which, TR_RECOMPUTE_AUTO);
    assert_int_equal(c->train.checkpoint.every_epochs, 1);
    assert_int_equal(c->train.checkpoint.keep, 3);
    assert_false(c->train.checkpoint.best); /* nothing to judge by */
    assert_int_equal(c->train.eval.every_epochs, 0);
    assert_int_equal(c->train.on_nonfinite, TR_NONFINITE_SKIP);
    assert_int_equal(c->run.collectives, TR_COLL_AUTO);
    assert_true(c->run.timeout == 300 && c->run.bucket_mb == 0);
    assert_int_equal(c->pipeline.count, 1); /* the first that the program knows */
    assert_int_equal(c->pipeline.items[0].which, 0);
    tr_config_close(c);

    const char *lion = "train.optimizer=lion";
    assert_int_equal(open_with(SMALL, &lion, 1, &c), TR_OK);
    o = &c->train.optimizer.o;
    assert_true(o->lr == 0.0001 && o->beta1 == 0.9 && o->beta2 == 0.99 && o->weight_decay == 0);
    tr_config_close(c);
}

static char *written(const tr_config *c)
{
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    assert_int_equal(tr_config_write(c, to), TR_OK);
    fclose(to);
    return text;
}

static void same_span(const tr_span *a, const tr_span *b)
{
    assert_true(a->value == b->value);
    assert_int_equal(a->unit, b->unit);
}

/* Every field of the two structs is equal, whatever the table holds. */
static void same_fields(const tr_field *fields, const void *a, const void *b)
{
    for (const tr_field *f = fields; f && f->key; f++) {
        const char *p = (const char *)a + f->offset, *q = (const char *)b + f->offset;
        int which;
        switch (f->kind) {
        case TR_FIELD_INT:
            assert_int_equal(*(const int64_t *)p, *(const int64_t *)q);
            break;
        case TR_FIELD_REAL:
            assert_true(*(const double *)p == *(const double *)q);
            break;
        case TR_FIELD_BOOL:
            assert_int_equal(*(const bool *)p, *(const bool *)q);
            break;
        case TR_FIELD_CHOICE:
            assert_int_equal(*(const int *)p, *(const int *)q);
            break;
        case TR_FIELD_STRING:
            if (strcmp(f->key, "folder") == 0) break; /* written absolute */
            if (!*(char *const *)p)
                assert_null(*(char *const *)q);
            else
                assert_string_equal(*(char *const *)p, *(char *const *)q);
            break;
        case TR_FIELD_INTS:
            assert_memory_equal(p, q, sizeof(tr_ints));
            break;
        case TR_FIELD_SPAN:
            same_span((const tr_span *)p, (const tr_span *)q);
            break;
        case TR_FIELD_SPANS:
            assert_int_equal(((const tr_spans *)p)->count, ((const tr_spans *)q)->count);
            for (size_t i = 0; i < ((const tr_spans *)p)->count; i++)
                same_span(&((const tr_spans *)p)->v[i], &((const tr_spans *)q)->v[i]);
            break;
        case TR_FIELD_REALS:
            assert_int_equal(((const tr_reals *)p)->count, ((const tr_reals *)q)->count);
            for (size_t i = 0; i < ((const tr_reals *)p)->count; i++)
                assert_true(((const tr_reals *)p)->v[i] == ((const tr_reals *)q)->v[i]);
            break;
        case TR_FIELD_BLOCK:
        case TR_FIELD_MAP:
            same_fields(f->fields, p, q);
            break;
        case TR_FIELD_VARIANT:
            which = ((const tr_variant *)p)->which;
            assert_int_equal(which, ((const tr_variant *)q)->which);
            if (which >= 0)
                same_fields(f->variants[which].fields, (const char *)a + f->variant_options,
                            (const char *)b + f->variant_options);
            break;
        case TR_FIELD_LIST:
            assert_int_equal(((const tr_list *)p)->count, ((const tr_list *)q)->count);
            for (size_t i = 0; i < ((const tr_list *)p)->count; i++) {
                const tr_list_item *x = &((const tr_list *)p)->items[i];
                assert_int_equal(x->which, ((const tr_list *)q)->items[i].which);
                same_fields(f->variants[x->which].fields, x->options,
                            ((const tr_list *)q)->items[i].options);
            }
            break;
        case TR_FIELD_NODE:
            break; /* compared as text */
        }
    }
}

static void round_trip(const char *text)
{
    tr_config *a = NULL, *b = NULL;
    if (open_with(text, NULL, 0, &a) != TR_OK) fail_msg("%s", tr_last_error()->text);
    char *first = written(a);
    if (tr_config_open("elsewhere/c.yaml", first, strlen(first), NULL, 0, STAGES, &b) != TR_OK)
        fail_msg("%s\n%s", tr_last_error()->text, first);
    char *second = written(b);
    assert_string_equal(first, second);
    tr_config_table table;
    same_fields(tr_config_fields(STAGES, &table), a, b);
    free(first);
    free(second);
    tr_config_close(a);
    tr_config_close(b);
}

static void test_round_trip(void **state)
{
    (void)state;
    round_trip(GOOD);
    round_trip(SMALL);
    char *named = with(GOOD, "input: [3, 8, 8]", "inputs: {image: [3, 8, 8], \"no\": 4}");
    char *text = with(named, "inputs: x_train", "inputs: {image: x, \"no\": y}");
    char *both =
        with(text, "inputs: x_test", "inputs: {\"no\": \"null\", image: 'it''s \"that\"'}");
    char *odd = with(both, "output: out/digits", "output: \"- a: #b\\u00e9\\t\\u2028 \\\\ \"");
    round_trip(odd);
    char *stages = with(GOOD, "[train]",
                        "[train, {prune: {amount: .5, layer: x}}, quantize, {quantize: 4}, "
                        "{prune: {amount: 1, rounds: 2}}]");
    round_trip(stages);
    tr_free(stages);
    tr_free(named);
    tr_free(text);
    tr_free(both);
    tr_free(odd);
    tr_config *c = open_good("train.optimizer.lr=0.30000000000000004");
    assert_true(c->train.optimizer.o.lr == 0.30000000000000004);
    char *again = written(c);
    round_trip(again);
    free(again);
    tr_config_close(c);
}

/* Each stage with options of its own, as often as it stands there; overrides reach them. */
static void test_pipeline(void **state)
{
    (void)state;
    tr_config *c = NULL;
    char *text = with(GOOD, "[train]", "[train, {prune: {amount: .5}}, quantize: 4, prune]");
    const char *overrides[] = {"pipeline.3.amount=0.25", "pipeline.1.prune.layer=head"};
    if (open_with(text, overrides, 2, &c) != TR_OK) fail_msg("%s", tr_last_error()->text);
    assert_int_equal(c->pipeline.count, 4);
    static const int which[] = {0, 1, 2, 1};
    for (int i = 0; i < 4; i++) assert_int_equal(c->pipeline.items[i].which, which[i]);
    const good_prune *first = c->pipeline.items[1].options, *second = c->pipeline.items[3].options;
    assert_true(first->amount == .5 && first->rounds == 3 && second->amount == .25);
    assert_string_equal(first->layer, "head");
    assert_null(second->layer);
    assert_int_equal(*(const int64_t *)c->pipeline.items[2].options, 4);
    char *resolved = written(c);
    assert_non_null(strstr(resolved, "quantize: 4"));
    assert_non_null(strstr(resolved, "amount: 0.25"));
    free(resolved);
    tr_config_close(c);
    tr_free(text);

    /* a program without stages */
    assert_int_equal(tr_config_open("c.yaml", GOOD, strlen(GOOD), NULL, 0, NULL, &c), TR_CONFIG);
    assert_int_equal(tr_config_open("c.yaml", SMALL, strlen(SMALL), NULL, 0, NULL, &c), TR_OK);
    assert_int_equal(c->pipeline.count, 0);
    tr_config_close(c);
}

/* true and false are read as what they meant, and written as what they are called now. */
static void test_former_booleans(void **state)
{
    (void)state;
    enum { SYNC, DETERMINISTIC };
    static const struct {
        const char *given, *written;
        int key, kind;
    } words[] = {
        {"train.sync_batchnorm=true", "sync_batchnorm: all", SYNC, TR_SYNC_ALL},
        {"train.sync_batchnorm=all", "sync_batchnorm: all", SYNC, TR_SYNC_ALL},
        {"train.sync_batchnorm=node", "sync_batchnorm: node", SYNC, TR_SYNC_NODE},
        {"train.sync_batchnorm=none", "sync_batchnorm: none", SYNC, TR_SYNC_NONE},
        {"train.sync_batchnorm=false", "sync_batchnorm: none", SYNC, TR_SYNC_NONE},
        {"run.timeout=300", "deterministic: auto", DETERMINISTIC, TR_DETERMINISTIC_AUTO},
        {"run.deterministic=auto", "deterministic: auto", DETERMINISTIC, TR_DETERMINISTIC_AUTO},
        {"run.deterministic=on", "deterministic: on", DETERMINISTIC, TR_DETERMINISTIC_ON},
        {"run.deterministic=true", "deterministic: on", DETERMINISTIC, TR_DETERMINISTIC_ON},
        {"run.deterministic=off", "deterministic: off", DETERMINISTIC, TR_DETERMINISTIC_OFF},
        {"run.deterministic=false", "deterministic: off", DETERMINISTIC, TR_DETERMINISTIC_OFF}};
    tr_config *c = NULL;
    for (size_t i = 0; i < TR_COUNT(words); i++) {
        const char *given = words[i].given;
        assert_int_equal(tr_config_open("c.yaml", SMALL, strlen(SMALL), &given, 1, NULL, &c),
                         TR_OK);
        assert_int_equal(words[i].key == SYNC ? c->train.sync_batchnorm : c->run.deterministic,
                         words[i].kind);
        char *text = NULL;
        size_t n;
        FILE *to = open_memstream(&text, &n);
        assert_int_equal(tr_config_write(c, to), TR_OK);
        fclose(to);
        assert_non_null(strstr(text, words[i].written));
        free(text);
        tr_config_close(c);
    }
    const char *wrong = "train.sync_batchnorm=nodes";
    assert_int_equal(tr_config_open("c.yaml", SMALL, strlen(SMALL), &wrong, 1, NULL, &c),
                     TR_CONFIG);
    assert_non_null(strstr(tr_last_error()->text, "did you mean \"node\"?"));
}

static void test_paths(void **state)
{
    (void)state;
    tr_config *c = NULL;
    const char *folder = "data.folder=../there";
    assert_int_equal(tr_config_open("a/b/c.yaml", GOOD, strlen(GOOD), NULL, 0, STAGES, &c), TR_OK);
    char *path = tr_config_path(c, "x.h5"), *root = tr_config_path(c, "/x.h5");
    assert_string_equal(path, "a/b/x.h5");
    assert_string_equal(root, "/x.h5");
    tr_free(path);
    tr_free(root);
    tr_config_close(c);
    assert_int_equal(tr_config_open("a/c.yaml", GOOD, strlen(GOOD), &folder, 1, STAGES, &c), TR_OK);
    path = tr_config_path(c, "x.h5");
    assert_string_equal(path, "a/../there/x.h5");
    tr_free(path);
    tr_config_close(c);
    assert_int_equal(tr_config_open("/c.yaml", GOOD, strlen(GOOD), NULL, 0, STAGES, &c), TR_OK);
    path = tr_config_path(c, "x.h5");
    assert_string_equal(path, "/x.h5");
    tr_free(path);
    tr_config_close(c);
}

static void test_read_text(void **state)
{
    (void)state;
    char *text = NULL, name[] = "read_text_XXXXXX";
    size_t n = 0;
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    char block[10000];
    memset(block, 'x', sizeof(block));
    assert_int_equal(write(fd, block, sizeof(block)), sizeof(block));
    close(fd);
    assert_int_equal(tr_read_text(name, &text, &n), TR_OK);
    assert_int_equal(n, sizeof(block));
    assert_memory_equal(text, block, n);
    assert_int_equal(text[n], 0);
    tr_free(text);
    unlink(name);
    assert_int_equal(tr_read_text("no/such/file.yaml", &text, &n), TR_CONFIG);
    assert_string_equal(tr_last_error()->text,
                        "no/such/file.yaml: cannot be opened: No such file or directory");
    assert_int_equal(tr_read_text(".", &text, &n), TR_CONFIG);
    assert_string_equal(tr_last_error()->text, ".: is a folder, expected a file");
    assert_int_equal(tr_read_text("/dev/zero", &text, &n), TR_CONFIG);
    assert_string_equal(tr_last_error()->text, "/dev/zero: is a device, expected a file");
}

/* Each allocation in turn fails: an error, nothing leaked, nothing half-made. */
static void test_no_memory(void **state)
{
    (void)state;
    const char *overrides[] = {"train.optimizer.lr=0.5", "model.layers.1=relu",
                               "data.train.samples=5", "pipeline.1.prune.amount=1"};
    size_t held = tr_mem_held(TR_MEM_OTHER);
    uint64_t n = 1;
    for (;; n++) {
        tr_config *c = NULL;
        tr_mem_fail_at(n);
        tr_status st = open_with(GOOD, overrides, TR_COUNT(overrides), &c);
        tr_mem_fail_at(0);
        if (st == TR_OK) {
            tr_config_close(c);
            break;
        }
        assert_int_equal(st, TR_MEMORY);
        assert_int_equal(tr_last_error()->status, TR_MEMORY);
        assert_null(c);
        assert_int_equal(tr_mem_held(TR_MEM_OTHER), held);
    }
    assert_true(n > 10);
    tr_config *c = open_good(NULL);
    FILE *to = fopen("/dev/null", "w");
    for (n = 1;; n++) {
        size_t before = tr_mem_held(TR_MEM_OTHER);
        tr_mem_fail_at(n);
        tr_status st = tr_config_write(c, to);
        tr_mem_fail_at(0);
        assert_int_equal(tr_mem_held(TR_MEM_OTHER), before);
        if (st == TR_OK) break;
        assert_int_equal(st, TR_MEMORY);
    }
    fclose(to);
    tr_config_close(c);
    assert_int_equal(tr_mem_held(TR_MEM_OTHER), held);
}

/* A full disk is an error, not a short file that looks whole. */
static void test_write_fails(void **state)
{
    (void)state;
    tr_config *c = open_good(NULL);
    FILE *to = fopen("/dev/full", "w");
    if (!to) {
        tr_config_close(c);
        print_message("no /dev/full here\n");
        skip();
    }
    setvbuf(to, NULL, _IONBF, 0);
    assert_int_equal(tr_config_write(c, to), TR_IO);
    fclose(to);
    tr_config_close(c);
}

/* What only training finds out is told by its key. */
static void test_settled(void **state)
{
    (void)state;
    static const struct {
        const char *override, *key;
    } open[] = {
        {"data.normalize=auto", "data.normalize: auto"},
        {"data.table.categories={kind: auto}", "data.table.categories: auto"},
        {"model.loss={cross_entropy: {class_weights: balanced}}", "class_weights: balanced"},
        {"data.normalize_targets=auto", "data.normalize_targets: auto"}};
    for (size_t i = 0; i < TR_COUNT(open); i++) {
        const bool values = i == 3;
        const char *const overrides[] = {open[i].override};
        tr_config *c = values ? NULL : open_good(NULL), *d = NULL;
        if (values)
            assert_int_equal(tr_config_open("c.yaml", SMALL, strlen(SMALL), NULL, 0, NULL, &c),
                             TR_OK);
        assert_int_equal(tr_config_settled(c), TR_OK);
        assert_int_equal(tr_config_derive(c, &(tr_overrides){.texts = overrides, .count = 1}, &d),
                         TR_OK);
        assert_int_equal(tr_config_settled(d), TR_CONFIG);
        if (!strstr(tr_last_error()->text, open[i].key))
            fail_msg("no \"%s\" in: %s", open[i].key, tr_last_error()->text);
        tr_config_close(d);
        tr_config_close(c);
    }
}

/* A config that another one wrote out has that one's places, or the nearest above of what it did
 * not have. */
static void test_places_of_derived(void **state)
{
    (void)state;
    static const struct {
        const char *path, *place;
    } keys[] = {
        {"train.batch", "c.yaml:4:26: train.batch: no"},
        {"train.ema", "c.yaml:4:8: train.ema: no"},
        {"data.train.samples", "c.yaml:2:44: data.train.samples: no"},
        {"run.offload", "c.yaml:1:1: run.offload: no"},
        {"model.loss.mse", "c.yaml:3:41: model.loss.mse: no"},
        {"train.steps", "command line: train.steps=9: train.steps: no"},
        {"train.log_every", "command line: train.log_every=3: train.log_every: no"},
    };
    const char *const first[] = {"train.steps=9"}, *const then[] = {"train.log_every=3"};
    tr_config *c = NULL, *d = NULL, *e = NULL;
    assert_int_equal(tr_config_open("c.yaml", SMALL, strlen(SMALL), NULL, 0, NULL, &c), TR_OK);
    assert_int_equal(tr_config_derive(c, &(tr_overrides){.texts = first, .count = 1}, &d), TR_OK);
    tr_config_close(c);
    assert_int_equal(tr_config_derive(d, &(tr_overrides){.texts = then, .count = 1}, &e), TR_OK);
    tr_config_close(d);
    for (size_t i = 0; i < TR_COUNT(keys); i++) {
        assert_int_equal(tr_config_fail(e, keys[i].path, "no"), TR_CONFIG);
        assert_string_equal(tr_last_error()->text, keys[i].place);
    }
    tr_config_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_read_text),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_write_fails),
        cmocka_unit_test(test_former_booleans),
        cmocka_unit_test(test_settled),
        cmocka_unit_test(test_places_of_derived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
