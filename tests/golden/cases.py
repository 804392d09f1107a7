"""What is compared op by op. A case is (name, inputs, layers, loss), or with the samples of its batch, (..., 1).

The op under test stands between a layer with parameters (so that its input's gradient shows in theirs)
and a head. Batches of 3, where nothing is said, and odd sizes, so that the tails of vector loops are met.
"""

from parts import CE, HEAD, IMAGE, MSE, conv, features, image, norm, pre
from sequences import attentions, ends, lengths, long_attentions, patches, pooled, recurrent, sequences, tokens


def convs():
    table = {
        "3x3": dict(out=6, kernel=3, padding=1),
        "3x3_no_bias": dict(out=6, kernel=3, padding=1, bias=False),
        "stride": dict(out=6, kernel=3, stride=2, padding=1, bias=False),
        "rectangular": dict(out=5, kernel=[3, 2], stride=[2, 1], padding=[1, 0]),
        "dilation": dict(out=6, kernel=3, padding=2, dilation=2),
        "dilation_stride": dict(out=3, kernel=[3, 2], stride=2, padding=[2, 1], dilation=[2, 3]),
        "groups": dict(out=6, kernel=3, padding=1, groups=2),
        "depthwise": dict(out=4, kernel=3, padding=1, groups=4, bias=False),
        "1x1_stride": dict(out=8, kernel=1, stride=2, bias=False),
        "no_padding": dict(out=16, kernel=5),
    }
    for name, attrs in table.items():
        yield f"conv2d_{name}", IMAGE, image(conv(**attrs)), MSE
    yield "conv2d_wide", [16, 8, 8], image(conv(out=32, kernel=3, padding=1), pre_out=16), CE
    for act in ("relu", "gelu", "silu", "sigmoid", "tanh"):
        yield f"conv2d_then_{act}", IMAGE, image(conv(out=6, kernel=3, padding=1), (act, {})), MSE
    yield "conv2d_then_gelu_tanh", IMAGE, image(conv(out=6, kernel=3, padding=1),
                                                ("gelu", {"approximate": "tanh"})), MSE


def linears():
    yield "linear_bias", [11], features(("linear", {"out": 17, "name": "op"})), MSE
    yield "linear_no_bias", [11], features(("linear", {"out": 17, "bias": False, "name": "op"})), MSE
    yield "linear_rows", [4, 11], features(("linear", {"out": 17, "name": "op"})), MSE
    for act in ("relu", "gelu", "silu", "sigmoid", "tanh"):
        yield f"linear_then_{act}", [11], features(("linear", {"out": 17, "name": "op"}), (act, {})), MSE


def activations():  # behind a layernorm: no matrix product to be fused with
    for act, attrs in (("relu", {}), ("gelu", {}), ("gelu", {"approximate": "tanh"}), ("silu", {}),
                       ("sigmoid", {}), ("tanh", {}), ("softmax", {})):
        name = act + ("_tanh" if attrs else "")
        yield f"{name}_features", [11], features(("layernorm", {"name": "ln"}), (act, attrs)), MSE
        yield f"{name}_image", IMAGE, image(("avgpool2d", {"kernel": 2}), (act, attrs)), MSE


def norms():
    yield "batchnorm_image", IMAGE, image(norm("op")), MSE
    yield "batchnorm_features", [11], features(norm("op")), MSE
    yield "batchnorm_options", IMAGE, image(norm("op", eps=0.01, momentum=0.3)), MSE
    yield "batchnorm_relu", IMAGE, image(norm("op"), ("relu", {})), MSE
    yield "layernorm", [11], features(("layernorm", {"name": "op"})), MSE
    yield "layernorm_eps", [11], features(("layernorm", {"name": "op", "eps": 0.1})), MSE
    yield "layernorm_rows", [4, 11], features(("layernorm", {"name": "op"})), MSE


