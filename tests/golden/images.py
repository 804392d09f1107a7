#!/usr/bin/env python3
"""Makes images.h5: image files as bytes with what Pillow makes of them, and what torchvision's v2 transforms do. Needs
torch, torchvision, Pillow, numpy and h5py; tests do not. tests/unit/data/test_image_golden.c reads it.

    python3 images.py [FOLDER]
"""
import io
import os
import struct
import sys
import zlib

import h5py
import numpy as np
import torch
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

rng = np.random.default_rng(11)


def picture(h, w):
    """Smooth, with all colours and some edges."""
    a = rng.integers(0, 256, (h // 5 + 2, w // 5 + 2, 3), dtype=np.uint8)
    a = np.array(Image.fromarray(a).resize((w, h), Image.BICUBIC))
    a[h // 3:h // 2, w // 4:w // 2] = (250, 3, 128)
    return Image.fromarray(a)


def saved(image, kind, **options):
    to = io.BytesIO()
    image.save(to, kind, **options)
    return to.getvalue()


def png(a, depth, interlaced=False):
    """What Pillow does not write: 16 bits, Adam7."""
    h, w = a.shape[:2]
    colour = 2 if a.ndim == 3 else 0

    def rows(part):
        part = part.astype(">u2" if depth == 16 else "u1")
        return b"".join(b"\0" + row.tobytes() for row in part)

    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [a[y::dy, x::dx] for y, x, dy, dx in passes] if interlaced else [a]
    data = b"".join(rows(p) for p in parts if p.size)

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, int(interlaced))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b""))


def make_files(group):
    p = picture(23, 19)
    rgb = np.array(p)
    clear = p.copy()
    clear.putalpha(Image.fromarray(rng.integers(0, 256, (23, 19), dtype=np.uint8)))
    files = {
        "rgb.png": saved(p, "PNG"), "rgba.png": saved(clear, "PNG"),
        "palette.png": saved(p.quantize(17), "PNG"), "palette_clear.png": saved(p.quantize(9), "PNG", transparency=3),
        "bits1.png": saved(p.convert("1"), "PNG"), "grey.png": saved(p.convert("L"), "PNG"),
        "grey_alpha.png": saved(clear.convert("LA"), "PNG"), "interlaced.png": png(rgb, 8, True),
        "j420.jpg": saved(p, "JPEG", quality=80, subsampling=2), "j444.jpg": saved(p, "JPEG", quality=95, subsampling=0),
        "progressive.jpg": saved(p, "JPEG", quality=70, progressive=True), "grey.jpg": saved(p.convert("L"), "JPEG"),
        "cmyk.jpg": saved(p.convert("CMYK"), "JPEG", quality=90),
    }
    for k in range(2, 9):
        exif = Image.Exif()
        exif[0x0112] = k
        files[f"exif{k}.jpg"] = saved(p, "JPEG", quality=90, exif=exif)
        files[f"exif{k}.png"] = saved(p, "PNG", exif=exif)
    wide = rng.integers(0, 65536, (11, 9, 3)).astype(np.uint16)
    exact = {"rgb16.png": (png(wide, 16), (wide >> 8).astype(np.uint8)),
             "grey16.png": (png(wide[:, :, 0], 16), np.repeat((wide[:, :, :1] >> 8).astype(np.uint8), 3, 2))}
    for name, data in files.items():
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        g = group.create_group(name)
        g["bytes"] = np.frombuffer(data, np.uint8)
        g["rgb"] = np.array(image.convert("RGB"))
        # grey is made of RGB, as of what torchvision's ImageFolder gives
        g["grey"] = np.array(image.convert("RGB").convert("L"))
    for name, (data, rgb8) in exact.items():
        g = group.create_group(name)
        g["bytes"] = np.frombuffer(data, np.uint8)
        g["rgb"] = rgb8
        g["grey"] = np.array(Image.fromarray(rgb8).convert("L"))


def by_rows(p, size):
    """Pillow resizes rows first, and from version 13 on columns first where it thinks that cheaper."""
    return p.resize((size[0], p.size[1]), Image.BILINEAR).resize(size, Image.BILINEAR)


def put(group, name, source, result, rows_first=None, **attrs):
    g = group.create_group(name)
    if rows_first is not None:
        g["rows_first"] = np.asarray(rows_first)
    g["source"] = source.numpy() if torch.is_tensor(source) else np.asarray(source)
    g["result"] = result.numpy() if torch.is_tensor(result) else np.asarray(result)
    for key, value in attrs.items():
        g.attrs[key] = value


