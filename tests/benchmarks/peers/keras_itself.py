"""Keras 3's own quantization of weights."""

import keras

from tests.benchmarks.peers.base import row_of
from tests.benchmarks.peers.networks import trained_network

TOOL, PACKAGE = "Keras quantize", "keras"


def _quantized(mode):
    def job_of(task, name, job):
        model = trained_network(task, name, keras)
        model.quantize(mode)
        kinds = sorted({type(layer).__name__ for layer in _left_float(model)})
        note = f"leaves {', '.join(kinds)} float" if kinds else ""
        yield row_of(task, name, job, model, note)

    return job_of


def _left_float(model):
    return [
        layer
        for layer in model.layers
        if layer.weights and not getattr(layer, "quantization_mode", None)
    ]


JOBS = {"int8 weights": _quantized("int8"), "int4 weights": _quantized("int4")}
