"""Op cases of rows: sequences, attention, recurrent layers."""
from parts import CE, HEAD, IMAGE, MSE, features, pre


def tokens():
    """Rows before and out of (rows, features)."""
    yield "class_token", [5, 11], features(("class_token", {"name": "op"}), ("tanh", {}), ("linear", {"out": 6, "name": "b"})), MSE
    yield "class_token_wide", [5, 11], features(("class_token", {"name": "op"}), ("gelu", {}), out=16), MSE
    yield "class_token_selected", [4, 9], features(
        ("class_token", {"name": "op"}), ("linear", {"out": 7, "name": "b"}), ("select", {"index": 0})), CE
    for index in (0, 3, -1):
        yield f"select_{index}".replace("-1", "last"), [5, 11], features(("select", {"index": index}), ("tanh", {}), out=16), CE


def sequences():
    """Rows that are told apart, and a class for each of them, or for each place of an image."""
    def rows(*middle):
        return [("embedding", {"num": 11, "dim": 6, "name": "op"}), *middle, ("gelu", {}), ("linear", {"out": 5, "name": "head"})]

    weights = [0.5, 2.0, 1.0, 0.25, 1.5]
    options = {"": {}, "_smoothing": {"label_smoothing": 0.2, "class_weights": weights},
               "_ignored": {"ignore_index": -100}, "_gamma": {"gamma": 1.5, "ignore_index": -1, "class_weights": weights},
               "_probabilities": {"targets": "probabilities", "label_smoothing": 0.1}}
    for name, of in options.items():
        yield f"cross_entropy_rows{name}", [7], rows(), ("cross_entropy", of)
        yield f"cross_entropy_image{name}", IMAGE, [pre(), ("conv2d", {"out": 5, "kernel": 3, "name": "head"})], (
            "cross_entropy", of)
    yield "positions", [7], rows(("positions", {"name": "p"}), ("linear", {"out": 6, "name": "mix"})), CE
    yield "positions_values", [7, 5], [
        ("linear", {"out": 6, "name": "a"}), ("positions", {"name": "p"}), ("tanh", {}), ("flatten", {}), *HEAD], MSE
    yield "positions_sinusoidal", [9], rows(("positions", {"kind": "sinusoidal"}), ("linear", {"out": 6, "name": "mix"})), CE
    yield "tied_head", [7], [
        ("embedding", {"num": 11, "dim": 6, "name": "op"}), ("positions", {"name": "p"}), ("gelu", {}),
        ("linear", {"out": 11, "weight_of": "op", "bias": False, "name": "head"})], CE


def attentions():
    def packed(out, *layers, inputs=None):
        return inputs or [7, 6], [("linear", {"out": out, "name": "pre", **({"from": "x"} if inputs else {})}), *layers, *HEAD], MSE

    two = {"x": [7, 6], "lengths": [1]}  # keys have no bias where they stand apart: its gradient is 0
    for name, out, options in (
            ("attention", 24, dict(heads=2)), ("attention_causal", 30, dict(heads=2, causal=True)),
            ("attention_grouped", 32, dict(heads=4, kv_heads=2, causal=True)), ("attention_multi_query", 24, dict(heads=4, kv_heads=1)),
            ("attention_window", 24, dict(heads=2, window=3)), ("attention_causal_window", 24, dict(heads=2, causal=True, window=2)),
            ("attention_alibi", 36, dict(heads=3, causal=True, alibi=True)),
            ("attention_alibi_both_ways", 24, dict(heads=4, alibi=True, scale=0.6))):
        yield name, *packed(out, ("attention", options))
    yield "attention_lengths", *packed(24, ("attention", dict(heads=2, **{"from": ["pre", "lengths"]})), inputs=two)
    for name, options in (("attention_apart", dict(heads=4, kv_heads=2)), ("attention_fewer_keys", dict(heads=2, causal=True))):
        kv = 4 * options.get("kv_heads", 2)
        yield name, {"y": [9, 5], "x": [6, 5], "lengths": [1]}, [
            ("linear", {"out": 4 * options["heads"], "from": "y", "name": "q"}), ("linear", {"out": kv, "from": "x", "name": "k", "bias": False}),
            ("linear", {"out": kv, "from": "x", "name": "v"}),
            ("attention", dict(**options, **{"from": ["q", "k", "v", "lengths"]})), *HEAD], MSE
    yield "attention_more_keys", {"y": [4, 5], "x": [6, 5]}, [
        ("linear", {"out": 8, "from": "y", "name": "q"}), ("linear", {"out": 8, "from": "x", "name": "k"}),
        ("attention", dict(heads=2, causal=True, **{"from": ["q", "k", "k"]})), *HEAD], MSE
    for name, options in (("half", dict(heads=2)), ("interleaved", dict(heads=2, style="interleaved", base=500)),
                          ("part", dict(heads=2, dim=4)), ("part_interleaved", dict(heads=3, dim=2, style="interleaved"))):
        yield f"rotary_{name}", *packed(12, ("rotary", options))