def make_resized(group):
    """attrs: resize [0 to 2], crop: the model's (height, width); box: top, left, height, width."""
    for name, (h, w), resize, crop in [
            ("shorter", (47, 61), [20], None), ("shorter_tall", (61, 47), [20], None), ("larger", (13, 17), [31], None),
            ("both", (40, 30), [17, 23], None), ("middle", (47, 61), [37], (32, 32)), ("middle_odd", (50, 75), [33], (32, 29)),
            ("same_height", (20, 50), [20, 31], None), ("same_width", (50, 20), [31, 20], None),
            ("padded", (19, 24), [], (32, 33)), ("shrunk_much", (110, 70), [7], None), ("cut", (47, 61), [], (20, 31))]:
        for mode in ("RGB", "L"):
            p = picture(h, w).convert(mode)
            rows_first = out = v2.Resize(resize if len(resize) == 2 else resize[0], InterpolationMode.BILINEAR, antialias=True)(p) \
                if resize else p
            if resize:
                rows_first = by_rows(p, out.size)
            if crop:
                out, rows_first = v2.CenterCrop(crop)(out), v2.CenterCrop(crop)(rows_first)
            put(group, f"{name}_{mode}", p, out, rows_first, resize=np.array(resize, np.int64), crop=int(crop is not None))
    for name, box, size in [("part", (5, 7, 31, 20), (16, 16)), ("part_larger", (0, 0, 9, 8), (16, 24)),
                            ("part_whole", (0, 0, 47, 61), (16, 16)), ("part_end", (20, 31, 27, 30), (27, 13))]:
        p = picture(47, 61)
        out = F.resized_crop(p, *box, list(size), InterpolationMode.BILINEAR, antialias=True)
        part = p.crop((box[1], box[0], box[1] + box[3], box[0] + box[2]))
        put(group, name, p, out, by_rows(part, out.size), box=box)


def make_changed(group):
    """Of float images from 0 to 1. attrs of jitter: by [4], order [4]; of affine: degrees, right, down, scale."""
    change = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]
    for i, (by, order) in enumerate([([1.3, 0.6, 1.8, 0.2], [0, 1, 2, 3]), ([0.4, 1.5, 0.3, -0.35], [3, 2, 1, 0]),
                                     ([1, 1, 1, 0.5], [3, 0, 2, 1]), ([1, 0, 1, -0.07], [1, 3, 0, 2])]):
        for channels in (3, 1):
            x = torch.rand((3, 9, 11), generator=torch.Generator().manual_seed(i))
            x[:, 2, 3] = 0.25
            x[:, 4, :3] = 0
            x = x[:channels]
            y = x
            for k in order:
                y = change[k](y, by[k])
            put(group, f"jitter{i}_{channels}", x, y, by=np.array(by), order=np.array(order))
    for i, (degrees, right, down, scale) in enumerate([(30, 0, 0, 1), (0, 3, -2, 1), (-75.5, 1, 2, 1.3), (180, 0, 0, 0.6),
                                                       (10, -4, 0, 2.2)]):
        x = torch.rand((2, 12, 15), generator=torch.Generator().manual_seed(20 + i))
        y = F.affine(x, degrees, [right, down], scale, [0.0, 0.0], InterpolationMode.BILINEAR, fill=None)
        put(group, f"affine{i}", x, y, degrees=degrees, right=right, down=down, scale=scale)


def make_mixed(group):
    """Batches of float images, of which each is mixed with the one before; attrs: share, and of cutmix the place that is drawn,
    (down, right), with `box` (top, left, height, width) and `adjusted`."""
    labels = torch.arange(3)
    for i, (kind, share, place) in enumerate([(v2.MixUp, 0.3, None), (v2.MixUp, 0.875, None), (v2.CutMix, 0.4, (4, 7)),
                                              (v2.CutMix, 0.7, (0, 10)), (v2.CutMix, 0.99, (8, 0)), (v2.CutMix, 0.0, (5, 5))]):
        x = torch.rand((3, 2, 9, 11), generator=torch.Generator().manual_seed(40 + i))
        mix = kind(num_classes=3)
        mix._dist = type("Fixed", (), {"sample": lambda self, shape: torch.tensor(share, dtype=torch.float64)})()
        drawn, randint = list(reversed(place or ())), torch.randint
        torch.randint = lambda *arguments, **options: torch.tensor([drawn.pop(0)])
        try:
            params = mix.make_params([x])
        finally:
            torch.randint = randint
        extra = {}
        if place:
            left, top, right, bottom = params["box"]
            extra = dict(place=np.array(place), box=np.array([top, left, bottom - top, right - left]),
                         adjusted=params["lam_adjusted"])
        params.update(labels=labels, batch_size=3)
        put(group, f"mixed{i}", x, mix.transform(x, params), share=share, **extra)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    with h5py.File(os.path.join(folder, "images.h5"), "w", libver=("v108", "v108")) as f:
        import PIL
        import torchvision
        f.attrs["made_by"] = f"torch {torch.__version__}, torchvision {torchvision.__version__}, Pillow {PIL.__version__}"
        make_files(f.create_group("files"))
        make_resized(f.create_group("resized"))
        make_changed(f.create_group("changed"))
        make_mixed(f.create_group("mixed"))


main()
