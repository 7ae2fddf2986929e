"""What a token of `generate` costs with weights in fewer bits, ours and Keras's own.

Run by hand, on the backend that is asked about, some minutes:

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_token [--rounds 5]

A Gemma of 12.8 M random weights writes 16 tokens, each model in turns. The error is the
distance of its logits from the float model's, relative to their length.
"""

import argparse
import statistics
import time

import keras
import keras_hub
import numpy as np

import kerasmem as km
from kerasmem.graph.clone import clone
from kerasmem.graph.values import nbytes, to_numpy

CONFIG = {
    "vocabulary_size": 8192,
    "num_layers": 4,
    "num_query_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "hidden_dim": 512,
    "intermediate_dim": 2048,
}
TOKENS, PROMPT = 16, 16


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    keras.utils.set_random_seed(0)
    models = dict(made())
    x = inputs(PROMPT + TOKENS, PROMPT)
    expected = logits(models["float"], x)
    seconds = {name: [] for name in models}
    for model in models.values():
        model.compile(sampler="greedy")
        model.generate(x, stop_token_ids=None)
    for _ in range(rounds):
        for name, model in models.items():
            start = time.process_time()
            model.generate(x, stop_token_ids=None)
            seconds[name].append(time.process_time() - start)
    print(f"{keras.backend.backend()}, {models['float'].count_params():,} weights")
    plain = statistics.median(seconds["float"])
    for name, model in models.items():
        took = statistics.median(seconds[name])
        found = logits(model, x)
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        size = sum(nbytes(weight) for weight in model.weights)
        print(
            f"{name:12} error {error:.4f}, {size:>11,} bytes, "
            f"{1e3 * took / TOKENS:6.2f} CPU ms a token, {took / plain:.2f}x"
        )


def made():
    """Give the models by their names."""
    backbone = keras_hub.models.GemmaBackbone(**CONFIG)
    model = keras_hub.models.GemmaCausalLM(backbone=backbone, preprocessor=None)
    yield "float", model
    for name, config in {
        "int8": km.Quantize("int8"),
        "int4": km.Quantize("int4"),
        "int4, zeros": km.Quantize("int4", symmetric=False),
    }.items():
        yield name, km.compress(model, config, verbose=0).model
    for name in ("int8", "int4"):
        theirs = clone(model)
        theirs.quantize(name)
        yield f"Keras {name}", theirs


def inputs(length, known):
    random = np.random.default_rng(0)
    tokens = random.integers(1, CONFIG["vocabulary_size"], (1, length))
    mask = np.arange(length)[None] < known
    return {"token_ids": np.where(mask, tokens, 0), "padding_mask": mask}


def logits(model, x):
    tensors = {name: keras.ops.convert_to_tensor(value) for name, value in x.items()}
    return to_numpy(model(tensors, training=False))


if __name__ == "__main__":
    main()