def pools():
    for kind in ("maxpool2d", "avgpool2d"):
        yield f"{kind}_2", IMAGE, image((kind, {"kernel": 2})), MSE
        yield f"{kind}_3s2p1", IMAGE, image((kind, {"kernel": 3, "stride": 2, "padding": 1})), MSE
        yield f"{kind}_rectangular", IMAGE, image((kind, {"kernel": [2, 3], "stride": [1, 2],
                                                         "padding": [0, 1]})), MSE
    yield "avgpool2d_exclude_pad", IMAGE, image(
        ("avgpool2d", {"kernel": 3, "stride": 2, "padding": 1, "count_include_pad": False})), MSE
    yield "global_avgpool", IMAGE, image(("global_avgpool", {})), MSE
    yield "flatten", IMAGE, image(), MSE


def joins():
    block = [("conv2d", {"out": 4, "kernel": 3, "padding": 1, "bias": False, "name": "c1"}), norm("b1"),
             ("relu", {}),
             ("conv2d", {"out": 4, "kernel": 3, "padding": 1, "bias": False, "name": "c2"}), norm("b2")]
    yield "residual_identity", IMAGE, image(("residual", {"body": block}), ("relu", {})), MSE
    yield "residual_no_relu", IMAGE, image(("residual", {"body": block})), MSE
    yield "residual_conv", IMAGE, image(("residual", {"body": block[:1]}), ("relu", {})), MSE
    down = [("conv2d", {"out": 6, "kernel": 3, "stride": 2, "padding": 1, "bias": False, "name": "c1"}),
            norm("b1"), ("relu", {}),
            ("conv2d", {"out": 6, "kernel": 3, "padding": 1, "bias": False, "name": "c2"}), norm("b2")]
    short = [("conv2d", {"out": 6, "kernel": 1, "stride": 2, "bias": False, "name": "s1"}), norm("sb")]
    yield "residual_projection", IMAGE, image(
        ("residual", {"body": down, "shortcut": short}), ("relu", {}),
        ("residual", {"body": [("conv2d", {"out": 6, "kernel": 3, "padding": 1, "name": "c3"})]})), CE
    yield "residual_linear", [11], features(
        ("residual", {"body": [("linear", {"out": 13, "name": "l1"}), ("gelu", {})]})), MSE
    yield "concat_image", IMAGE, [
        pre(), ("conv2d", {"out": 5, "kernel": 3, "padding": 1, "name": "a"}),
        ("conv2d", {"out": 3, "kernel": 1, "from": "pre", "name": "b"}),
        ("concat", {"from": ["a", "pre", "b"]}), *HEAD], MSE
    yield "concat_features", {"left": [4], "right": [7]}, [
        ("linear", {"out": 6, "from": "left", "name": "a"}),
        ("linear", {"out": 9, "from": "right", "name": "b"}),
        ("concat", {"from": ["a", "b"]}), ("relu", {}), ("linear", {"out": 5, "name": "head"})], MSE
    yield "add_three", {"left": [4], "right": [7]}, [
        ("linear", {"out": 6, "from": "left", "name": "a"}),
        ("linear", {"out": 6, "from": "right", "name": "b"}),
        ("linear", {"out": 6, "from": "a", "name": "c"}),
        ("add", {"from": ["a", "b", "c"]}), ("tanh", {}), ("linear", {"out": 5, "name": "head"})], MSE


def losses():
    body = features(("relu", {}))
    weights = [0.5, 2.0, 1.0, 0.25, 1.5]
    yield "cross_entropy", [11], body, CE
    yield "cross_entropy_smoothing", [11], body, ("cross_entropy", {"label_smoothing": 0.1})
    yield "cross_entropy_weights", [11], body, ("cross_entropy", {"class_weights": weights})
    yield "cross_entropy_both", [11], body, ("cross_entropy", {"label_smoothing": 0.2,
                                                              "class_weights": weights})
    yield "mse", [11], body, MSE
    yield "bce", [11], body, ("bce", {})
    picture = [pre(), ("conv2d", {"out": 3, "kernel": 3, "name": "head"})]  # an output (C, H, W)
    yield "mse_image", IMAGE, picture, MSE
    yield "bce_image", IMAGE, picture, ("bce", {})


