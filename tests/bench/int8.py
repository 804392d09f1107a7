#!/usr/bin/env python3
"""What 8 bits cost on MNIST, beside what is promised: the tables of docs/pipeline.md, and status 1 where a bound is missed.

    tests/bench/int8.py build/release/bin/trainer FOLDER [--networks plain depthwise] [--seeds 3 4 5]

FOLDER has train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz: 5,000 are trained on, and the 3,000 behind them report. One rank, one thread.
Bounds are on the plain network: ways to train it on begin with the same float32 network and take as long, so that what is compared differs in bits
alone; means are over the seeds, with one sample of room. The narrow one of depthwise convolutions is where 8 bits lose.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import tempfile

CONFIG = """
name: int8
output: {out}
seed: {seed}
device: cpu
data:
  train: {{inputs: {folder}/train-images-idx3-ubyte.gz, labels: {folder}/train-labels-idx1-ubyte.gz, samples: 5000}}
  eval: {{inputs: {folder}/train-images-idx3-ubyte.gz, labels: {folder}/train-labels-idx1-ubyte.gz, offset: 5000, samples: 3000}}
  normalize: {{mean: 33, std: 78}}
model:
  input: [1, 28, 28]
  layers:
    {layers}
    - global_avgpool
    - flatten
    - linear: {{out: 10}}
  loss: cross_entropy
train:
  epochs: {epochs}
  batch: 64
  optimizer: {{adamw: {{lr: {lr}}}}}
  schedule: {{cosine: {{warmup: 0}}}}
  checkpoint: {{every_epochs: none}}
  eval: {{every_epochs: {epochs}}}
run: {{threads: 1}}
pipeline: [train, fold]
"""
FOLDED, TRAINED, CLIPPED = "float32, folded", "float32, trained on", "quantize: {weights: per_tensor, calibrate: entropy}"
LEARNED = "+ finetune: {scales: learned}"
SAMPLE = 100 / 3000  # points


def conv(out, kernel=3, stride=1, groups=1):
    return [f"conv2d: {{out: {out}, kernel: {kernel}, stride: {stride}, padding: {kernel // 2}, groups: {groups}, bias: false}}", "batchnorm", "relu"]


def on(epochs, lr, *options):
    return ["finetune", *options, f"train={{epochs: {epochs}, eval: {{every_epochs: {epochs}}}, optimizer: {{sgd: {{lr: {lr}, momentum: 0.9}}}}, "
            "schedule: {cosine: {warmup: 0}}}"]


# Of each network its layers, epochs and learning rate; of each model (name, of which, stage and its options).
PLAIN = (conv(16, stride=2) + conv(32, stride=2) + conv(32) + conv(64, stride=2), 8, 0.01,
         [(TRAINED, FOLDED, on(4, 0.001)),
          ("quantize", FOLDED, ["quantize", "layers=all"]),
          ("+ finetune", "quantize", on(4, 0.001)),
          (LEARNED, "quantize", on(4, 0.001, "scales=learned")),
          (CLIPPED, FOLDED, ["quantize", "layers=all", "weights=per_tensor", "calibrate=entropy"]),
          ("that + finetune", CLIPPED, on(4, 0.001)),
          ("that + finetune: {scales: learned}", CLIPPED, on(4, 0.001, "scales=learned"))])
DEPTHWISE = (conv(8, stride=2) + 6 * (conv(8, groups=8) + conv(8, kernel=1)) + conv(16, stride=2) + conv(16, kernel=1), 6, 0.02,
             [(TRAINED, FOLDED, on(3, 0.001)),
              ("quantize", FOLDED, ["quantize", "layers=all"]),
              (CLIPPED, FOLDED, ["quantize", "layers=all", "weights=per_tensor", "calibrate=entropy"]),
              ("that + finetune, 3 epochs, lr 0.002", CLIPPED, on(3, 0.002)),
              ("that + scales: learned, 3 epochs, lr 0.001", CLIPPED, on(3, 0.001, "scales=learned"))])
NETWORKS = {"plain": PLAIN, "depthwise": DEPTHWISE}


def call(*arguments):
    done = subprocess.run(list(map(str, arguments)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(done.stdout)
    return done.stdout


def measure(trainer, data, network, seed, folder):
    """{name: accuracy in percent}, and what the int8 file takes of the float32 one."""
    layers, epochs, lr, models = network
    config = folder / "int8.yaml"
    config.write_text(CONFIG.format(out=folder / "run", seed=seed, folder=data, epochs=epochs, lr=lr,
                                    layers="\n    ".join(f"- {layer}" for layer in layers)))
    call(trainer, config)
    files, found = {FOLDED: folder / "run/stages/01-fold.h5"}, {}
    for i, (name, of, (stage, *options)) in enumerate(models):
        path = folder / f"{i}.h5"
        shutil.copy(files[of], path)
        call(trainer, stage, path, *options, "run.threads=1")
        files[name] = folder / f"{i}-{stage}.h5"
    for name, path in files.items():
        found[name] = 100 * json.loads(call(trainer, "inspect", path, "--json"))["stages"][-1]["values"]["accuracy"]
    return found, files["quantize"].stat().st_size / (folder / "run/model.h5").stat().st_size


def table(trainer, data, network, seeds):
    """Printed; returns the accuracies by seed."""
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="trireme-int8-") as folder:
            accuracies, size = measure(trainer, data, network, seed, pathlib.Path(folder))
        found.append(accuracies)
    print(f"{'accuracy, %':52}" + "".join(f"    seed {s:<2}" for s in seeds) + "      mean")
    for name in found[0]:
        row = [f[name] for f in found]
        print(f"{name:52}" + "".join(f"{v:10.2f}" for v in [*row, statistics.mean(row)]))
    print(f"int8 file of the float32 one: {100 * size:.1f} %")
    return found


def keeps_promises(found):
    kept = True
    for what, before, after, bound in (("quantize, below float32", FOLDED, "quantize", 0.5),
                                       ("trained on with learned scales, below float32 trained on", TRAINED, LEARNED, 0.1)):
        loss = statistics.mean(f[before] - f[after] for f in found)
        print(f"{what}: {loss:+.2f} points, promised {bound}")
        kept = kept and loss < bound + SAMPLE
    return kept


def main():
    p = argparse.ArgumentParser()
    p.add_argument("trainer", type=pathlib.Path)
    p.add_argument("data", type=pathlib.Path)
    p.add_argument("--networks", choices=NETWORKS, nargs="+", default=list(NETWORKS))
    p.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5])
    o = p.parse_args()
    kept = True
    for name in o.networks:
        print(f"{name} network")
        found = table(o.trainer.resolve(), o.data.resolve(), NETWORKS[name], o.seeds)
        kept = (name != "plain" or keeps_promises(found)) and kept
    raise SystemExit(not kept)


if __name__ == "__main__":
    main()
