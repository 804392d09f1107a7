/* Every class of bad config: the exact place and what is said. */
#include "tests/unit/config/good.h"

typedef struct {
    const char *from, *to; /* replaced in the good config */
    const char *expected;
} bad;

static const bad table[] = {
    /* unknown and missing keys */
    {"  batch: 64", "  bacth: 64",
     "c.yaml:25:3: train: unknown key \"bacth\"; did you mean \"batch\"?"},
    {"name: digits", "nmae: digits", "c.yaml:1:1: unknown key \"nmae\"; did you mean \"name\"?"},
    {"crop: 2", "zoom: 2",
     "c.yaml:9:13: data.augment: unknown key \"zoom\"; there are: crop, flip, rotate, "
     "scale, translate, color_jitter, random_erasing, random_resized_crop, mixup, cutmix"},
    {"crop: 2", "mixup: {alpha: 0}",
     "c.yaml:9:28: data.augment.mixup.alpha: found \"0\", expected a number from 0.01 to 1000"},
    {"crop: 2", "mixup: 0.2",
     "c.yaml:9:20: data.augment.mixup: found \"0.2\", expected a map of keys"},
    {"crop: 2", "scale: 2", "c.yaml:9:20: data.augment.scale: expected two numbers, [least, most]"},
    {"crop: 2", "random_resized_crop: {}",
     "c.yaml:9:34: data.augment.random_resized_crop: data.train is no folder of images"},
    {"labels: y_train}", "targets: [a, b]}",
     "c.yaml:6:59: data.train.targets: only format csv takes it: several values a sample are one "
     "array"},
    {"augment:", "image: {center_crop: true}\n  augment:",
     "c.yaml:9:10: data.image: only folders of images are resized and cropped"},
    {"momentum: 0.9", "beta1: 0.9",
     "c.yaml:29:31: train.optimizer.sgd: unknown key \"beta1\"; there are: lr, momentum, nesterov, "
     "weight_decay, decay_all"},
    {"  batch: 64\n", "",
     "c.yaml:24:3: train: required key \"batch\" is missing: global batch of a step, over all "
     "ranks (an "
     "integer from 1 to 2147483647)"},
    {"name: digits\n", "",
     "c.yaml:1:1: required key \"name\" is missing: of the experiment (a text)"},
    {"  epochs: 20\n", "",
     "c.yaml:24:3: train: required key \"epochs\" is missing: how long to train (or steps)"},
    {"  train: {path: data/digits.h5, inputs: x_train, labels: y_train}\n", "",
     "c.yaml:6:3: data: required key \"train\" is missing: the training set (a map of keys)"},
    {"lr: 1e-1, ", "",
     "c.yaml:29:20: train.optimizer.sgd: required key \"lr\" is missing: learning rate, of the "
     "global "
     "batch (a number from 0 to 1000000)"},
    {"  early_stop: {patience: 4}\n", "  metrics: [accuracy, r2]\n",
     "c.yaml:33:23: train.metrics.1: r2 is not measured of a model with this loss: there are "
     "accuracy, top5, f1, auc, perplexity, bits_per_byte"},
    {"  early_stop: {patience: 4}\n", "  metrics: [accuracy, perplexity]\n",
     "c.yaml:33:23: train.metrics.1: perplexity is of the plain cross entropy, which the loss is "
     "not: it has label_smoothing, gamma, class_weights or weights of samples"},
    {"  early_stop: {patience: 4}\n", "  metrics: [accuracy, bits_per_byte]\n",
     "c.yaml:33:23: train.metrics.1: bits_per_byte is of bytes: it is measured on data of format "
     "text, or of tokens with bytes_per_token"},
    {"  early_stop: {patience: 4}\n", "  eval: {every_epochs: none}\n  metrics: [f1]\n",
     "c.yaml:34:12: train.metrics: without evaluations (data.eval, train.eval) nothing is "
     "measured"},
    {"  early_stop: {patience: 4}\n", "  result: ema\n",
     "c.yaml:33:11: train.result: there is no average of the weights: set train.ema"},
    {"keep: all}", "keep: all, best: false}\n  result: best",
     "c.yaml:33:11: train.result: there is no best: it needs evaluations (data.eval, train.eval) "
     "and train.checkpoint.best"},
    {"step: {milestones: [10, 15], warmup: 5}", "cosine: {restart: [5, 5]}",
     "c.yaml:30:13: train.schedule: restart must ascend, found 5 after 5"},
    /* integers */
    {"batch: 64", "batch: 0",
     "c.yaml:25:10: train.batch: found \"0\", expected an integer from 1 to 2147483647"},
    {"batch: 64", "batch: 1_000",
     "c.yaml:25:10: train.batch: found \"1_000\", expected an integer from 1 to 2147483647"},
    {"batch: 64", "batch: 64.0",
     "c.yaml:25:10: train.batch: found \"64.0\", expected an integer from 1 to 2147483647"},
    {"batch: 64", "batch: 0x40",
     "c.yaml:25:10: train.batch: found \"0x40\", expected an integer from 1 to 2147483647"},
    {"batch: 64", "batch: 064",
     "c.yaml:25:10: train.batch: found \"064\", expected an integer from 1 to 2147483647"},
    {"batch: 64", "batch: 64k",
     "c.yaml:25:10: train.batch: found \"64k\", expected an integer from 1 to 2147483647"},
    {"batch: 64",
     "batch:", "c.yaml:25:9: train.batch: found nothing, expected an integer from 1 to 2147483647"},
    {"batch: 64", "batch: [64]",
     "c.yaml:25:10: train.batch: found a list of 1, expected an integer from 1 to 2147483647"},
    {"batch: 64", "batch: {n: 64}",
     "c.yaml:25:10: train.batch: found a map of 1, expected an integer from 1 to 2147483647"},
    {"batch: 64", "batch: \"64\"",
     "c.yaml:25:10: train.batch: found the quoted text \"64\", expected an integer from 1 to "
     "2147483647"},
    {"batch: 64", "batch: 99999999999999999999",
     "c.yaml:25:10: train.batch: found \"99999999999999999999\", expected an integer from 1 to "
     "2147483647"},
    {"seed: 7", "seed: -1",
     "c.yaml:2:7: seed: found \"-1\", expected an integer from 0 to 9223372036854775807"},
    {"seed: 7", "seed: 9223372036854775808",
     "c.yaml:2:7: seed: found \"9223372036854775808\", out of range: expected an integer from 0 to "
     "9223372036854775807"},
    {"micro_batch: 16", "micro_batch: full",
     "c.yaml:26:16: train.micro_batch: found \"full\", expected an integer from 1 to 2147483647, "
     "or auto, or max"},
    {"micro_batch: 16", "micro_batch: 65",
     "c.yaml:26:16: train.micro_batch: 65 is more than the global batch of 64"},
    /* numbers */
    {"clip_norm: 1.5", "clip_norm: nan",
     "c.yaml:28:14: train.clip_norm: found \"nan\", expected a number of at least 1e-30, or none"},
    {"clip_norm: 1.5", "clip_norm: .inf",
     "c.yaml:28:14: train.clip_norm: found \".inf\", expected a number of at least 1e-30, or none"},
    {"clip_norm: 1.5", "clip_norm: 1e999",
     "c.yaml:28:14: train.clip_norm: found \"1e999\", out of range: expected a number "
     "from 1e-30 to 1.8e308, or none"},
    {"clip_norm: 1.5", "clip_norm: 1.5x",
     "c.yaml:28:14: train.clip_norm: found \"1.5x\", expected a number of at least 1e-30, or none"},
    {"clip_norm: 1.5", "clip_norm: -1",
     "c.yaml:28:14: train.clip_norm: found \"-1\", expected a number of at least 1e-30, or none"},
    {"momentum: 0.9", "momentum: 1",
     "c.yaml:29:41: train.optimizer.sgd.momentum: found \"1\", expected a number from 0 to "
     "0.999999"},
    {"label_smoothing: 0.1", "label_smoothing: 1.1",
     "c.yaml:21:43: model.loss.cross_entropy.label_smoothing: found \"1.1\", expected a number "
     "from 0 to 1"},
    {"  precision: fp16", "  loss_scale: 0",
     "c.yaml:27:15: train.loss_scale: found \"0\", expected a number from 1e-06 to 1000000000000, "
     "or auto, "
     "or none, or dynamic"},
    /* booleans, choices, variants, lists, texts */
    {"flip: true", "flip: yes",
     "c.yaml:9:28: data.augment.flip: found \"yes\", expected true or false"},
    {"flip: true", "flip: \"true\"",
     "c.yaml:9:28: data.augment.flip: found the quoted text \"true\", expected true or false"},
    {"precision: fp16", "precision: fp1",
     "c.yaml:27:14: train.precision: found \"fp1\", expected one of fp32, bf16, fp16; did you mean "
     "\"fp16\"?"},
    {"device: cpu", "device: tpu",
     "c.yaml:4:9: device: found \"tpu\", expected one of auto, cpu, cuda; did you mean \"cpu\"?"},
    {"{sgd: {lr: 1e-1, momentum: 0.9, nesterov: true}}", "adamm",
     "c.yaml:29:14: train.optimizer: found \"adamm\", expected one of sgd, adamw, lion, adam, "
     "rmsprop, "
     "lars, lamb; did you mean \"adamw\"?"},
    {"{sgd: {", "{sgdd: {",
     "c.yaml:29:15: train.optimizer: unknown key \"sgdd\"; did you mean \"sgd\"?"},
    {"{sgd: {", "{lion: {}, sgd: {",
     "c.yaml:29:25: train.optimizer: both \"lion\" and \"sgd\", expected one"},
    {"{sgd: {", "{lr: 1, sgd: {",
     "c.yaml:29:15: train.optimizer.sgd: key \"lr\" stands twice; it is already at 29:28"},
    {"{sgd: {lr: 1e-1, momentum: 0.9, nesterov: true}}", "[sgd]",
     "c.yaml:29:14: train.optimizer: found a list of 1, expected one of sgd, adamw, lion, adam, "
     "rmsprop, lars, lamb"},
    {"{every: 2}", "{every: 0}",
     "c.yaml:31:22: train.recompute.every.every: found \"0\", expected an integer from 1 to "
     "1000000"},
    {"[10, 15]", "[]",
     "c.yaml:30:33: train.schedule.step.milestones: found a list of 0, expected up to 8 of: a "
     "number of epochs, N steps, N epochs, N%"},
    {"[10, 15]", "[10, 2 weeks]",
     "c.yaml:30:38: train.schedule.step.milestones: found \"2 weeks\", expected up to 8 of: a "
     "number of epochs, N steps, N epochs, N%"},
    {"[10, 15]", "[1.5 steps]",
     "c.yaml:30:34: train.schedule.step.milestones: found \"1.5 steps\", expected up to 8 of: a "
     "number of epochs, N steps, N epochs, N%"},
    {"[10, 15]", "[15, 15]",
     "c.yaml:30:13: train.schedule: milestones must ascend, found 15 after 15"},
    {"[3, 8, 8]", "[3, 0, 8]",
     "c.yaml:13:14: model.input: found \"0\", expected up to 8 integers from 1 to 1000000000"},
    {"[3, 8, 8]", "[1, 1, 1, 1, 1, 1, 1, 1, 1]",
     "c.yaml:13:10: model.input: found a list of 9, expected up to 8 integers from 1 to "
     "1000000000"},
    {"[1, 2, .5]", "[1, -2, .5]",
     "c.yaml:21:67: model.loss.cross_entropy.class_weights: found \"-2\", expected up to 4096 "
     "numbers from 0 "
     "to 1000000000, or balanced"},
    {"[1, 2, .5]", "[0, 0, 0]", "c.yaml:21:9: model.loss: class_weights are all 0"},
    {"{path: data/digits.h5, inputs: x_train, labels: y_train}", "{path: x.bin, weights: w}",
     "c.yaml:6:33: data.train.weights: format cifar10 takes no names"},
    {"  batch: 64\n", "  batch: 64\n  groups: [{match: a, beta1: 0.5}]\n",
     "c.yaml:26:12: train.groups.0.beta1: train.optimizer has none"},
    {"  batch: 64\n", "  batch: 64\n  groups: [{match: a, momentum: 1}]\n",
     "c.yaml:26:33: train.groups.0.momentum: found \"1\", expected a number from 0 to 0.999999, or "
     "auto"},
    {"  batch: 64\n", "  batch: 64\n  groups: [{match: a, eps: 1e-6}]\n",
     "c.yaml:26:12: train.groups.0.eps: train.optimizer has none"},
    {"{cross_entropy: {label_smoothing: 0.1, class_weights: [1, 2, .5]}}", "{huber: {delta: 0}}",
     "c.yaml:21:25: model.loss.huber.delta: found \"0\", expected a number from 1e-09 to "
     "1000000000"},
    {"{cross_entropy: {label_smoothing: 0.1, class_weights: [1, 2, .5]}}",
     "{smooth_l1: {beta: -1}}",
     "c.yaml:21:28: model.loss.smooth_l1.beta: found \"-1\", expected a number from 0 to "
     "1000000000"},
    {"{cross_entropy: {label_smoothing: 0.1, class_weights: [1, 2, .5]}}", "{focal: {alpha: 2}}",
     "c.yaml:21:25: model.loss.focal.alpha: found \"2\", expected a number from 0 to 1, or none"},
    {"{cross_entropy: {label_smoothing: 0.1, class_weights: [1, 2, .5]}}",
     "{bce: {pos_weight: [1, -1]}}",
     "c.yaml:21:32: model.loss.bce.pos_weight: found \"-1\", expected up to 4096 numbers from 0 to "
     "1000000000"},
    {"{cross_entropy: {label_smoothing: 0.1, class_weights: [1, 2, .5]}}",
     "{cross_entropy: {ignore_index: 0.5}}",
     "c.yaml:21:40: model.loss.cross_entropy.ignore_index: found \"0.5\", expected an integer from "
     "-2147483648 to 2147483647, or none"},
    {"{cross_entropy: {label_smoothing: 0.1, class_weights: [1, 2, .5]}}",
     "{cross_entropy: {targets: soft}}",
     "c.yaml:21:35: model.loss.cross_entropy.targets: found \"soft\", expected one of labels, "
     "probabilities"},
    {"{cross_entropy: {label_smoothing: 0.1, class_weights: [1, 2, .5]}}",
     "{cross_entropy: {targets: probabilities, ignore_index: -100}}",
     "c.yaml:21:9: model.loss: ignore_index is of targets: labels; probabilities have no class "
     "number"},
    {"{cross_entropy: {label_smoothing: 0.1, class_weights: [1, 2, .5]}}",
     "{cross_entropy: {targets: probabilities, class_weights: balanced}}",
     "c.yaml:21:9: model.loss: class_weights: balanced counts class labels, and targets are "
     "probabilities"},
    {"{cross_entropy: {label_smoothing: 0.1, class_weights: [1, 2, .5]}}",
     "{cross_entropy: {targets: probabilities, gamma: 2}}",
     "c.yaml:21:9: model.loss: gamma is of targets: labels; probabilities have no one class to be "
     "right about"},
    {"{cross_entropy: {label_smoothing: 0.1, class_weights: [1, 2, .5]}}",
     "{cross_entropy: {gamma: 2, label_smoothing: 0.1}}",
     "c.yaml:21:9: model.loss: gamma and label_smoothing are given: expected one of them"},
    {"model:\n", "model:\n  sketch: {terms: 2}\n",
     "c.yaml:13:11: model.sketch: required key \"rank\" is missing: of the sketched layers (an "
     "integer "
     "from 1 to 1048576)"},
    {"model:\n", "model:\n  sketch: {rank: 0}\n",
     "c.yaml:13:18: model.sketch.rank: found \"0\", expected an integer from 1 to 1048576"},
    {"model:\n", "model:\n  sketch: {rank: 2, match: [a, {}]}\n",
     "c.yaml:13:32: model.sketch.match: found a map of 0, expected a pattern of names such as "
     "\"conv1.*\", with at most 4 *"},
    {"model:\n", "model:\n  round_dims: 0\n",
     "c.yaml:13:15: model.round_dims: found \"0\", expected an integer from 1 to 4096, or auto, or "
     "off"},
    {"name: digits", "name: [a]", "c.yaml:1:7: name: found a list of 1, expected a text"},
    {"name: digits", "name: ../x",
     "c.yaml:1:7: name: \"../x\" names files: expected letters, digits, and after the first also . "
     "_ -"},
    {"workers: 3", "workers: {}",
     "c.yaml:10:12: data.workers: found a map of 0, expected an integer from 0 to 256"},
    {"augment: {crop: 2, flip: true}", "augment: 2",
     "c.yaml:9:12: data.augment: found \"2\", expected a map of keys"},
    /* keys that belong together */
    {"threads: 2, ", "benchmark: true, deterministic: on, ",
     "c.yaml:35:18: run.benchmark: which candidate is the fastest differs from run to run, and "
     "with "
     "it the last bits: it needs run.deterministic: auto or off"},
    {"input: [3, 8, 8]", "inputs: {a: [3, 8, 8], b: 4}",
     "c.yaml:6:41: data.train.inputs: found \"x_train\", expected a map with a text for each of "
     "the "
     "model's inputs"},
    {"input: [3, 8, 8]", "input: [3, 8, 8]\n  inputs: {a: 4}",
     "c.yaml:14:11: model.inputs: model.input is given too: expected one"},
    {"  input: [3, 8, 8]\n", "",
     "c.yaml:13:3: model: required key \"input\" is missing: dimensions of one sample, such as [1, "
     "8, 8] (or "
     "inputs, for several)"},
    {"input: [3, 8, 8]", "inputs: {a: [3, x]}",
     "c.yaml:13:19: model.inputs.a: found \"x\", expected up to 8 integers from 1 to 1000000000"},
    {"inputs: x_train", "inputs: {a: x}",
     "c.yaml:6:42: data.train.inputs: the model has no input \"a\""},
    {"inputs: x_train", "inputs: [x]",
     "c.yaml:6:41: data.train.inputs: found a list of 1, expected a text"},
    {"inputs: x_train", "inputs: {inptu: x}",
     "c.yaml:6:42: data.train.inputs: the model has no input \"inptu\"; did you mean \"input\"?"},
    {"inputs: x_train", "inputs: {input: [x]}",
     "c.yaml:6:49: data.train.inputs.input: found a list of 1, expected a text"},
    {"train: {path: data/digits.h5, ", "train: {path: data/digits.xyz, ",
     "c.yaml:6:17: data.train.path: \"data/digits.xyz\" does not tell its format (nor is there "
     "such a "
     "folder of images): add format: hdf5, npz, csv, idx, npy, cifar10, cifar100, folder, text or "
     "tokens"},
    {"train: {path: data/digits.h5, ", "train: {path: a, format: npy, stride: 3, ",
     "c.yaml:6:41: data.train.stride: only formats text and tokens take it"},
    {"train: {path: data/digits.h5, ", "train: {path: data/digits.h5, documents: 0, ",
     "c.yaml:6:44: data.train.documents: only formats text and tokens take it"},
    {"{path: data/digits.h5, inputs: x_train, labels: y_train}",
     "{path: a.txt, stride: 4, documents: 1}",
     "c.yaml:6:32: data.train.stride: documents are cut into pieces of the window's length: give "
     "stride or documents"},
    {"{path: data/digits.h5, inputs: x_train, labels: y_train}", "{path: a.txt, documents: 256}",
     "c.yaml:6:35: data.train.documents: found 256, expected an id from 0 to 255, as bytes have"},
    {"{path: data/digits.h5, inputs: x_train, labels: y_train}",
     "{path: a.bin, format: tokens, dtype: uint16, documents: 65536}",
     "c.yaml:6:66: data.train.documents: found 65536, expected an id from 0 to 65535, as tokens of "
     "uint16 have"},
    {"{path: data/digits.h5, inputs: x_train, labels: y_train}", "{path: a.txt, dtype: uint8}",
     "c.yaml:6:31: data.train.dtype: only format tokens takes it"},
    {"train: {path: data/digits.h5, ", "train: {format: hdf5, ",
     "c.yaml:6:10: data.train.path: format hdf5 needs the file"},
    {"train: {path: data/digits.h5, ", "train: {path: a, format: npy, ",
     "c.yaml:6:17: data.train.path: format npy takes its files as inputs and labels"},
    {", labels: y_train", "",
     "c.yaml:6:10: data.train.labels: format hdf5 needs the dataset of the labels"},
    {"labels: y_train", "labels: y, classes: 3",
     "c.yaml:6:70: data.train.classes: only format synthetic takes it"},
    {"{path: data/digits.h5, inputs: x_train, labels: y_train}", "{format: synthetic}",
     "c.yaml:6:10: data.train: format synthetic needs samples"},
    {"{path: data/digits.h5, inputs: x_train, labels: y_train}",
     "{format: synthetic, samples: 3, path: x}",
     "c.yaml:6:48: data.train.path: format synthetic reads no file"},
    {"{path: data/digits.h5, inputs: x_train, labels: y_train}", "{}",
     "c.yaml:6:10: data.train.path: no file is given, nor format: synthetic"},
    {"{path: data/digits.h5, inputs: x_train, labels: y_train}", "{path: x.bin, labels: y}",
     "c.yaml:6:32: data.train.labels: format cifar10 takes no names"},
    {"mean: 0.5", "mean: [1, 2]", "c.yaml:8:34: data.normalize.std: 3 values, where mean has 2"},
    {"{mean: 0.5, std: [16.0, 8, 4]}", "3",
     "c.yaml:8:14: data.normalize: found \"3\", expected a map of mean and std, or auto"},
    {"  workers: 3\n", "  split: {stratify: true}\n",
     "c.yaml:10:10: data.split: required key \"fraction\" is missing: of data.train's samples, "
     "that are held out: at least one, and not all (a number from 1e-06 to 0.999999)"},
    {"  workers: 3\n", "  split: {fraction: 1}\n",
     "c.yaml:10:21: data.split.fraction: found \"1\", expected a number from 1e-06 to 0.999999"},
    {"  workers: 3\n", "  normalize_targets: auto\n",
     "c.yaml:10:22: data.normalize_targets: the loss takes no values: expected mse, l1, "
     "huber or smooth_l1"},
    {"  workers: 3\n", "  table: {delimiter: ab}\n",
     "c.yaml:10:22: data.table.delimiter: expected one character that is neither a quote nor a "
     "line's end"},
    {"  workers: 3\n", "  table: {categories: {a: b}}\n",
     "c.yaml:10:27: data.table.categories.a: found \"b\", expected a list of texts, or auto"},
    {"  workers: 3\n", "  class_names: a\n",
     "c.yaml:10:16: data.class_names: found \"a\", expected a list of texts"},
    {"  workers: 3\n", "  predict: {path: a.npz}\n",
     "c.yaml:10:12: data.predict.inputs: format npz needs the dataset of the inputs"},
    {"mean: 0.5", "maen: 0.5",
     "c.yaml:8:15: data.normalize: unknown key \"maen\"; did you mean \"mean\"?"},
    {"std: [16.0, 8, 4]", "std: [1, 0]",
     "c.yaml:8:35: data.normalize.std: found \"0\", expected up to 4096 numbers of at least 1e-30"},
    {"{mean: 0.5, std: [16.0, 8, 4]}", "{inptu: {mean: 0.5}}",
     "c.yaml:8:15: data.normalize: the model has no input \"inptu\"; did you mean \"input\"?"},
    {"{mean: 0.5, std: [16.0, 8, 4]}", "{input: {mean: [1, 2], std: [1, 2, 3]}}",
     "c.yaml:8:42: data.normalize.input.std: 3 values, where mean has 2"},
    {"{mean: 0.5, std: [16.0, 8, 4]}", "{input: {mean: 1}, mean: 2}",
     "c.yaml:8:33: data.normalize: the model has no input \"mean\""},
    {"micro_batch: 16", "accumulate: 65",
     "c.yaml:26:15: train.accumulate: 65 micro-batches of a global batch of 64"},
    {"micro_batch: 16", "micro_batch: 16\n  accumulate: 4",
     "c.yaml:27:15: train.accumulate: train.micro_batch says already how the batch is cut: give "
     "one "
     "of them"},
    {"threads: 2", "nice: 20",
     "c.yaml:35:13: run.nice: found \"20\", expected an integer from -20 to 19"},
    {"momentum: 0.9, ", "", "c.yaml:29:14: train.optimizer: nesterov needs momentum"},
    {"  eval: {path: data/digits.h5, inputs: x_test, labels: y_test, samples: 100}\n", "",
     "c.yaml:32:15: train.early_stop: without evaluations (data.eval, train.eval) nothing can stop "
     "early"},
    {"  checkpoint: {every_steps: 200, keep: all}", "  checkpoint: {every_epochs: none}",
     "c.yaml:34:17: train.on_nonfinite: rollback needs train.checkpoint"},
    {"  layers:\n", "  layers: []\n  init: zeros\n  x:\n",
     "c.yaml:24:3: key \"init\" stands twice; it is already at 15:3"},
    /* the pipeline */
    {"[train]", "train",
     "c.yaml:36:11: pipeline: found \"train\", expected a list of train, prune, quantize; did you "
     "mean [train]?"},
    {"[train]", "[]",
     "c.yaml:36:11: pipeline: found a list of 0, expected a list of train, prune, quantize"},
    {"[train]", "[trian]",
     "c.yaml:36:12: pipeline.0: found \"trian\", expected one of train, prune, quantize; did you "
     "mean \"train\"?"},
    {"[train]", "[train, {quantise: {bits: 8}}]",
     "c.yaml:36:20: pipeline.1: unknown key \"quantise\"; did you mean \"quantize\"?"},
    {"[train]", "[train, {export: {}}]",
     "c.yaml:36:20: pipeline.1: unknown key \"export\", expected one of train, prune, quantize"},
    {"[train]", "[{train: {x: 1}}]",
     "c.yaml:36:21: pipeline.0.train: unknown key \"x\"; it has no options"},
    {"[train]", "[{train: 1}]",
     "c.yaml:36:20: pipeline.0.train: found \"1\", expected a map of keys"},
    {"[train]", "[[train]]",
     "c.yaml:36:12: pipeline.0: found a list of 1, expected one of train, prune, quantize"},
    {"[train]", "[train, prune]",
     "c.yaml:36:19: pipeline.1.prune: required key \"amount\" is missing: share of the weights (a "
     "number from 0 to 1)"},
    {"[train]", "[{prune: {amount: 1, layer: a}}, {prune: {amount: 1, layer: b, rounds: 99}}]",
     "c.yaml:36:82: pipeline.1.prune.rounds: found \"99\", expected an integer from 1 to 9"},
    {"[train]", "[{prune: {amount: .1}, quantize: {}}]",
     "c.yaml:36:34: pipeline.0: both \"prune\" and \"quantize\", expected one"},
};

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < TR_COUNT(table); i++) {
        char *text = with(GOOD, table[i].from, table[i].to);
        refuse(text, NULL, table[i].expected);
        tr_free(text);
    }
}