def embeddings():
    yield "embedding", [6], [("embedding", {"num": 11, "dim": 5, "name": "op"}), *HEAD], MSE
    yield "embedding_then_rows", [9], [
        ("embedding", {"num": 4, "dim": 7, "name": "op"}), ("linear", {"out": 6, "name": "rows"}), ("gelu", {}),
        *HEAD], CE
    yield "embedding_beside_values", {"words": [3], "values": [7]}, [
        ("embedding", {"num": 8, "dim": 4, "name": "op"}), ("flatten", {"name": "a"}),
        ("linear", {"out": 6, "from": "values", "name": "b"}), ("concat", {"from": ["a", "b"]}), ("tanh", {}),
        ("linear", {"out": 5, "name": "head"})], MSE


def training():
    for group in (convs, linears, activations, norms, pools, joins, losses):
        yield from group()


def evaluation():
    """Evaluation mode: running statistics, no dropout."""
    yield "eval_batchnorm", IMAGE, image(norm("op")), MSE
    yield "eval_batchnorm_relu", IMAGE, image(conv(out=6, kernel=3, bias=False), norm("bn"), ("relu", {})), MSE
    yield "eval_batchnorm_features", [11], features(norm("op")), CE
    yield "eval_dropout", [11], features(("dropout", {"p": 0.5})), CE
    yield "eval_maxpool2d", IMAGE, image(("maxpool2d", {"kernel": 2})), MSE


def axes():
    yield "concat_rows_features", [4, 11], [
        ("linear", {"out": 6, "name": "a"}), ("linear", {"out": 3, "from": "a", "name": "b"}),
        ("concat", {"from": ["a", "b"], "axis": -1}), ("gelu", {}), *HEAD], MSE
    yield "concat_rows", [4, 11], [
        ("linear", {"out": 6, "name": "a"}), ("linear", {"out": 6, "from": "a", "name": "b"}),
        ("concat", {"from": ["b", "a"], "axis": 1}), ("tanh", {}), *HEAD], CE
    yield "concat_height", IMAGE, image(
        ("conv2d", {"out": 4, "kernel": [3, 1], "name": "a"}), ("concat", {"from": ["a", "pre", "a"], "axis": 2}),
        ("silu", {})), MSE
    yield "concat_width", IMAGE, image(
        ("conv2d", {"out": 4, "kernel": [1, 2], "name": "a"}), ("concat", {"from": ["pre", "a"], "axis": -1})), MSE


def products():
    yield "leaky_relu_features", [11], features(("layernorm", {"name": "ln"}), ("leaky_relu", {})), MSE
    yield "leaky_relu_image", IMAGE, image(("avgpool2d", {"kernel": 2}), ("leaky_relu", {"negative_slope": 0.3})), MSE
    yield "relu6_image", IMAGE, image(conv(out=4, kernel=3, padding=1), ("relu6", {})), MSE
    yield "relu6_features", [11], features(("relu6", {})), MSE
    yield "maxpool2d_ceil", IMAGE, image(("maxpool2d", {"kernel": 2, "stride": 3, "ceil_mode": True})), MSE
    yield "maxpool2d_ceil_padded", IMAGE, image(
        ("maxpool2d", {"kernel": 3, "stride": 2, "padding": 1, "ceil_mode": True})), MSE
    yield "conv2d_then_leaky_relu", IMAGE, image(conv(out=6, kernel=3, padding=1), ("leaky_relu", {})), MSE
    gate = [("global_avgpool", {}), ("conv2d", {"out": 2, "kernel": 1, "name": "down"}), ("relu", {}),
            ("conv2d", {"out": 4, "kernel": 1, "name": "up"}), ("sigmoid", {"name": "gate"})]
    yield "mul_squeeze_excite", IMAGE, image(*gate, ("mul", {"from": ["pre", "gate"]})), MSE
    yield "mul_image", IMAGE, image(("conv2d", {"out": 4, "kernel": 3, "padding": 1, "name": "a"}),
                                    ("mul", {"from": ["a", "pre"]})), MSE
    yield "mul_features", [11], features(("tanh", {"name": "a"}), ("mul", {"from": ["pre", "a"]})), CE


