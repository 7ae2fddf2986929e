"""Scratch memory against what an H200 took in recorded steps (batch 32 and 16)."""

import os
import sys

import pytest

from kerasmem.backends.trace import Operation, OperationOutput
from kerasmem.memory.estimate.scratch import unrolled_bytes
from kerasmem.memory.estimate.traced.kernels import output_bytes, scratch_bytes
from kerasmem.units import MIB

pytestmark = pytest.mark.one_backend


def floats(*shape):
    return OperationOutput(shape, 4)


def scratch(kind, inputs, output, **attributes):
    places = tuple((number, 0) for number in range(len(inputs)))
    operation = Operation("name", kind, places, (), (output,), attributes)
    return scratch_bytes(operation, inputs)


IMAGE, WIDER = floats(32, 64, 64, 64), floats(32, 128, 64, 64)
SMALL, KERNEL = floats(32, 128, 32, 32), floats(3, 3, 64, 128)


@pytest.mark.parametrize(
    ("kind", "inputs", "output", "recorded"),
    [
        ("_FusedConv2D", (IMAGE, KERNEL), WIDER, 294_912 + 33_849_360),
        (
            "Conv2DBackpropInput",
            (floats(4), KERNEL, WIDER),
            IMAGE,
            294_912 + 33_554_432 + 104_399_447,
        ),
        (
            "Conv2DBackpropFilter",
            (SMALL, floats(4), SMALL),
            floats(3, 3, 128, 128),
            589_824 + 42_402_471,
        ),
    ],
)
def test_a_convolution_takes_what_was_recorded(kind, inputs, output, recorded):
    found = sum(scratch(kind, inputs, output, data_format="NCHW"))
    assert found == pytest.approx(recorded, rel=0.03)


def test_a_convolution_with_channels_last_transposes_its_kernel_only():
    taken = scratch("Conv2D", (IMAGE, KERNEL), WIDER, data_format="NHWC")
    assert taken == [KERNEL.nbytes]


@pytest.mark.parametrize(
    ("image", "kernel", "to_kernel", "to_input"),
    [  # MiB recorded on 2 threads; the images fill the cache, however small the batch
        ((64, 64, 32), (3, 3, 3, 32), 13.92, 0.42),
        ((32, 32, 32), (3, 3, 32, 32), 27.0, 1.125),
        ((16, 16, 64), (3, 3, 32, 64), 20.53, 20.53),
        ((8, 8, 64), (3, 3, 64, 64), 14.34, 14.34),
        ((24, 24, 24), (1, 1, 144, 24), 25.0, 25.0),
    ],
)
def test_a_convolution_on_a_cpu_takes_what_was_recorded(
    image, kernel, to_kernel, to_input, monkeypatch
):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    found = [size / MIB for size in unrolled_bytes(image, kernel, 8, 4)]
    assert found == pytest.approx([to_kernel, to_input], abs=0.01)
    gradient, weights = floats(8, *image), floats(*kernel)
    taken = [floats(4), weights, gradient]
    operation = Operation("name", "Conv2DBackpropInput", (), (), (floats(8),), {})
    assert scratch_bytes(operation, taken, "cpu") == [round(found[1] * MIB)]
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    monkeypatch.setattr(sys, "platform", "linux")
    assert scratch_bytes(operation, taken, "cpu") == []  # oneDNN's kernel needs none


@pytest.mark.parametrize(("mode", "kept", "gates"), [("lstm", 5, 4), ("gru", 6, 3)])
def test_cudnn_keeps_gates_and_cell_and_works_on_products_and_copies(mode, kept, gates):
    batch, time, features, units, weights = 64, 128, 256, 512, 10_000
    state = floats(batch, 1, units)
    taken = [floats(batch, time, features), state, state, floats(weights)]
    output = floats(batch, time, units)
    made = (output, state, state, OperationOutput(None, 4), OperationOutput(None, 1))
    operation = Operation("name", "CudnnRNNV3", (), (), made, {"rnn_mode": mode})

    reads = 4 * (batch * time * features + 2 * weights)
    assert output_bytes(operation, 3, taken) == kept * output.nbytes
    assert scratch_bytes(operation, taken) == [(gates + 1) * output.nbytes + reads]


def test_softmax_takes_what_was_recorded():
    logits = floats(16, 8, 256, 256)
    assert scratch("Softmax", (logits,), logits) == [33_554_432, 33_554_432]


@pytest.mark.parametrize(
    ("equation", "transposed"),
    [
        ("abc,acd->abd", []),
        ("abcd,aecd->acbe", [8_388_608, 8_388_608]),  # query by key, as recorded
        ("acbe,aecd->abcd", [8_388_608, 8_388_608]),  # ... by value
    ],
)
def test_einsum_copies_what_it_has_to_transpose(equation, transposed):
    sizes = {"a": 16, "b": 256, "c": 8, "d": 64, "e": 256}
    if not transposed:
        sizes = dict.fromkeys("abcd", 16)
    taken, result = equation.split("->")
    inputs = [floats(*(sizes[x] for x in label)) for label in taken.split(",")]
    output = floats(*(sizes[x] for x in result))
    assert scratch("Einsum", inputs, output, equation=equation) == transposed