def pooled():
    """The mean over tokens, and their largest values."""
    for kind in ("global_avgpool", "global_maxpool"):
        yield f"tokens_{kind}", [7, 6], [
            ("linear", {"out": 24, "name": "pre"}), ("attention", {"heads": 2}), ("permute", {"dims": [2, 1]}), (kind, {}), *HEAD], CE


def long_attentions():
    """Of one sample (the last of a case: the batch), with more rows than tiles have and heads as wide as models have."""
    for rows, options in ((70, {"causal": True}), (131, {})):
        for width in (32, 64, 80, 128, 256):
            heads = 2 if width <= 64 else 1
            yield f"attention_{rows}_{width}", [rows, 4], [
                ("linear", {"out": (heads + 2) * width, "name": "pre"}), ("attention", {"heads": heads, "kv_heads": 1, **options}),
                ("linear", {"out": 2, "name": "mix"}), ("flatten", {})], MSE, 1


def recurrent():
    """nn.LSTM and nn.GRU, batch first: odd sizes, one row, both directions, several layers, the last state."""
    for kind in ("lstm", "gru"):
        options = {"": {}, "_no_bias": {"bias": False}, "_two": {"layers": 2}, "_both": {"bidirectional": True},
                   "_two_both": {"layers": 2, "bidirectional": True}, "_last": {"output": "last"},
                   "_two_both_last": {"layers": 2, "bidirectional": True, "output": "last", "bias": False}}
        for name, more in options.items():
            head = HEAD if more.get("output") != "last" else HEAD[1:]
            yield f"{kind}{name}", [5, 11], [("linear", {"out": 7, "name": "pre"}),
                                             (kind, {"hidden": 9, "name": "op", **more}), *head], MSE
        yield f"{kind}_one_row", [1, 11], [("linear", {"out": 7, "name": "pre"}),
                                           (kind, {"hidden": 5, "bidirectional": True, "name": "op"}), *HEAD], CE
        yield f"{kind}_wide", [6, 16], [("linear", {"out": 16, "name": "pre"}),
                                        (kind, {"hidden": 32, "layers": 2, "name": "op"}), ("tanh", {}), *HEAD], CE


def lengths():
    """nn.LSTM and nn.GRU of packed sequences, whose lengths a second input gives."""
    inputs = {"x": [5, 11], "lengths": [1]}
    options = {"": {}, "_no_bias": {"bias": False}, "_two_both": {"layers": 2, "bidirectional": True}, "_last": {"output": "last"},
               "_two_both_last": {"layers": 2, "bidirectional": True, "output": "last"}}
    for kind in ("lstm", "gru"):
        for name, more in options.items():
            head = HEAD if more.get("output") != "last" else HEAD[1:]
            yield f"{kind}_lengths{name}", inputs, [
                ("linear", {"out": 7, "from": "x", "name": "pre"}),
                (kind, {"hidden": 9, "name": "op", **more, "from": ["pre", "lengths"]}), *head], MSE


def ends():
    """One row of each sample's own, whose lengths are all, 1 and 0."""
    inputs = {"x": [7, 5], "lengths": [1]}
    for name, kind, options in (("select_lengths", "select", {"index": -1}), ("select_lengths_third", "select", {"index": -3}),
                                ("mean_lengths", "mean_rows", {})):
        yield name, inputs, [("linear", {"out": 16, "from": "x", "name": "pre"}), (kind, {**options, "from": ["pre", "lengths"]}),
                             ("tanh", {}), ("linear", {"out": 5, "name": "head"})], CE
    yield "mean_lengths_odd", inputs, [("linear", {"out": 13, "from": "x", "name": "pre"}), ("mean_rows", {"from": ["pre", "lengths"]}),
                                       ("linear", {"out": 5, "name": "head"})], MSE
    yield "mean", [5, 11], features(("mean_rows", {}), ("tanh", {}), out=16), CE


def patches():
    """Images as rows, and rows as sequences."""
    image = [3, 8, 12]
    yield "patch_embedding", image, [pre(), ("patch_embedding", {"size": 4, "dim": 10, "name": "op"}), ("gelu", {}), *HEAD], MSE
    yield "patch_embedding_rectangular", image, [
        pre(), ("patch_embedding", {"size": [4, 3], "dim": 7, "bias": False, "name": "op"}), ("class_token", {"name": "cls"}),
        ("linear", {"out": 6, "name": "b"}), *HEAD], CE
    rows = [("permute", {"dims": [2, 1]}), ("linear", {"out": 6, "name": "b"}), ("tanh", {})]
    yield "rows_of_image", image, [pre(), ("reshape", {"dims": [4, -1]}), *rows, *HEAD], MSE
    yield "rows_of_sequence", [3, 13], [("conv1d", {"out": 5, "kernel": 3, "name": "pre"}), *rows, ("permute", {"dims": [2, 1]}),
                                        ("conv1d", {"out": 3, "kernel": 2, "name": "op"}), *HEAD], MSE
    yield "sequence_of_image", image, [pre(), ("reshape", {"dims": [4, -1]}), ("conv1d", {"out": 3, "kernel": 3, "name": "op"}),
                                       ("tanh", {}), ("reshape", {"dims": [3, 2, 47]}), ("conv2d", {"out": 2, "kernel": 1, "name": "b"}),
                                       *HEAD], MSE