def more_activations():
    for name, attrs in (("elu", {"alpha": 0.7}), ("hardswish", {}), ("hardsigmoid", {}), ("softplus", {}),
                        ("prelu", {"name": "op"})):
        yield f"{name}_image", IMAGE, image(("avgpool2d", {"kernel": 2}), (name, attrs)), MSE
        yield f"{name}_features", [11], features(("layernorm", {"name": "ln"}), (name, attrs)), CE
    yield "elu_default", [11], features(("elu", {})), MSE
    yield "softplus_options", [11], features(("softplus", {"beta": 3.0, "threshold": 2.0})), MSE
    yield "prelu_channels", IMAGE, image(("prelu", {"name": "op", "per_channel": True})), MSE
    yield "prelu_each_feature", [11], features(("prelu", {"name": "op", "per_channel": True, "init": 0.1})), MSE


def more_norms():
    yield "batchnorm_not_affine", IMAGE, image(norm("op", affine=False)), MSE
    yield "batchnorm_not_affine_relu", IMAGE, image(conv(out=6, kernel=3, padding=1), norm("bn", affine=False),
                                                    ("relu", {})), CE
    yield "batchnorm_running", IMAGE, image(norm("op", statistics="running")), MSE
    yield "batchnorm_running_features", [11], features(norm("op", statistics="running", affine=False)), CE
    body = [("conv2d", {"out": 4, "kernel": 3, "padding": 1, "bias": False, "name": "c1"}),
            norm("b1", statistics="running", eps=0.01)]
    yield "batchnorm_running_residual", IMAGE, image(("residual", {"body": body}), ("relu", {})), MSE
    yield "layernorm_image", IMAGE, image(("layernorm", {"name": "op", "eps": 1e-3}), pre_out=12), MSE
    yield "layernorm_image_odd", IMAGE, image(("layernorm", {"name": "op"}), ("relu", {}), pre_out=5), CE


def rounded():
    """Behind a table, so that what is rounded is the same in every precision: a step is no rounding error."""
    for name, options in (("signed", {"scale": 0.007}), ("unsigned", {"scale": 0.01, "zero_point": 96, "signed": False})):
        yield f"fake_quantize_{name}", [6], [
            ("embedding", {"num": 9, "dim": 8, "name": "op"}), ("fake_quantize", options), ("flatten", {}), *HEAD], MSE


def quantized():
    """Weights that are rounded where they are read, whose gradient is that of what was read."""
    for stored in ("int8", "int8_tensor"):
        yield f"conv2d_{stored}", IMAGE, image(conv(out=6, kernel=3, padding=1, stored=stored)), MSE
        yield f"linear_{stored}", [11], features(("linear", {"out": 17, "stored": stored, "name": "op"}), ("gelu", {})), CE
    yield "conv2d_groups_int8", IMAGE, image(conv(out=6, kernel=3, padding=1, groups=2, stored="int8"), ("relu", {})), MSE


def learned():
    """Scales that are learned (LSQ), of values as in rounded() and of weights."""
    for name, options in (("signed", {"scale": 0.004}), ("unsigned", {"scale": 0.006, "zero_point": 96, "signed": False})):
        yield f"learned_{name}", [6], [
            ("embedding", {"num": 9, "dim": 8, "name": "op"}),
            ("fake_quantize", {"learn_scale": True, "name": "q", **options}), ("flatten", {}), *HEAD], MSE
    for stored in ("int8", "int8_tensor"):
        yield f"learned_conv2d_{stored}", IMAGE, image(
            conv(out=6, kernel=3, padding=1, bias=stored == "int8", stored=stored, learn_scale=True)), MSE
        yield f"learned_linear_{stored}", [11], features(
            ("linear", {"out": 17, "stored": stored, "learn_scale": True, "name": "op"}), ("gelu", {})), CE


def dynamic():
    """Rounded by the ranges of rows and of images, behind a table as in rounded()."""
    yield "dynamic_rows", [6], [
        ("embedding", {"num": 9, "dim": 8, "name": "op"}), ("dynamic_quantize", {}), ("flatten", {}), *HEAD], MSE
    yield "dynamic_images", [6], [
        ("embedding", {"num": 9, "dim": 8, "name": "op"}), ("reshape", {"dims": [4, 3, 4]}),
        ("dynamic_quantize", {}), *HEAD], MSE


