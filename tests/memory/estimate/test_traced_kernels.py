"""Scratch memory against what an H200 took in recorded steps (batch 32 and 16)."""

import pytest

from kerasmem.backends.trace import Operation, Output
from kerasmem.memory.estimate.traced.kernels import scratch_bytes


def floats(*shape):
    return Output(shape, 4)


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
