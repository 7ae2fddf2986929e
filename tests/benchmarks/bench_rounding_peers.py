"""GPTQ and AWQ of a Gemma: ours and Keras's own, error, time and memory in one run.

Run by hand, some minutes on two cores:

    KERAS_BACKEND=tensorflow python -m tests.benchmarks.bench_rounding_peers

A Gemma of two blocks and 4.1 M random weights, so that Keras's GPTQ comes to its end;
int4 in groups of 128; its table stays float, as Keras leaves it. 32 rows of 64 ids,
frequent and rare ones as in a text, calibrate; 8 others judge: the distance of logits
from the float model's, relative to their length, and the KL divergence of the next
token. Each way in a process of its own, one after another; memory is the peak of
resident memory above what the process held before it began.
"""

import argparse
import json
import subprocess
import sys
import time

import keras
import keras_hub
import numpy as np

import kerasmem as km
from kerasmem.graph.divergence import kl_divergence, log_probabilities
from kerasmem.graph.values import nbytes, to_numpy
from tests.benchmarks.bench_language import peak, resident

CONFIG = {
    "vocabulary_size": 8192,
    "num_layers": 2,
    "num_query_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "hidden_dim": 256,
    "intermediate_dim": 1024,
}
ROWS, LENGTH, GROUP = 32, 64, 128
OURS = {
    "nearest": {},
    "gptq": {"rounding": "gptq"},
    "gptq, mse": {"rounding": "gptq", "scales": "mse"},
    "awq": {"scales": "awq"},
    "awq and gptq": {"scales": "awq", "rounding": "gptq"},
    "auto": {"rounding": "auto"},
}
THEIRS = ("gptq, symmetric", "gptq", "awq")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", help="a way, in this process")
    one = parser.parse_args().one
    if one:
        run(one)
        return
    for name in [*(f"ours: {k}" for k in OURS), *(f"Keras: {k}" for k in THEIRS)]:
        command = [sys.executable, "-m", __spec__.name, "--one", name]
        subprocess.run(command, check=True)


def run(name):
    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.GemmaBackbone(**CONFIG)
    model = keras_hub.models.GemmaCausalLM(backbone=backbone, preprocessor=None)
    rng = np.random.default_rng(1)
    # Few ids are frequent, as words are (Zipf).
    ids = rng.zipf(1.3, (ROWS + 8, LENGTH)) % CONFIG["vocabulary_size"]
    known, new = ids[:ROWS].astype("int32"), ids[ROWS:].astype("int32")
    exact = logits(model, new)
    before, start = resident(), time.process_time()
    whose, _, way = name.partition(": ")
    if whose == "ours":
        group = {"granularity": "group", "group_size": GROUP, **OURS[way]}
        step = km.Quantize("int4", exclude="token_embedding", **group)
        data = inputs(known) if step.takes_samples else None
        model = km.compress(model, step, data=data, verbose=0).model
    else:
        model.quantize(way.partition(",")[0], config=of_keras(way, known))
    used, above = time.process_time() - start, peak() - before
    found = logits(model, new)
    divergence = kl_divergence(log_probabilities(exact), log_probabilities(found))
    line = {
        "way": name,
        "error": round(float(np.linalg.norm(found - exact) / np.linalg.norm(exact)), 4),
        "kl": round(float(to_numpy(divergence).mean()), 4),
        "cpu_seconds": round(used, 1),
        "peak_mib_above": above,
        "bytes": sum(map(nbytes, model.weights)),
    }
    print(json.dumps(line), flush=True)


def of_keras(way, rows):
    """Return Keras's own config of a way, with the same rows."""
    settings = {"num_samples": len(rows), "sequence_length": LENGTH}
    settings |= {"group_size": GROUP, "weight_bits": 4}
    given = list(rows), lambda ids: ids
    if way == "awq":
        return keras.quantizers.AWQConfig(*given, **settings)
    symmetric = way.endswith("symmetric")
    return keras.quantizers.GPTQConfig(*given, symmetric=symmetric, **settings)


def inputs(rows):
    return {"token_ids": rows, "padding_mask": np.ones_like(rows)}


def logits(model, rows):
    return to_numpy(model(inputs(rows), training=False)).astype("float32")


if __name__ == "__main__":
    main()
