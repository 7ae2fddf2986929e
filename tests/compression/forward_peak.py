"""Prints the peak bytes of one forward pass or step, float and quantized, as JSON.

    python tests/compression/forward_peak.py MODEL MODE SCHEME...

MODEL is `dense`, `deep`, `table` or `convolution`; MODE is `eager`, `graph`, `jit` or
`step`, one of training with LoRA; of several, with commas between, each pair is a line.
A SCHEME of `float` is the model as it is. Weights count in full. On TensorFlow the
figures are its allocator's, on JAX those of the compiled program, on torch those of its
profiler: at least one of the three counts on every machine.
"""

import gc
import itertools
import json
import os
import sys

os.environ |= {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}

import keras
import numpy as np

from kerasmem import backends
from kerasmem.compression.quantize import Quantize
from kerasmem.graph.values import nbytes
from tests.models import in_place

L = keras.layers


def dense():
    """One layer holds 85 % of the weights."""
    layers = [keras.Input((1024,)), L.Dense(2048, activation="relu"), L.Dense(128)]
    return keras.Sequential(layers), np.ones((4, 1024), "float32")


def deep():
    """Many layers of one size: a graph must not make all of them float at once."""
    layers = [L.Dense(512, activation="relu") for _ in range(16)]
    return keras.Sequential([keras.Input((512,)), *layers]), np.ones(
        (4, 512), "float32"
    )


def table():
    """A large table of which few rows are looked up."""
    layers = [keras.Input((8,), dtype="int32"), L.Embedding(20_000, 128), L.Flatten()]
    return keras.Sequential([*layers, L.Dense(4)]), np.ones((4, 8), "int32")


def convolution():
    """A convolution that holds nearly all weights."""
    layers = [keras.Input((8, 8, 256)), L.Conv2D(512, 3, strides=4), L.Flatten()]
    return keras.Sequential([*layers, L.Dense(4)]), np.ones((2, 8, 8, 256), "float32")


def on_tensorflow(model, x, mode):
    eager, jit = mode == "eager", mode == "jit"
    model.compile("sgd", "mse", run_eagerly=eager, jit_compile=jit)
    y = np.zeros((len(x), *model.output_shape[1:]), "float32")

    def run():
        if mode == "step":
            model.train_on_batch(x, y)
        else:
            model.predict_on_batch(x)

    run()
    gc.collect()
    # Weights may lie outside of the allocator, in the NumPy arrays they came from.
    (before,) = backends.current().device_memory()
    backends.current().reset_device_peak()
    run()
    (reading,) = backends.current().device_memory()
    passing = reading.peak_bytes - before.current_bytes
    return passing + sum(map(nbytes, model.weights))


def on_jax(model, x, mode):
    import jax

    def run(trainable, rest, x):
        return model.stateless_call(trainable, rest, x, training=False)[0]

    def step(trainable, rest, x):
        return (model.stateless_call(trainable, rest, x, training=True)[0] ** 2).mean()

    values = [
        [v.value for v in vs]
        for vs in (model.trainable_variables, model.non_trainable_variables)
    ]
    function = jax.grad(step) if mode == "step" else run
    found = jax.jit(function).lower(*values, x).compile().memory_analysis()
    return (
        found.argument_size_in_bytes
        + found.temp_size_in_bytes
        + found.output_size_in_bytes
    )


def on_torch(model, x, mode):
    import torch

    x = keras.ops.convert_to_tensor(x)

    def run():
        if mode == "step":
            (model(x, training=True) ** 2).mean().backward()
            model.zero_grad()
        else:
            model(x)

    with torch.inference_mode(mode != "step"):
        run()
        with torch.profiler.profile(profile_memory=True) as profile:
            run()
    in_use = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            in_use += event.nbytes()
            peak = max(peak, in_use)
    return peak + sum(map(nbytes, model.weights))


def main():
    names, modes, *schemes = sys.argv[1:]
    for name, mode in itertools.product(names.split(","), modes.split(",")):
        sys.stdout.write(json.dumps(peaks(name, mode, schemes)) + "\n")


def peaks(name, mode, schemes):
    measure = {"tensorflow": on_tensorflow, "jax": on_jax, "torch": on_torch}
    found = {}
    for scheme in schemes:
        model, x = globals()[name]()
        if scheme != "float":
            in_place(Quantize(scheme), model)
        if mode == "step":
            for layer in model.layers:
                layer.enable_lora(4)
        gc.collect()
        found[scheme] = measure[keras.backend.backend()](model, x, mode)
        del model
        keras.utils.clear_session()
    return found


if __name__ == "__main__":
    main()