def distilled():
    """A third member of the loss: train.distill."""
    body = features(("tanh", {"name": "t"}))
    weights = {"class_weights": [0.5, 2.0, 1.0, 0.25, 1.5]}
    yield "distilled", [11], body, ("cross_entropy", {}, {"temperature": 4, "hard": 0.3, "soft": 0.7})
    yield "distilled_soft_alone", [11], body, ("cross_entropy", {}, {"temperature": 1.5, "hard": 0, "soft": 1})
    yield "distilled_weights", [11], body, ("cross_entropy", weights, {"temperature": 2, "hard": 0.5, "soft": 0.5})
    yield "distilled_features", IMAGE, image(("tanh", {"name": "t"})), (
        "cross_entropy", {"label_smoothing": 0.1},
        {"temperature": 3, "hard": 0.5, "soft": 2, "features": [{"student": "t", "teacher": "t", "weight": 1.5},
                                                                {"student": "pre", "teacher": "pre", "weight": 0.5}]})


def values():
    """Losses of values, and of logits with a target each."""
    body = features(("relu", {}))
    picture = [pre(), ("conv2d", {"out": 3, "kernel": 3, "name": "head"})]
    yield "l1", [11], body, ("l1", {})
    yield "huber", [11], body, ("huber", {})
    yield "huber_delta", IMAGE, picture, ("huber", {"delta": 0.375})
    yield "smooth_l1", [11], body, ("smooth_l1", {})
    yield "smooth_l1_beta", [11], body, ("smooth_l1", {"beta": 0.25})
    yield "smooth_l1_beta_0", [11], body, ("smooth_l1", {"beta": 0})
    yield "bce_pos_weight", [11], body, ("bce", {"pos_weight": 2.5})
    yield "bce_pos_weights", [11], body, ("bce", {"pos_weight": [0.5, 2, 1, 0.25, 0]})
    yield "bce_pos_weight_channels", IMAGE, picture, ("bce", {"pos_weight": [3, 1, 0.5]})
    yield "focal", [11], body, ("focal", {})
    yield "focal_no_alpha", [11], body, ("focal", {"alpha": "none", "gamma": 1})
    yield "focal_gamma", IMAGE, picture, ("focal", {"gamma": 0.5, "alpha": 0.75})
    yield "focal_gamma_0", [11], body, ("focal", {"gamma": 0})
    weights = [0.5, 2.0, 1.0, 0.25, 1.5]
    for name, options in {"ignored": {"ignore_index": -100},
                          "ignored_weights": {"ignore_index": 255, "class_weights": weights, "label_smoothing": 0.1},
                          "gamma": {"gamma": 2}, "gamma_weights": {"gamma": 1.5, "class_weights": weights},
                          "gamma_ignored": {"gamma": 0.5, "ignore_index": -1},
                          "probabilities": {"targets": "probabilities"},
                          "probabilities_both": {"targets": "probabilities", "class_weights": weights,
                                                 "label_smoothing": 0.2}}.items():
        yield f"cross_entropy_{name}", [11], body, ("cross_entropy", options)


