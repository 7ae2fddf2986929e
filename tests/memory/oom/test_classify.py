"""Why memory ran out: from texts, allocators' notes and where the error came from."""

from dataclasses import replace

import keras
import numpy as np
import pytest

from kerasmem import errors
from kerasmem.memory.oom import classify
from kerasmem.memory.oom.cause import DeviceFigures
from kerasmem.units import GIB, KIB, MIB
from tests.backends.test_exhaustion import (
    JAX,
    NUMPY,
    TF_GENERATOR,
    TF_JIT,
    TF_MAP,
    TORCH_ALLOWED,
    TORCH_CPU,
    TORCH_CUDA,
)


@pytest.fixture
def device(monkeypatch):
    """Return a function that fixes what is known of the device."""

    def use(**figures):
        known = DeviceFigures("CPU:0", limit_is_exact=True, **figures)
        place = "kerasmem.memory.oom.cause.figures_of"
        monkeypatch.setattr(place, lambda name: replace(known, name=name or "CPU:0"))

    use()
    return use


@pytest.mark.one_backend
def test_the_layer_and_the_phase_come_from_the_operation(exhausted, model, device):
    cause = classify(exhausted("64,512"), model)
    assert (cause.layer, cause.phase) == ("tower/wide", "forward")
    assert cause.requested_bytes == 64 * 512 * 4
    assert (cause.shape, cause.dtype, cause.device) == ("[64,512]", "float", "CPU:0")
    assert cause.error == "ResourceExhaustedError"
    backward = exhausted("64,512", "gradient_tape/tower_1/narrow_1/MatMul/MatMul_1")
    assert classify(backward, model).phase == "backward"
    assert classify(backward, model).layer == "tower/narrow"
    assert classify(exhausted("64", "adam/Square_5"), model).phase == "optimizer"


@pytest.mark.one_backend
def test_what_the_allocator_noted_stands_against_the_request(exhausted, noted, device):
    device(limit_bytes=64 * MIB, current_bytes=5 * MIB, peak_bytes=63 * MIB)
    log = noted(60 * MIB, 62 * MIB, 1 * MIB)
    cause = classify(exhausted("1024,2048"), refusals=log)
    assert cause.kind == "device"
    assert (cause.in_use_bytes, cause.limit_bytes) == (60 * MIB, 64 * MIB)
    # The pool could still have grown by 2 MiB.
    assert cause.largest_free_bytes == 2 * MIB < cause.requested_bytes
    assert cause.in_use_after_bytes == 5 * MIB


@pytest.mark.one_backend
def test_enough_that_is_free_but_in_pieces_is_fragmentation(exhausted, noted, device):
    device(limit_bytes=64 * MIB, peak_bytes=63 * MIB)
    cause = classify(
        exhausted("1024,2048"), refusals=noted(40 * MIB, 64 * MIB, 3 * MIB)
    )
    assert cause.kind == "fragmentation"
    assert cause.largest_free_bytes == 3 * MIB


@pytest.mark.one_backend
def test_a_limit_that_cannot_have_been_had_is_not_believed(exhausted, noted, device):
    # Of a card 80 MiB are left by others, but the pool of 64 could not be extended.
    device(limit_bytes=80 * MIB, peak_bytes=63 * MIB)
    cause = classify(exhausted("1024,2048"), refusals=noted(60 * MIB, 64 * MIB, MIB))
    assert (cause.kind, cause.limit_bytes) == ("device", 64 * MIB)


@pytest.mark.one_backend
def test_without_a_note_only_the_peak_is_certain(exhausted, device):
    device(limit_bytes=64 * MIB, current_bytes=MIB, peak_bytes=60 * MIB)
    assert classify(exhausted("1024,2048")).kind == "device"
    assert classify(exhausted("1024,1024")).kind == "fragmentation"
    # What is in use after the failure says nothing of the moment of it.
    device(limit_bytes=64 * MIB, current_bytes=MIB)
    assert classify(exhausted("1024,1024")).kind == "device"


@pytest.mark.one_backend
def test_a_tensor_above_the_limit_is_one_tensor(exhausted, device):
    device(limit_bytes=64 * MIB, peak_bytes=KIB)
    assert classify(exhausted("8193,2048")).kind == "one tensor"
    assert classify(exhausted("8192,2048")).kind != "one tensor"


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (TORCH_CUDA, "fragmentation"),  # 1.50 + 5.25 of 2 GiB
        (TORCH_ALLOWED, "device"),  # 1.50 of 2 GiB, though the card has 100
        (TORCH_CPU, "device"),
        (JAX, "device"),
        (TF_MAP, "input pipeline"),
    ],
    ids=["torch", "torch within a part", "torch on a CPU", "JAX", "tf.data"],
)
def test_the_kind_follows_from_the_text(text, kind, device):
    assert classify(RuntimeError(text)).kind == kind


@pytest.mark.one_backend
def test_torchs_own_figures_are_taken(device):
    cause = classify(RuntimeError(TORCH_CUDA))
    assert cause.in_use_bytes == 130 * GIB
    assert cause.limit_bytes == round(139.81 * GIB)
    assert cause.device == "cuda:1"


@pytest.mark.one_backend
def test_memory_of_the_host_is_told_apart(device):
    assert classify(MemoryError(NUMPY)).kind == "host"
    in_fit = classify(MemoryError(NUMPY), phase="input")
    assert (in_fit.kind, in_fit.phase) == ("input pipeline", "input")


class Greedy(keras.utils.PyDataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return np.ones((2**23, 2**24)), np.ones(1)


def test_a_generator_that_asks_for_too_much_is_the_pipeline(model, device):
    with pytest.raises(Exception, match="allocate") as caught:
        model.fit(Greedy(), verbose=0)
    cause = classify(caught.value, model)
    assert cause.kind in ("input pipeline", "host")
    assert cause.requested_bytes == 2**50


@pytest.mark.one_backend
def test_another_error_is_none(device):
    assert classify(ValueError("shapes differ")) is None
    assert classify(KeyboardInterrupt()) is None
    # One of ours has been looked at already.
    assert classify(errors.OutOfMemoryError("out of memory")) is None


@pytest.mark.one_backend
def test_a_long_text_is_cut(device):
    cause = classify(MemoryError("words\n" * 500))
    assert len(cause.message) < 410
    assert "\n" not in cause.message
    assert TF_GENERATOR.startswith(classify(MemoryError(TF_GENERATOR)).message[:40])


@pytest.mark.one_backend
def test_a_compiled_step_that_asks_for_more_than_there_is_is_no_tensor(device):
    device(limit_bytes=4 * MIB)
    cause = classify(RuntimeError(TF_JIT))
    assert (cause.kind, cause.operation) == ("device", "compiled step")
    assert classify(RuntimeError(TORCH_CPU)).kind == "one tensor"


@pytest.mark.one_backend
def test_a_device_that_does_not_even_answer_is_left_out(exhausted, monkeypatch):
    def broken(name):
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr("kerasmem.memory.oom.cause.figures_of", broken)
    cause = classify(exhausted("1024"), keras.Sequential([keras.layers.Dense(1)]))
    assert (cause.device, cause.limit_bytes) == ("CPU:0", None)
    assert cause.layer is None
