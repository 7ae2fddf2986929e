"""Rematerialization among the options, and models that cannot have it."""

from dataclasses import replace

import keras
import pytest
from keras import layers

import kerasmem as km
from kerasmem.extras.tune import measure
from kerasmem.extras.tune.measure import answer, attempt
from kerasmem.extras.tune.variants import changed, variants
from kerasmem.graph.activation_policy import policy_of
from kerasmem.memory.plan import plan_of

BATCH = 64


@pytest.fixture
def here(monkeypatch):
    """Children answer in this process."""
    monkeypatch.setattr(measure, "run_in_child", lambda _, job, **__: answer(job))


def option(request):
    return next(v for v in variants(request, 1) if v.name == "rematerialized")


def test_the_option_trains_a_copy_by_the_plan_of_lowest_peak(deep, question):
    request = question(deep, BATCH, jit_compile=keras.backend.backend() == "jax")
    variant = option(request)
    assert variant.how == "km.rematerialize(model, batch_size=64)"
    lean = changed(request, variant).model
    best = plan_of(km.rematerialize(deep, batch_size=BATCH))
    assert plan_of(lean).peak_bytes == best.peak_bytes < best.plain_peak_bytes
    assert plan_of(deep) is None


def test_the_child_runs_what_is_computed_again(deep, question, here, monkeypatch):
    ran = []
    run = measure.measure

    def noted(request, every):
        ran.append(policy_of(request.model))
        return run(request, every)

    monkeypatch.setattr(measure, "measure", noted)
    request = question(deep, BATCH, jit_compile=keras.backend.backend() == "jax")
    figures = attempt(request, option(request))
    assert figures.reason == ""
    assert figures.steps >= 5
    assert ran[0].function == "rematerialize"


def test_a_model_without_a_graph_is_a_line_with_its_reason(deep, question):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = layers.Dense(2)

        def call(self, x):
            return self.head(keras.ops.convert_to_tensor(keras.ops.convert_to_numpy(x)))

    model = Own()
    model(keras.ops.zeros((1, 4)))
    model.compile("sgd", "mse")
    request = replace(question(deep, 8), model=model)
    found = attempt(request, option(request))
    assert "Expected: a Sequential or Functional model" in found.reason
    assert found.step_ms is None


@pytest.mark.parametrize("treat", [km.rematerialize, km.compress_activations])
def test_what_is_treated_already_is_tried_as_it_is(deep, question, treat):
    found = variants(question(treat(deep), BATCH), 1)
    assert "rematerialized" not in [variant.name for variant in found]