def windows():
    yield "conv2d_same", IMAGE, image(conv(out=6, kernel=[4, 3], padding="same")), MSE
    yield "conv2d_same_dilation", IMAGE, image(conv(out=6, kernel=[2, 4], padding="same", dilation=[3, 1], groups=2)), MSE
    yield "conv2d_same_point", IMAGE, image(conv(out=6, kernel=1, padding="same"), ("relu", {})), MSE
    yield "maxpool2d_same", IMAGE, image(("maxpool2d", {"kernel": [2, 3], "stride": 1, "padding": "same"})), MSE
    yield "maxpool2d_ceil_side_by_side", IMAGE, image(("maxpool2d", {"kernel": 2, "ceil_mode": True})), MSE
    for counts in (True, False):
        more = "" if counts else "_exclude_pad"
        options = {"ceil_mode": True, "count_include_pad": counts}
        yield f"avgpool2d_ceil{more}", IMAGE, image(("avgpool2d", {"kernel": 3, "stride": 2, "padding": 1, **options})), MSE
        yield f"avgpool2d_ceil_side_by_side{more}", IMAGE, image(("avgpool2d", {"kernel": [2, 4], **options})), MSE
        yield f"avgpool2d_ceil_apart{more}", IMAGE, image(("avgpool2d", {"kernel": 3, "stride": 4, "padding": 1, **options})), MSE
        yield f"avgpool2d_same{more}", IMAGE, image(
            ("avgpool2d", {"kernel": [4, 2], "stride": 1, "padding": "same", "count_include_pad": counts})), MSE
    yield "global_maxpool", IMAGE, image(("global_maxpool", {})), MSE
    yield "global_maxpool_large", [3, 17, 19], image(("global_maxpool", {})), CE  # more than 255 places


def resamples():
    for out in ([7, 7], [3, 4], [1, 5], [10, 12]):
        yield f"adaptive_avgpool2d_{out[0]}x{out[1]}", IMAGE, image(("adaptive_avgpool2d", {"out": out})), MSE
    pads = {"zeros": {"padding": [1, 0, 2, 3]}, "value": {"padding": 1, "value": -0.75}, "cut": {"padding": [-2, 1, 0, -3]},
            "reflect": {"padding": [3, 1, 0, 6], "mode": "reflect"},
            "replicate": {"padding": [0, 2, 4, 9], "mode": "replicate"}}
    for name, options in pads.items():
        yield f"pad_{name}", IMAGE, image(("pad", options), ("tanh", {})), MSE
    yield "upsample_2", IMAGE, image(("upsample", {"scale": 2})), MSE
    yield "upsample_size", IMAGE, image(("upsample", {"size": [13, 4]})), MSE
    for corners in (False, True):
        more = "_corners" if corners else ""
        options = {"mode": "bilinear", "align_corners": corners}
        yield f"upsample_bilinear_2{more}", IMAGE, image(("upsample", {"scale": [2, 3], **options})), MSE
        yield f"upsample_bilinear_size{more}", IMAGE, image(("upsample", {"size": [12, 5], **options})), MSE
    yield "upsample_wide", [16, 5, 4], image(("upsample", {"scale": 2, "mode": "bilinear"}), pre_out=16), CE


def orders():
    for dims in ([-1], [2, 6, 21], [4, 9, 7], [9, 28], [6, 2, -1, 7]):
        name = "x".join(map(str, dims)).replace("-1", "rest")
        yield f"reshape_{name}", IMAGE, image(("reshape", {"dims": dims}), ("tanh", {})), MSE
    yield "reshape_to_image", [24], [("linear", {"out": 24, "name": "pre"}), ("reshape", {"dims": [3, 2, 4]}),
                                     conv(out=4, kernel=2), *HEAD], MSE
    yield "reshape_wide", [16, 4, 6], image(("reshape", {"dims": [8, 6, 8]}), ("tanh", {}), pre_out=16), CE
    for dims in ([2, 3, 1], [3, 1, 2], [1, 3, 2], [3, 2, 1]):
        yield f"permute_{''.join(map(str, dims))}", IMAGE, image(("permute", {"dims": dims}), ("tanh", {})), MSE
    yield "permute_rows", [4, 11], [("linear", {"out": 6, "name": "pre"}), ("permute", {"dims": [2, 1]}),
                                    ("linear", {"out": 3, "name": "op"}), *HEAD], MSE
    yield "permute_four", IMAGE, image(("reshape", {"dims": [2, 2, 9, 7]}), ("permute", {"dims": [2, 4, 1, 3]}), ("tanh", {})), MSE


