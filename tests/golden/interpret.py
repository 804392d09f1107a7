"""A config's layer list as a PyTorch function: the reference that goldens are made with.

Layers are pairs (type, attributes) as they stand in the YAML; parameters and states are held in
dictionaries "LAYER/NAME" -> tensor.
"""
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torchvision.ops import sigmoid_focal_loss


def pair(v):
    return tuple(v) if isinstance(v, (list, tuple)) else (v, v)


def slopes(heads):
    """ALiBi's, as in the code of Press et al. 2022."""
    p = 1 << (heads.bit_length() - 1)
    first = [2 ** (-8 * (h + 1) / p) for h in range(p)]
    return first + ([2 ** (-4 * (h + 1) / p) for h in range(2 * p)][0::2][:heads - p] if heads > p else [])


class Learned(torch.autograd.Function):
    """Rounding by learned scales (LSQ): torch's operators, which are float32, but for a scale's gradient: its sum
    in float64, which must be theirs as far as float32 goes."""

    @staticmethod
    def apply_float(x, s, zero, least, most, gain):
        zeros = torch.full((len(s),), float(zero))
        if len(s) > 1:
            return torch._fake_quantize_learnable_per_channel_affine(x, s, zeros, 0, least, most, gain)
        return torch._fake_quantize_learnable_per_tensor_affine(x, s, zeros, least, most, gain)

    @staticmethod
    def forward(ctx, x, s, *how):
        ctx.save_for_backward(x, s)
        ctx.how = how
        return Learned.apply_float(x.float(), s.float(), *how).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, s = (t.detach() for t in ctx.saved_tensors)
        zero, least, most, gain = ctx.how
        xf, sf = x.float().requires_grad_(), s.float().requires_grad_()
        with torch.enable_grad():
            Learned.apply_float(xf, sf, *ctx.how).backward(dy.float())
        rows = x.reshape(len(s), -1) / s[:, None]
        q = torch.round(rows)
        each = torch.where(q < least - zero, least - zero, torch.where(q > most - zero, most - zero, q - rows))
        ds = (dy.reshape(len(s), -1) * each).sum(1) * gain
        assert torch.allclose(ds.float(), sf.grad, rtol=1e-4, atol=1e-4 * ds.abs().max()), (ds, sf.grad)
        # what torch lets pass, from values in float64
        return torch.where(xf.grad.reshape(dy.shape) == 0, 0.0, dy), ds, None, None, None, None