static void test_without_eval(void **state)
{
    (void)state;
    static const char *const text = "name: n\n"
                                    "data: {train: {format: synthetic, samples: 9}}\n"
                                    "model: {input: 4, layers: [relu], loss: mse}\n"
                                    "train: {epochs: 1, batch: 2}\n";
    refuse(
        text, "train.eval.every_steps=2",
        "command line: train.eval.every_steps=2: train.eval: there is no data.eval to evaluate on");
    refuse(
        text, "train.eval.batch=2",
        "command line: train.eval.batch=2: train.eval.batch: there is no data.eval to evaluate on");
    refuse(text, "train.checkpoint.best=true",
           "command line: train.checkpoint.best=true: train.checkpoint.best: there is no data.eval "
           "to judge by");
    refuse(text, "train.schedule=plateau",
           "command line: train.schedule=plateau: train.schedule: plateau needs evaluations "
           "(data.eval, "
           "train.eval)");
    refuse(
        text, "model.layers=relu",
        "command line: model.layers=relu: model.layers: found \"relu\", expected a list of layers");
    refuse(text, "model.layers=",
           "command line: model.layers=: model.layers: found nothing, expected a list "
           "of layers");
}

static void test_not_a_map(void **state)
{
    (void)state;
    refuse("", NULL, "c.yaml:1:1: found nothing, expected a map of keys such as name, data, model");
    refuse("# only this\n", NULL,
           "c.yaml:1:1: found nothing, expected a map of keys such as name, data, model");
    refuse("- a\n", NULL,
           "c.yaml:1:1: found a list of 1, expected a map of keys such as name, data, model");
    refuse("text", NULL,
           "c.yaml:1:1: found \"text\", expected a map of keys such as name, data, model");
}