def transposed():
    table = {"2x2": dict(out=3, kernel=2, stride=2), "3x3": dict(out=5, kernel=3, padding=1, bias=False),
             "output_padding": dict(out=3, kernel=3, stride=2, padding=1, output_padding=[1, 0]),
             "dilation": dict(out=2, kernel=[2, 3], stride=[1, 2], dilation=[3, 2], padding=[0, 1]),
             "groups": dict(out=6, kernel=3, stride=[2, 1], groups=2), "depthwise": dict(out=4, kernel=2, stride=2, groups=4)}
    for name, options in table.items():
        yield f"conv_transpose2d_{name}", [3, 4, 5], image(("conv_transpose2d", {"name": "op", **options})), MSE
    yield "conv_transpose2d_then_relu", [3, 4, 5], image(
        ("conv_transpose2d", {"name": "op", "out": 8, "kernel": 2, "stride": 2}), ("relu", {})), MSE
    yield "conv_transpose2d_wide", [16, 4, 4], image(
        ("conv_transpose2d", {"name": "op", "out": 16, "kernel": 3, "stride": 2, "padding": 1, "output_padding": 1}),
        ("gelu", {}), pre_out=16), CE


def sequence(*layers, out=4, head=HEAD):
    return [("conv1d", {"out": out, "kernel": 1, "name": "pre"}), *layers, *head]


