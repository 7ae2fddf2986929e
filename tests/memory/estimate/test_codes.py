"""Floats that stand for codes, in the program of an estimate."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.variable import QuantizedVariable
from kerasmem.memory.estimate import Input, Request
from kerasmem.memory.estimate.analytic.framework import framework
from kerasmem.memory.estimate.analytic.record import record

pytestmark = pytest.mark.one_backend


def recorded(model, shape, dtype):
    """Return the program of a step on TensorFlow, not compiled."""
    asked = Request(
        model=model,
        inputs=(Input("x", shape, dtype),),
        batch_size=shape[0],
        optimizer=keras.optimizers.SGD(),
        dtype_policy=None,
        jit_compile=False,
        backend="tensorflow",
        training=True,
        device="gpu",
    )
    return record(asked, framework("tensorflow", "gpu", compiled=False)).step


def test_floats_of_codes_are_made_again_for_the_backward_pass():
    inputs = keras.Input((16,))
    x = keras.layers.Dense(24, name="first")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(8, name="coded")(x))
    model = km.compress(model, km.Quantize("int4", exclude="first"), verbose=0).model
    program = recorded(model, (4, 16), "float32")
    made = [op for op in program.ops if op.name == "dequantize"]
    assert [op.phase for op in made] == ["forward", "backward"]
    for op in made:
        (floats,) = op.writes
        assert floats.nbytes == 4 * np.prod([24, 8])
        readers = [other.phase for other in program.ops if floats in other.reads]
        assert readers == [op.phase]


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_kernels_of_convolutions_are_made_float_in_the_program(scheme):
    inputs = keras.Input((6, 6, 8))
    x = keras.layers.Conv2D(8, 3, name="first")(inputs)
    model = keras.Model(inputs, keras.layers.Conv2D(16, 3, name="coded")(x))
    model = km.compress(model, km.Quantize(scheme, exclude="first"), verbose=0).model
    program = recorded(model, (4, 6, 6, 8), "float32")
    (floats,) = [op for op in program.ops if op.name == "dequantize"]
    assert floats.writes[0].shape == (3, 3, 8, 16)
    readers = [op.name for op in program.ops if floats.writes[0] in op.reads]
    assert readers == ["convolution", "convolution gradient"]


def test_lora_beside_codes_makes_nothing_of_the_size_of_their_kernel():
    inputs = keras.Input((16,))
    model = keras.Model(inputs, keras.layers.Dense(24, name="coded")(inputs))
    model = km.compress(model, km.Quantize("int4"), verbose=0).model
    model.layers[-1].enable_lora(2)
    program = recorded(model, (4, 16), "float32")
    whole = [op.name for op in program.ops for y in op.writes if y.shape == (16, 24)]
    assert whole == ["dequantize"]  # to the inputs flows no gradient
    narrow = [y.shape for op in program.ops for y in op.writes if op.name == "matmul"]
    assert narrow == [(4, 24), (4, 2), (4, 24)]


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_a_tied_table_is_made_float_in_the_program_and_not_here(scheme, monkeypatch):
    tokens = keras.Input((6,), dtype="int32")
    table = keras.layers.ReversibleEmbedding(50, 8, name="table")
    x = keras.layers.Dense(8)(table(tokens))
    model = keras.Model(tokens, table(x, reverse=True))
    model = km.compress(model, km.Quantize(scheme), verbose=0).model
    # Nothing of the table's size is computed to write the program down.
    monkeypatch.setattr(QuantizedVariable, "value", property(None))
    program = recorded(model, (4, 6), "int32")
    assert not program.unknown
    # Once for the logits, again for their gradient; rows are looked up as codes.
    made = [op for op in program.ops if (op.name, op.layer) == ("dequantize", "table")]
    assert [op.phase for op in made] == ["forward", "backward"]
    for op in made:
        (floats,) = op.writes
        assert floats.nbytes == 4 * 50 * 8
        readers = [each for each in program.ops if floats in each.reads]
        assert [each.phase for each in readers] == [op.phase]


def test_the_transposed_table_of_a_tied_head_is_no_copy_and_has_a_gradient():
    tokens = keras.Input((6,), dtype="int32")
    table = keras.layers.ReversibleEmbedding(50, 8, name="table")
    model = keras.Model(tokens, table(table(tokens), reverse=True))
    program = recorded(model, (4, 6), "int32")
    whole = [
        (op.phase, op.name)
        for op in program.ops
        for x in op.writes
        if np.prod(x.shape) == 50 * 8
    ]
    # That of the logits, which the rows that were looked up are added to.
    assert whole[0] == ("backward", "matmul gradient")


def test_xla_keeps_all_floats_of_tensorflow_on_a_cpu_and_nowhere_else():
    inputs = x = keras.Input((64,))
    for _ in range(4):
        x = keras.layers.Dense(64)(x)
    model = km.compress(keras.Model(inputs, x), km.Quantize("int8"), verbose=0).model
    for layer in model.layers[1:]:
        layer.enable_lora(2)
    peaks = {
        backend: km.estimate_memory(
            model,
            2,
            optimizer="sgd",
            backend=backend,
            device="cpu",
            jit_compile=True,
            method="analytic",
        ).peak_bytes
        for backend in ("tensorflow", "jax")
    }
    floats = 4 * 4 * 64 * 64
    assert peaks["tensorflow"] > peaks["jax"] + floats
