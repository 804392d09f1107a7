"""What the op cases are put together from."""

IMAGE = [3, 7, 9]


def pre(out=4, **more):
    return ("conv2d", {"out": out, "kernel": 1, "name": "pre", **more})


HEAD = [("flatten", {}), ("linear", {"out": 5, "name": "head"})]
MSE = ("mse", {})
CE = ("cross_entropy", {})


def image(*layers, pre_out=4):
    return [pre(pre_out), *layers, *HEAD]


def features(*layers, out=13):
    return [("linear", {"out": out, "name": "pre"}), *layers, ("linear", {"out": 5, "name": "head"})]


def conv(**attrs):
    return ("conv2d", {"name": "op", **attrs})


def norm(name, **attrs):
    return ("batchnorm", {"name": name, **attrs})