def same(x, kernel, value):
    kh, kw = pair(kernel)
    return F.pad(x, ((kw - 1) // 2, kw - 1 - (kw - 1) // 2, (kh - 1) // 2, kh - 1 - (kh - 1) // 2), value=value)


def mix(x):
    """SplitMix64's finalizer."""
    word = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & word
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & word
    x = (x ^ x >> 27) * 0x94D049BB133111EB & word
    return x ^ x >> 31


def philox(key, index, block):
    """Philox4x32-10 (Salmon et al., SC'11) as runtime/base/rng.c has it: four words."""
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    c = [index & 0xFFFFFFFF, index >> 32, block, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k1, a & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


SKETCH = 9  # TR_RNG_SKETCH


def signs(seed, stream, rows, columns):
    """tr_sketch_signs, +-1 as a (rows, columns) tensor."""
    key = mix(mix(seed) ^ (SKETCH << 32 | stream))
    made = torch.empty(rows, columns, dtype=torch.float64)
    for row in range(rows):
        for c in range(columns):
            word = philox(key, row, c // 128)[c % 128 // 32]
            made[row, c] = 1 if word >> (c % 32) & 1 else -1
    return made


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

    def state(self, layer, name, count, one, dtype):
        key = f"{layer}/{name}"
        if key not in self.states:
            t = torch.ones if one else torch.zeros
            self.states[key] = t(count, dtype=dtype)
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

    def learned(self, w, how, name, fan):
        """The same with scales that are learned (LSQ): torch's own operator, in float32."""
        self.states.setdefault(f"{name}/weight_scale", torch.ones(len(w), dtype=w.dtype))
        s = self.param(name, "learned_scale", (len(w) if how == "int8" else 1,), 1.5 / 127 * fan**-0.5).abs()
        return Learned.apply(w, s, 0, -127, 127, (w.numel() / len(s) * 127) ** -0.5)

    def weight(self, shape, fan, name, weight_of, stored, learn_scale):
        w = self.param(weight_of or name, "weight", shape, fan)
        return self.learned(w, stored, name, fan) if learn_scale else self.stored(w, stored, name)

    def linear(self, x, name, out, bias=True, weight_of=None, freeze=False, lr_factor=1.0, decay_factor=1.0,
               stored="float32", learn_scale=False):
        fan = x.shape[-1]
        self.facts[name] = (freeze, lr_factor, decay_factor)
        w = self.weight((out, fan), fan, name, weight_of, stored, learn_scale)
        return F.linear(x, w, self.param(name, "bias", (out,), fan) if bias else None)

    def conv2d(self, x, name, out, kernel, stride=1, padding=0, dilation=1, groups=1, bias=True,
               stored="float32", learn_scale=False):
        kh, kw = pair(kernel)
        fan = x.shape[1] // groups * kh * kw
        w = self.weight((out, x.shape[1] // groups, kh, kw), fan, name, None, stored, learn_scale)
        b = self.param(name, "bias", (out,), fan) if bias else None
        return F.conv2d(x, w, b, pair(stride), padding if padding == "same" else pair(padding), pair(dilation), groups)

    def conv1d(self, x, name, out, kernel, stride=1, padding=0, dilation=1, groups=1, bias=True):
        fan = x.shape[1] // groups * kernel
        w = self.param(name, "weight", (out, x.shape[1] // groups, kernel), fan)
        b = self.param(name, "bias", (out,), fan) if bias else None
        return F.conv1d(x, w, b, stride, padding, dilation, groups)

    def conv_transpose2d(self, x, name, out, kernel, stride=1, padding=0, output_padding=0, dilation=1, groups=1, bias=True):
        kh, kw = pair(kernel)
        fan = out // groups * kh * kw
        w = self.param(name, "weight", (x.shape[1], out // groups, kh, kw), fan)
        b = self.param(name, "bias", (out,), fan) if bias else None
        return F.conv_transpose2d(x, w, b, pair(stride), pair(padding), pair(output_padding), groups, pair(dilation))

    def sklinear(self, x, name, out, terms, rank, seed, bias=True):
        """Panther's SKLinear, term by term; its S1s[i] are the transposed rows of s1, its S2s[i] those of s2's columns."""
        fan, k = x.shape[-1], terms * rank
        s1 = self.param(name, "s1", (k, fan), fan).reshape(terms, rank, fan)
        s2 = self.param(name, "s2", (out, k), fan).T.reshape(terms, rank, out)
        b = self.param(name, "bias", (out,), fan) if bias else None
        u1 = (signs(seed, 1, out, k) / rank**0.5).to(x.dtype).T.reshape(terms, rank, out)
        u2 = (signs(seed, 0, k, fan) / rank**0.5).to(x.dtype).reshape(terms, rank, fan)
        first = torch.stack([x @ s1[i].T @ u1[i] for i in range(terms)]).mean(0)
        second = torch.stack([x @ u2[i].T @ s2[i] for i in range(terms)]).mean(0)
        y = (first + second) / 2
        return y if b is None else y + b

    def skconv2d(self, x, name, out, kernel, terms, rank, seed, stride=1, padding=0, dilation=1, bias=True):
        """Panther's SKConv2d: 2 * terms sketches of the filters."""
        kh, kw = pair(kernel)
        fan, k = x.shape[1] * kh * kw, 2 * terms * rank
        s1 = self.param(name, "s1", (k, x.shape[1], kh, kw), fan)
        b = self.param(name, "bias", (out,), fan) if bias else None
        u1 = (signs(seed, 1, out, k) / rank**0.5).to(x.dtype).T.reshape(2 * terms, rank, out)
        h = F.conv2d(x, s1, None, pair(stride), pair(padding), pair(dilation))
        h = h.reshape(len(x), 2 * terms, rank, *h.shape[2:])
        y = torch.einsum("ntkhw,tko->ntohw", h, u1).mean(1)
        return y if b is None else y + b[None, :, None, None]

    def patch_embedding(self, x, name, size, dim, bias=True):
        return self.conv2d(x, f"{name}.proj", dim, size, stride=size, bias=bias).flatten(2).transpose(1, 2)

    def batchnorm(self, x, name, eps=1e-5, momentum=0.1, affine=True, statistics="batch"):
        c = x.shape[1]
        w, b = (self.param(name, key, (c,), 0) if affine else None for key in ("weight", "bias"))
        mean = self.state(name, "running_mean", c, False, x.dtype)
        var = self.state(name, "running_var", c, True, x.dtype)
        return F.batch_norm(x, mean, var, w, b, self.train and statistics == "batch", momentum, eps)

    def groupnorm(self, x, name, groups, eps=1e-5, affine=True):
        w, b = (self.param(name, key, (x.shape[1],), 0) if affine else None for key in ("weight", "bias"))
        return F.group_norm(x, groups, w, b, eps)

    def rmsnorm(self, x, name, eps=1.1920929e-07, normalized_shape=None):
        shape = tuple(normalized_shape or (x.shape[1 if x.dim() == 4 else -1],))
        w = self.param(name, "weight", shape, 0)
        if x.dim() == 4 and not normalized_shape:
            return F.rms_norm(x.permute(0, 2, 3, 1), shape, w, eps).permute(0, 3, 1, 2)
        return F.rms_norm(x, shape, w, eps)

    def layernorm(self, x, name, eps=1e-5, normalized_shape=None):
        if normalized_shape:
            shape = tuple(normalized_shape)
            return F.layer_norm(x, shape, self.param(name, "weight", shape, 0), self.param(name, "bias", shape, 0), eps)
        d = x.shape[1 if x.dim() == 4 else -1]
        w, b = self.param(name, "weight", (d,), 0), self.param(name, "bias", (d,), 0)
        if x.dim() == 4:
            return F.layer_norm(x.permute(0, 2, 3, 1), (d,), w, b, eps).permute(0, 3, 1, 2)
        return F.layer_norm(x, (d,), w, b, eps)

    def embedding(self, x, name, num, dim):
        return F.embedding(x, self.param(name, "weight", (num, dim), 1))

    def positions(self, x, name, kind="learned"):
        t, f = x.shape[1:]
        if kind == "learned":
            return x + self.param(name, "weight", (t, f), 1)
        at, i = torch.arange(t, dtype=torch.float64)[:, None], torch.arange(f)
        angle = at / 10000 ** ((i - i % 2) / f)
        table = torch.where(i % 2 == 0, torch.sin(angle), torch.cos(angle))
        return x + table.float().to(x.dtype)

    def attention(self, x, name, heads, kv_heads=0, causal=False, window=0, dropout=0, alibi=False, scale=0):
        """F.scaled_dot_product_attention with one mask of all that masks, built by hand."""
        assert not dropout, "a mask of our own generator: compared elsewhere"
        x, kv_heads = x if isinstance(x, list) else [x], kv_heads or heads
        lengths = x[-1] if len(x) % 2 == 0 else None
        if len(x) < 3:
            d = x[0].shape[-1] // (heads + 2 * kv_heads)
            q, k, v = x[0].split([heads * d, kv_heads * d, kv_heads * d], -1)
        else:
            q, k, v = x[:3]
        q, k, v = (t.unflatten(-1, (n, -1)).transpose(1, 2) for t, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
        seen = torch.ones(len(q), 1, q.shape[2], k.shape[2], dtype=torch.bool)
        if causal:
            seen = seen & (j <= i)
        if window:
            seen = seen & ((i - j).abs() < window)
        if lengths is not None:
            seen = seen & (j < lengths[:, :, None, None])
        mask = torch.zeros(seen.shape, dtype=q.dtype).masked_fill(~seen, float("-inf"))
        if alibi:
            mask = mask - torch.tensor(slopes(heads), dtype=q.dtype)[:, None, None] * (i - j).abs()
        k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, mask, scale=scale or None)
        return y.transpose(1, 2).flatten(2)

    def rotary(self, x, name, heads, dim=0, base=10000, style="half"):
        """Su et al. 2021, written out as complex numbers."""
        y = x.unflatten(-1, (heads, -1))
        dim = dim or y.shape[-1]
        turned, rest = y[..., :dim], y[..., dim:]
        if style == "half":
            re, im = turned.chunk(2, -1)
        else:
            re, im = turned[..., 0::2], turned[..., 1::2]
        angle = torch.arange(x.shape[1])[:, None] * float(base) ** (-torch.arange(0, dim, 2).double() / dim)
        z = torch.complex(re.double(), im.double()) * torch.polar(torch.ones_like(angle), angle)[:, None]
        turned = torch.cat([z.real, z.imag], -1) if style == "half" else torch.stack([z.real, z.imag], -1).flatten(-2)
        return torch.cat([turned.to(x.dtype), rest], -1).flatten(2)

    def recurrent(self, run, gates, x, name, hidden, layers=1, bidirectional=False, bias=True, dropout=0, output="all"):
        assert not (dropout and self.train), "a mask of our own generator: compared elsewhere"
        x, lengths = x if isinstance(x, list) else (x, None)
        flat, ways = [], 1 + bidirectional
        for i in range(layers):
            width = hidden * ways if i else x.shape[-1]
            for way in ("", "_reverse")[:ways]:
                parts = {"weight_ih": (width,), "weight_hh": (hidden,), **({"bias_ih": (), "bias_hh": ()} if bias else {})}
                flat += [self.param(f"{name}.l{i}{way}", part, (gates * hidden, *columns), hidden)
                         for part, columns in parts.items()]
        zeros = x.new_zeros(layers * ways, len(x), hidden)
        zeros, rest = (zeros, zeros) if gates == 4 else zeros, (flat, bias, layers, 0.0, self.train, bidirectional)
        if lengths is None:
            y, h = run(x, zeros, *rest, True)[:2]
        else:
            packed = pack_padded_sequence(x, lengths[:, 0], batch_first=True, enforce_sorted=False)
            y, h = run(packed.data, packed.batch_sizes, zeros, *rest)[:2]
            y = pad_packed_sequence(packed._replace(data=y), batch_first=True, total_length=x.shape[1])[0]
            h = h[:, packed.unsorted_indices]
        return y if output == "all" else torch.cat(list(h[-ways:]), dim=-1)

    def lstm(self, x, name, **attrs):
        return self.recurrent(torch.lstm, 4, x, name, **attrs)

    def gru(self, x, name, **attrs):
        return self.recurrent(torch.gru, 3, x, name, **attrs)

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

    def maxpool2d(self, x, name, kernel, stride=None, padding=0, ceil_mode=False):
        if padding == "same":  # PyTorch has it for convolutions alone
            x, padding = same(x, kernel, float("-inf")), 0
        return F.max_pool2d(x, pair(kernel), pair(stride or kernel), pair(padding), 1, ceil_mode)

    def avgpool2d(self, x, name, kernel, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
        if padding == "same" and not count_include_pad:
            ones = F.avg_pool2d(same(torch.ones_like(x), kernel, 0), pair(kernel), 1)
            return F.avg_pool2d(same(x, kernel, 0), pair(kernel), 1) / ones
        if padding == "same":
            x, padding = same(x, kernel, 0), 0
        return F.avg_pool2d(x, pair(kernel), pair(stride or kernel), pair(padding), ceil_mode, count_include_pad)

    def maxpool1d(self, x, name, kernel, stride=None, padding=0, ceil_mode=False):
        return F.max_pool1d(x, kernel, stride or kernel, padding, 1, ceil_mode)

    def avgpool1d(self, x, name, kernel, stride=None, padding=0, ceil_mode=False, count_include_pad=True):
        return F.avg_pool1d(x, kernel, stride or kernel, padding, ceil_mode, count_include_pad)

    def global_maxpool(self, x, name):
        return x.amax(dim=tuple(range(2, x.dim())), keepdim=True)

    def global_avgpool(self, x, name):
        return x.mean(dim=tuple(range(2, x.dim())), keepdim=True)

    def adaptive_avgpool2d(self, x, name, out):
        return F.adaptive_avg_pool2d(x, pair(out))

    def pad(self, x, name, padding, mode="constant", value=0.0):
        padding = padding if isinstance(padding, list) else [padding] * 4
        return F.pad(x, padding, mode, value) if mode == "constant" else F.pad(x, padding, mode)

    def upsample(self, x, name, scale=None, size=None, mode="nearest", align_corners=None):
        return F.interpolate(x, pair(size) if size else None, pair(scale) if scale else None, mode, align_corners)

    def reshape(self, x, name, dims):
        return x.reshape(len(x), *dims)

    def permute(self, x, name, dims):
        return x.permute(0, *dims)

    def class_token(self, x, name):
        w = self.param(name, "weight", (x.shape[-1],), 1)
        return torch.cat([w.expand(len(x), 1, -1), x], dim=1)

    def select(self, x, name, index):
        if not isinstance(x, list):
            return x[:, index]
        at = x[1] + index
        return torch.where(at < 0, 0.0, x[0][torch.arange(len(at)), at[:, 0].clamp(0)])

    def mean_rows(self, x, name):
        if not isinstance(x, list):
            return x.mean(1)
        counts = torch.arange(x[0].shape[1])[:, None] < x[1][:, :, None]
        return torch.where(counts, x[0], 0.0).sum(1) / x[1].clamp(1)

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

    def fake_quantize(self, x, name, scale, zero_point=0, signed=True, learn_scale=False):
        least = -128 if signed else 0
        if learn_scale:
            s = self.param(name, "scale", (1,), scale).abs()
            gain = (x[0].numel() * (least + 255)) ** -0.5
            return Learned.apply(x, s, zero_point, least, least + 255, gain)
        return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, least, least + 255)

    def dynamic_quantize(self, x, name, signed=True):
        axes, steps = (tuple(range(1, x.ndim)) if x.ndim == 4 else (-1,)), 127 if signed else 255
        s = (x.abs() if signed else x).detach().amax(axes, keepdim=True).clamp(min=1e-30) / steps
        rounded = (x.detach() * (1 / s)).clamp(-steps if signed else 0, steps).round() * s
        return x + (rounded - x).detach()

    def relu6(self, x, name):
        return F.relu6(x)

    def elu(self, x, name, alpha=1.0):
        return F.elu(x, alpha)

    def hardswish(self, x, name):
        return F.hardswish(x)

    def hardsigmoid(self, x, name):
        return F.hardsigmoid(x)

    def softplus(self, x, name, beta=1.0, threshold=20.0):
        return F.softplus(x, beta, threshold)

    def prelu(self, x, name, per_channel=False, init=0.25):
        return F.prelu(x, self.param(name, "weight", (x.shape[1] if per_channel else 1,), 0))

    def concat(self, x, name, axis=1):
        return torch.cat(x, dim=axis)

    def residual(self, x, name, body, shortcut=None):
        return self.run(body, x) + (self.run(shortcut, x) if shortcut else x)


def loss_sum(kind, options, y, target):
    """The sum over samples (or elements), and what it is divided by."""
    if kind == "mse":
        return F.mse_loss(y, target, reduction="sum"), float(target.numel())
    if kind == "bce":
        w = options.get("pos_weight")
        if w is not None:  # a channel each of images
            w = torch.tensor(w, dtype=y.dtype).reshape((-1,) + (1,) * (2 if y.ndim == 4 else 0))
        total = F.binary_cross_entropy_with_logits(y, target, reduction="sum", pos_weight=w)
        return total, float(target.numel())
    values = {"l1": F.l1_loss, "huber": F.huber_loss, "smooth_l1": F.smooth_l1_loss}
    if kind in values:
        return values[kind](y, target, reduction="sum", **options), float(target.numel())
    if kind == "focal":
        options = {k: -1 if v == "none" else v for k, v in options.items()}
        return sigmoid_focal_loss(y, target, reduction="sum", **options), float(target.numel())
    probabilities = options.get("targets") == "probabilities"
    if y.ndim == 4:  # (N, classes, H, W) as rows of classes
        target = target.movedim(1, -1).flatten(0, 2) if probabilities else target.flatten()
        y = y.movedim(1, -1).flatten(0, 2)
    elif y.ndim == 3:
        y, target = y.flatten(0, 1), target.flatten(0, 1)
    w = options.get("class_weights")
    w = torch.tensor(w, dtype=y.dtype) if w else None
    ignore = options.get("ignore_index", -100)
    if options.get("gamma"):  # Lin et al. 2017, equation 5, by what PyTorch has: (1 - p)^gamma * -log p
        far = F.cross_entropy(y, target, reduction="none", ignore_index=ignore)
        counts = torch.where(target == ignore, 0.0, w[target.clamp(min=0)] if w is not None else torch.ones_like(far))
        return (counts * (1 - torch.exp(-far)) ** options["gamma"] * far).sum(), float(counts.sum())
    total = F.cross_entropy(y, target, weight=w, reduction="sum", ignore_index=ignore,
                            label_smoothing=options.get("label_smoothing", 0.0))
    if probabilities:
        return total, float(len(target))
    counted = target[target != ignore]
    if len(counted) < len(target):
        return total, float(w[counted].sum()) if w is not None else float(len(counted))
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