def more_layers():
    """Norms of groups, of root mean squares and of whole images; sequences (channels, length)."""
    yield "groupnorm_image", IMAGE, image(("groupnorm", {"name": "op", "groups": 3}), ("tanh", {}), pre_out=6), MSE
    yield "groupnorm_one", IMAGE, image(("groupnorm", {"name": "op", "groups": 1, "eps": 0.01}), ("relu", {})), CE
    yield "groupnorm_each", IMAGE, image(("groupnorm", {"name": "op", "groups": 5, "affine": False}), pre_out=5), MSE
    yield "groupnorm_features", [11], features(("groupnorm", {"name": "op", "groups": 3}), out=12), MSE
    yield "groupnorm_sequence", [3, 13], sequence(("groupnorm", {"name": "op", "groups": 2}), ("gelu", {})), MSE
    yield "rmsnorm_features", [11], features(("rmsnorm", {"name": "op"})), MSE
    yield "rmsnorm_rows", [4, 11], features(("rmsnorm", {"name": "op", "eps": 1e-5}), ("tanh", {})), MSE
    yield "rmsnorm_image", IMAGE, image(("rmsnorm", {"name": "op", "eps": 0.01}), pre_out=12), CE
    yield "rmsnorm_shape", IMAGE, image(("rmsnorm", {"name": "op", "normalized_shape": [7, 9]}), ("tanh", {})), MSE
    yield "layernorm_whole", IMAGE, image(("layernorm", {"name": "op", "normalized_shape": [4, 7, 9]}), ("relu", {})), MSE
    yield "layernorm_places", IMAGE, image(("layernorm", {"name": "op", "normalized_shape": [9], "eps": 0.1})), CE
    yield "layernorm_rows_whole", [4, 11], features(("layernorm", {"name": "op", "normalized_shape": [4, 13]})), MSE
    table = {"3": dict(out=6, kernel=3), "stride": dict(out=5, kernel=4, stride=3, padding=2, bias=False),
             "dilation": dict(out=6, kernel=3, dilation=3, padding=2), "groups": dict(out=6, kernel=3, groups=2),
             "same": dict(out=6, kernel=4, padding="same"), "depthwise": dict(out=4, kernel=3, padding=1, groups=4)}
    for name, options in table.items():
        yield f"conv1d_{name}", [3, 13], sequence(("conv1d", {"name": "op", **options})), MSE
    yield "conv1d_one_channel", [1, 17], sequence(("conv1d", {"name": "op", "out": 3, "kernel": 5}), ("relu", {})), CE
    yield "conv1d_batchnorm_residual", [3, 13], sequence(("residual", {"body": [
        ("conv1d", {"name": "c", "out": 4, "kernel": 3, "padding": 1, "bias": False}), norm("b"), ("relu", {}),
        ("conv1d", {"name": "d", "out": 4, "kernel": 3, "padding": 1})]}), ("silu", {})), MSE
    yield "conv1d_pools", [3, 17], sequence(
        ("maxpool1d", {"kernel": 3, "stride": 2, "padding": 1}), ("conv1d", {"name": "op", "out": 6, "kernel": 3}),
        ("tanh", {}), ("avgpool1d", {"kernel": 2}), ("global_avgpool", {})), MSE
    yield "avgpool1d_ceil", [3, 13], sequence(
        ("avgpool1d", {"kernel": 3, "stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False})), MSE
    yield "global_maxpool_sequence", [3, 13], sequence(("global_maxpool", {})), MSE
    yield "conv1d_out", [3, 13], sequence(("conv1d", {"name": "op", "out": 2, "kernel": 3}), head=[]), MSE
    yield "conv1d_then_rows", [3, 13], sequence(
        ("tanh", {"name": "a"}), ("permute", {"dims": [2, 1]}), ("linear", {"out": 6, "name": "rows"}), ("layernorm", {"name": "ln"}),
        ("permute", {"dims": [2, 1]}), ("conv1d", {"name": "op", "out": 3, "kernel": 2}), ("softmax", {})), MSE
    yield "conv1d_linear_last", [3, 13], sequence(("linear", {"out": 5, "name": "rows"}), ("tanh", {})), MSE
    yield "conv1d_joined", [3, 13], [
        ("conv1d", {"out": 4, "kernel": 1, "name": "pre"}), ("conv1d", {"out": 4, "kernel": 3, "padding": 1, "name": "a"}),
        ("concat", {"from": ["a", "pre"]}), ("tanh", {"name": "t"}), ("concat", {"from": ["t", "t"], "axis": 2}), *HEAD], MSE
    gate = [("global_avgpool", {}), ("conv1d", {"out": 4, "kernel": 1, "name": "up"}), ("sigmoid", {"name": "gate"})]
    yield "conv1d_squeeze_excite", [3, 13], sequence(*gate, ("mul", {"from": ["pre", "gate"]})), MSE


def sketched():
    """Matrices and filters that are learned in sketches."""
    table = {"bias": dict(out=17, terms=2, rank=3), "no_bias": dict(out=9, terms=1, rank=4, bias=False),
             "one": dict(out=5, terms=1, rank=1)}
    for name, options in table.items():
        yield f"sklinear_{name}", [11], features(("sklinear", {"name": "op", "seed": 7, **options})), MSE
    yield "sklinear_relu", [11], features(("sklinear", {"name": "op", "out": 17, "terms": 3, "rank": 5, "seed": 8}), ("relu", {})), CE
    yield "sklinear_gelu", [11], features(("sklinear", {"name": "op", "out": 17, "terms": 2, "rank": 5, "seed": 8}), ("gelu", {})), MSE
    yield "sklinear_rows", [4, 11], features(("sklinear", {"name": "op", "out": 17, "terms": 2, "rank": 3, "seed": 9}), ("tanh", {})), MSE
    yield "sklinear_wide", [3], features(("sklinear", {"name": "op", "out": 9, "terms": 2, "rank": 3, "seed": 10}), out=140), CE
    yield "sklinear_deep", [11], features(("sklinear", {"name": "op", "out": 9, "terms": 2, "rank": 66, "seed": 10})), MSE
    table = {"3x3": dict(out=6, kernel=3, padding=1), "stride": dict(out=5, kernel=[3, 2], stride=[2, 1], padding=[1, 0], bias=False),
             "dilation": dict(out=6, kernel=3, padding=2, dilation=2)}
    for name, options in table.items():
        yield f"skconv2d_{name}", IMAGE, image(("skconv2d", {"name": "op", "terms": 2, "rank": 3, "seed": 11, **options})), MSE
    yield "skconv2d_relu", IMAGE, image(("skconv2d", {"name": "op", "out": 8, "kernel": 1, "terms": 1, "rank": 8, "seed": 12}), ("relu", {})), CE


def training_too():
    """Later than evaluation(): a case's numbers come from its place among all."""
    for group in (embeddings, products, axes, rounded, quantized, distilled, learned, more_activations, more_norms,
                  windows, resamples, orders, transposed, dynamic, values, more_layers, tokens, sequences, sketched,
                  attentions, recurrent, lengths, patches, pooled, long_attentions, ends):
        yield from group()