/* Numbers too large for what holds them: the value and the range are said. */
static void test_out_of_range(void **state)
{
    (void)state;
    static const struct {
        const char *assignment, *text;
    } cases[] = {
        {"seed=9223372036854775808", "found \"9223372036854775808\", out of range: expected an "
                                     "integer from 0 to 9223372036854775807"},
        {"seed=1e300", "out of range: expected an integer from 0 to 9223372036854775807"},
        {"run.timeout=1e400", "found \"1e400\", expected a number from 1 to 10000000"},
        {"train.batch=1e300", "found \"1e300\", expected an integer from 1 to 2147483647"},
    };
    for (size_t i = 0; i < TR_COUNT(cases); i++) {
        tr_config *c = NULL;
        const char *overrides[] = {cases[i].assignment};
        assert_int_equal(tr_config_open("c.yaml", GOOD, strlen(GOOD), overrides, 1, NULL, &c),
                         TR_CONFIG);
        assert_non_null(strstr(tr_last_error()->text, cases[i].text));
        assert_null(c);
    }
}

/* What a file says is never printed raw. */
static void test_terminal_safe(void **state)
{
    (void)state;
    char *text = with(GOOD, "device: cpu", "device: \"\\e[31m\\x9b\\n\"");
    refuse(text, NULL,
           "c.yaml:4:9: device: found \"\\x1b[31m\\x9b\\x0a\", expected one of auto, cpu, cuda");
    tr_free(text);
    char longer[400];
    memset(longer, 'x', sizeof longer);
    memcpy(longer, "device: ", 8);
    longer[sizeof longer - 1] = 0;
    text = with(GOOD, "device: cpu", longer);
    refuse(text, NULL,
           "c.yaml:4:9: device: found "
           "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...\", "
           "expected one of auto, cpu, cuda");
    tr_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),         cmocka_unit_test(test_without_eval),
        cmocka_unit_test(test_not_a_map),     cmocka_unit_test(test_out_of_range),
        cmocka_unit_test(test_terminal_safe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
