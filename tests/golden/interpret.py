"""A config's layer list as a PyTorch function: the reference that goldens are made with.

Layers are pairs (type, attributes) as they stand in the YAML; parameters and states are held in
dictionaries "LAYER/NAME" -> tensor.
"""
import torch
import torch.nn.functional as F


def pair(v):
    return tuple(v) if isinstance(v, (list, tuple)) else (v, v)


class Interpreter:
    """Runs layers. With `make` (a function shape, fan_in -> tensor) missing parameters are created,
    in forward order, which is how a spec gets its parameters."""

    def __init__(self, train, make=None):
        self.train, self.make = train, make
        self.params, self.states, self.values, self.order = {}, {}, {}, []
        self.facts = {}  # LAYER -> (freeze, lr_factor, decay_factor) where they are not as usual

    def param(self, layer, name, shape, fan_in):
        key = f"{layer}/{name}"
        if key not in self.params:
            self.params[key] = self.make(key, shape, fan_in)
            self.order.append(key)
        return self.params[key]

    def state(self, layer, name, count, one):
        key = f"{layer}/{name}"
        if key not in self.states:
            t = torch.ones if one else torch.zeros
            self.states[key] = t(count, dtype=self.params[f"{layer}/weight"].dtype)
        return self.states[key]

    def run(self, layers, x):
        for kind, attrs in layers:
            attrs = dict(attrs)
            name, source = attrs.pop("name", None), attrs.pop("from", None)
            if source is not None:
                x = [self.values[s] for s in source] if isinstance(source, list) else self.values[source]
            x = getattr(self, kind)(x, name, **attrs)
            if name:
                self.values[name] = x
        return x

    def stored(self, w, how, name):
        """What a layer reads of a weight that its file keeps as `how`: quantization-aware training, with a
        straight-through gradient. By float32 division: torch.fake_quantize_per_channel_affine multiplies by one over the
        scale, and rounds what lies halfway between steps either way."""
        if how == "float32":
            return w
        self.states.setdefault(f"{name}/weight_scale", torch.ones(len(w), dtype=w.dtype))  # for a file
        each = w.detach().float().abs().flatten(1).amax(1)
        scale = (each if how == "int8" else each.max().expand(len(each))) / 127
        scale = scale.reshape(-1, *[1] * (w.dim() - 1))
        steps = torch.round(w.detach().float() / scale).clamp(-127, 127)
        return w + ((steps * scale).to(w.dtype) - w).detach()

    def linear(self, x, name, out, bias=True, weight_of=None, freeze=False, lr_factor=1.0, decay_factor=1.0,
               stored="float32"):
        fan = x.shape[-1]
        self.facts[name] = (freeze, lr_factor, decay_factor)
        w = self.stored(self.param(weight_of or name, "weight", (out, fan), fan), stored, name)
        return F.linear(x, w, self.param(name, "bias", (out,), fan) if bias else None)

    def conv2d(self, x, name, out, kernel, stride=1, padding=0, dilation=1, groups=1, bias=True,
               stored="float32"):
        kh, kw = pair(kernel)
        fan = x.shape[1] // groups * kh * kw
        w = self.stored(self.param(name, "weight", (out, x.shape[1] // groups, kh, kw), fan), stored, name)
        b = self.param(name, "bias", (out,), fan) if bias else None
        return F.conv2d(x, w, b, pair(stride), pair(padding), pair(dilation), groups)

    def batchnorm(self, x, name, eps=1e-5, momentum=0.1):
        c = x.shape[1]
        w, b = self.param(name, "weight", (c,), 0), self.param(name, "bias", (c,), 0)
        mean, var = self.state(name, "running_mean", c, False), self.state(name, "running_var", c, True)
        return F.batch_norm(x, mean, var, w, b, self.train, momentum, eps)

    def layernorm(self, x, name, eps=1e-5):
        d = x.shape[-1]
        w, b = self.param(name, "weight", (d,), 0), self.param(name, "bias", (d,), 0)
        return F.layer_norm(x, (d,), w, b, eps)

    def embedding(self, x, name, num, dim):
        return F.embedding(x, self.param(name, "weight", (num, dim), 1))

    def relu(self, x, name):
        return F.relu(x)

    def gelu(self, x, name, approximate="none"):
        return F.gelu(x, approximate=approximate)

    def silu(self, x, name):
        return F.silu(x)

    def sigmoid(self, x, name):
        return torch.sigmoid(x)

    def tanh(self, x, name):
        return torch.tanh(x)

    def softmax(self, x, name):
        return F.softmax(x, dim=1 if x.dim() == 4 else -1)

    def maxpool2d(self, x, name, kernel, stride=None, padding=0, ceil=False):
        return F.max_pool2d(x, pair(kernel), pair(stride or kernel), pair(padding), 1, ceil)

    def avgpool2d(self, x, name, kernel, stride=None, padding=0, count_include_pad=True):
        return F.avg_pool2d(x, pair(kernel), pair(stride or kernel), pair(padding), False,
                            count_include_pad)

    def global_avgpool(self, x, name):
        return x.mean(dim=(2, 3), keepdim=True)

    def flatten(self, x, name):
        return x.flatten(1)

    def dropout(self, x, name, p=0.5):
        assert not self.train, "a mask of our own generator: compared elsewhere"
        return x

    def add(self, x, name):
        return sum(x[1:], x[0])

    def mul(self, x, name):
        return x[0] * x[1]

    def leaky_relu(self, x, name, negative_slope=0.01):
        return F.leaky_relu(x, negative_slope)

    def fake_quantize(self, x, name, scale, zero_point=0, signed=True):
        least = -128 if signed else 0
        return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, least, least + 255)

    def relu6(self, x, name):
        return F.relu6(x)

    def concat(self, x, name, axis=1):
        return torch.cat(x, dim=axis)

    def residual(self, x, name, body, shortcut=None):
        return self.run(body, x) + (self.run(shortcut, x) if shortcut else x)


def loss_sum(kind, options, y, target):
    """The sum over samples (or elements), and what it is divided by."""
    if kind == "mse":
        return F.mse_loss(y, target, reduction="sum"), float(target.numel())
    if kind == "bce":
        return F.binary_cross_entropy_with_logits(y, target, reduction="sum"), float(target.numel())
    w = options.get("class_weights")
    w = torch.tensor(w, dtype=y.dtype) if w else None
    total = F.cross_entropy(y, target, weight=w, reduction="sum",
                            label_smoothing=options.get("label_smoothing", 0.0))
    return total, float(w[target].sum()) if w is not None else float(len(target))


def distilled_sum(options, distill, hard, target, learned, given):
    """The sum over samples of what a model learns beside a teacher: learned[0] and given[0] are logits, then features."""
    T = distill["temperature"]
    w = options.get("class_weights")
    if w is None:  # as the formula is mostly written, times the samples that batchmean divides by
        soft = F.kl_div(F.log_softmax(learned[0] / T, 1), F.softmax(given[0] / T, 1), reduction="batchmean")
        soft = soft * T * T * len(target)
    else:
        rows = F.kl_div(F.log_softmax(learned[0] / T, 1), F.softmax(given[0] / T, 1), reduction="none").sum(1)
        soft = (rows * torch.tensor(w, dtype=rows.dtype)[target]).sum() * T * T
    total = distill["hard"] * hard + distill["soft"] * soft
    for f, x, t in zip(distill.get("features", []), learned[1:], given[1:]):
        total = total + f["weight"] * ((x - t) ** 2).flatten(1).mean(1).sum()
    return total
