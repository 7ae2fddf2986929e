"""Schedules and masks of tfmot, as the installed one gives them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kerasmem.compression.prune import Constant, Polynomial, Prune
from kerasmem.compression.prune.scores import NOfM, parse_pattern

pytestmark = pytest.mark.one_backend

CHILD = Path(__file__).with_name("tfmot_child.py")
SCHEDULES = {
    "polynomial": (
        Polynomial(begin=100, end=110, every=2, unit="step", initial=0.2),
        0.8,
    ),
    "linear": (Polynomial(begin=5, end=45, every=4, unit="step", power=1), 0.9),
    "constant": (Constant(begin=7, end=31, every=8, unit="step"), 0.5),
    "forever": (Constant(begin=10, every=10, unit="step"), 0.5),
}


@pytest.fixture(scope="module")
def tfmot(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfmot") / "found.npz"
    # tfmot takes tf_keras, which warns of its age; the child has no other duty.
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    environment.pop("KERAS_BACKEND", None)
    child = subprocess.run(
        [sys.executable, str(CHILD), str(path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    with np.load(path) as found:
        return dict(found)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_has_tfmots_values_and_turns_at_every_step(name, tfmot):
    schedule, final = SCHEDULES[name]
    for step, (due, sparsity) in enumerate(
        zip(tfmot[f"due {name}"], tfmot[f"sparsity {name}"], strict=True)
    ):
        ended = schedule.end is not None and step > schedule.end
        assert (schedule.latest(step) == step and not ended) == due
        if step >= schedule.begin:
            assert schedule.sparsity(step, final) == pytest.approx(sparsity, abs=1e-6)


@pytest.mark.parametrize("name", ["2:4", "1:4", "3:5"])
@pytest.mark.parametrize("shape", [(24, 7), (10, 6), (3, 3, 9, 5)])
def test_n_of_m_masks_are_tfmots(name, shape, tfmot):
    weights = np.random.default_rng(3).normal(size=shape).astype("float32")
    pattern = parse_pattern(name)
    assert isinstance(pattern, NOfM)
    (mask,) = pattern.masks(
        [np.abs(weights)], 1 - pattern.nonzero / pattern.group, [len(shape) - 2]
    )
    np.testing.assert_array_equal(mask, tfmot[f"{name} {shape}"])


@pytest.mark.parametrize("name", ["4x4", "max 2x6", "1x3"])
def test_block_masks_are_tfmots(name, tfmot):
    weights = np.random.default_rng(3).normal(size=(24, 12)).astype("float32")
    (mask,) = parse_pattern(name).masks([np.abs(weights)], 0.5, [0])
    np.testing.assert_array_equal(mask, tfmot[f"block {name}"])


def stand_in(name, **config):
    """Return an object as tfmot's own would be, without importing it."""
    kind = type(name, (), {"__call__": lambda self, step: None})
    kind.__module__ = "tensorflow_model_optimization.python.core"
    kind.get_config = lambda self: {"class_name": name, "config": config}
    return kind()


def test_tfmots_own_schedules_become_ours():
    places = {"begin_step": 100, "end_step": 110, "frequency": 2}
    polynomial = stand_in(
        "PolynomialDecay",
        initial_sparsity=0.2,
        final_sparsity=0.8,
        power=3,
        **places,
    )
    constant = stand_in(
        "ConstantSparsity",
        target_sparsity=0.5,
        **{**places, "end_step": -1},
    )
    assert Prune(0.8, schedule=polynomial).schedule == SCHEDULES["polynomial"][0]
    expected = Constant(begin=100, every=2, unit="step")
    assert Prune(0.5, schedule=constant).schedule == expected
    with pytest.raises(
        ValueError, match="differs from the final sparsity.*0.7, 0.8 in the"
    ):
        Prune(0.7, schedule=polynomial)
