"""Callbacks and converted models in steps that torch compiles (`jit_compile=True`).

The reference is the same training without compilation.
"""

import numpy as np
import pytest
import torch

import kerasmem as km
from kerasmem.graph.values import to_numpy

pytestmark = [
    # torch's own warnings while it compiles: as errors they would end the compilation.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("error::kerasmem.errors.KerasMemWarning"),
    pytest.mark.filterwarnings("ignore:torch counts"),
]
STEPS, BATCH = 6, 4


@pytest.fixture(autouse=True)
def _fresh_compiler():
    # torch stops compiling a function after eight versions of it.
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def batches():
    rng = np.random.default_rng(3)
    for _ in range(STEPS):
        x, y = (rng.normal(size=(BATCH, n)).astype("float32") for n in (6, 3))
        yield torch.from_numpy(x), torch.from_numpy(y)


def train(model, jit, *callbacks):
    model.compile("adam", "mse", jit_compile=jit)
    history = model.fit(
        batches(), shuffle=False, verbose=0, callbacks=list(callbacks)
    ).history
    return history, [to_numpy(weight) for weight in model.weights]


def assert_close(compiled, eager):
    (history, weights), (eager_history, eager_weights) = compiled, eager
    assert set(history) == set(eager_history)
    for key, values in eager_history.items():
        if "mib" not in key:
            assert history[key] == pytest.approx(values, rel=1e-4)
    for weight, expected in zip(weights, eager_weights, strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-5)


def test_gradient_figures_are_those_of_eager_steps(make_model):
    monitors = [km.callbacks.GradientMonitor(every=3) for _ in range(2)]
    compiled, eager = (
        train(make_model(), jit, monitor)
        for jit, monitor in zip((True, False), monitors, strict=True)
    )
    assert_close(compiled, eager)
    records = [monitor.records[0] for monitor in monitors]
    assert records[0].steps == records[1].steps == STEPS
    assert records[0].sampled_steps == records[1].sampled_steps == (0, 3)
    for row, expected in zip(records[0].variables, records[1].variables, strict=True):
        assert row.norm == pytest.approx(expected.norm, rel=1e-4)
        assert row.update_ratio == pytest.approx(expected.update_ratio, rel=1e-3)


def test_monitors_change_no_bit_of_a_compiled_training(make_model):
    monitors = km.callbacks.MemoryMonitor(every=2), km.callbacks.GradientMonitor()
    plain = train(make_model(), True)[1]
    history, watched = train(make_model(), True, *monitors)
    assert history["host_peak_mib"][0] > 0
    assert [record.batch for record in monitors[0].records][:3] == [1, 3, 5]
    for weight, expected in zip(watched, plain, strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_pruning_keeps_the_fraction_of_zeros(make_model):
    def pruned(jit):
        prune = km.Prune(0.5, end=1.0)
        return train(make_model(), jit, km.callbacks.Pruning(prune))

    compiled, eager = pruned(True), pruned(False)
    assert_close(compiled, eager)
    assert np.mean(compiled[1][0] == 0) == pytest.approx(0.5, abs=0.02)


def test_channel_sparsity_adds_the_same_penalty(make_model):
    def sparse(jit):
        return train(make_model(), jit, km.callbacks.ChannelSparsity(0.05))

    compiled = sparse(True)
    assert_close(compiled, sparse(False))
    assert compiled[0]["loss"] != train(make_model(), False)[0]["loss"]


def test_quantization_aware_training_is_that_of_eager_steps(make_model):
    def aware(jit):
        return train(km.quantization_aware(make_model(), km.Quantize("int8")), jit)

    assert_close(aware(True), aware(False))


def test_rematerialized_training_is_that_of_the_model(make_model):
    compiled = train(km.rematerialize(make_model(), segments=2), True)
    assert_close(compiled, train(make_model(), False))
