"""A plan within a limit: its search, its figures, and trainings by it."""

import itertools
import sys
import warnings
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import layers

import kerasmem as km
from kerasmem.errors import ConfigError, KerasMemWarning, ModelError
from kerasmem.files.read_run import read_run
from kerasmem.graph.activation_policy import policy_of
from kerasmem.graph.clone import clone
from kerasmem.memory.compress_activations import activation_report
from kerasmem.memory.estimate.estimate import checked_request
from kerasmem.memory.fit import training
from kerasmem.memory.plan import MemoryPlan, plan_of, planner
from kerasmem.memory.plan.contents import plan_for
from kerasmem.memory.plan.pieces import candidates
from kerasmem.memory.plan.search import CHOICES, EIGHT_BITS, RECOMPUTE, Search
from kerasmem.memory.plan.steps import Strategy
from kerasmem.report.run import run_page_html
from tests.memory.plan import models
from tests.memory.plan.test_rematerialize import subclassed

BATCH = 1024
WIDTH = 32


def deep(count=8, normalized=False, width=WIDTH):
    model = keras.Sequential([keras.Input((width,))])
    for _ in range(count):
        model.add(layers.Dense(width, activation="tanh"))
        if normalized:
            model.add(layers.BatchNormalization())
    model.add(layers.Dense(2))
    jit = keras.backend.backend() == "jax"
    model.compile("adam", "mse", jit_compile=jit)
    return model


def data(size=BATCH, width=WIDTH):
    random = np.random.default_rng(0)
    x = random.normal(size=(size, width)).astype("float32")
    return x, x[:, :2]


def values(model):
    return [keras.ops.convert_to_numpy(v.value) for v in model.weights]


@pytest.fixture
def alone(monkeypatch):
    """Models of other tests in this process do not count."""
    nothing = SimpleNamespace(current_bytes=None)
    monkeypatch.setattr("kerasmem.memory.fit.plan.figures_of", lambda: nothing)


@pytest.mark.one_backend
def test_no_plan_of_all_is_faster():
    """Compared with every set of pieces and several numbers of micro-batches."""
    model, batch = deep(6, width=512), 8192
    search = Search(checked_request(model, batch, device="cpu"), CHOICES)
    pairs = list(itertools.combinations(range(len(search.step.calls) + 1), 2))
    sets = [
        pieces
        for count in (0, 1, 2, 3)
        for pieces in itertools.combinations(pairs, count)
        if all(a[1] <= b[0] for a, b in itertools.pairwise(pieces))
    ]
    found = [
        search.figures(Strategy(pieces, micro_batches=count))
        for count in (1, 2, 3)
        for pieces in sets
    ]
    plain, lowest = search.plain.peak_bytes, min(one.peak_bytes for one in found)
    for share in (0.2, 0.4, 0.6, 0.8):
        limit = round(lowest + share * (plain - lowest))
        best = min(one.extra_time for one in found if one.peak_bytes <= limit)
        plan = km.plan_memory(model, batch, limit)
        assert plan.peak_bytes <= limit
        assert plan.extra_time <= best + 0.01


@pytest.mark.one_backend
def test_no_recomputation_that_was_left_out_is_faster():
    """In a model that is too large to simulate every candidate."""
    model = deep(60)
    search = Search(checked_request(model, BATCH, device="cpu"), (RECOMPUTE,))
    tried = candidates(search.step.calls, search.step.fixed)
    assert len(tried) * len(search.step.ops) > 40_000
    found = [search.figures(Strategy(pieces)) for pieces in tried]
    plain, lowest = search.plain.peak_bytes, min(one.peak_bytes for one in found)
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        limit = round(lowest + share * (plain - lowest))
        best = min(one.extra_time for one in found if one.peak_bytes <= limit)
        plan = km.plan_memory(model, BATCH, limit, choices=[RECOMPUTE])
        assert plan.extra_time <= best + 0.03


def test_a_lower_limit_costs_no_less_time():
    model = deep()
    plain = km.plan_memory(model, BATCH, "1TiB")
    assert (plain.extra_time, plain.micro_batches) == (0, 1)
    assert [piece.way for piece in plain.pieces] == ["kept"]
    assert plain.faster is None
    extra = 0.0
    for share in (0.9, 0.7, 0.5, 0.3):
        limit = round(share * plain.plain_peak_bytes)
        plan = km.plan_memory(model, BATCH, limit)
        assert plan.peak_bytes <= limit
        assert plan.extra_time >= extra
        assert plan.faster.extra_time < plan.extra_time
        if plan.smaller is not None:
            assert plan.smaller.peak_bytes <= 0.9 * plan.peak_bytes
        extra = plan.extra_time


@pytest.mark.one_backend
def test_batch_statistics_are_of_whole_batches_if_anything_else_fits():
    model = deep(normalized=True)
    plain = km.plan_memory(model, BATCH, "1TiB").plain_peak_bytes
    plan = km.plan_memory(model, BATCH, round(0.7 * plain))
    assert plan.micro_batches == 1
    assert plan.changes_activations
    least = km.plan_memory(model, BATCH, round(0.25 * plain))
    assert least.micro_batches > 1


def test_a_limit_below_every_plan_names_the_lowest():
    model = deep()
    with pytest.raises(ConfigError, match=r"Expected: from ([\d.]+ [KM]iB), the low"):
        km.plan_memory(model, BATCH, 1000)
    with pytest.raises(ConfigError, match=r"`choices` of plan_memory .*'8 bits'"):
        km.plan_memory(model, BATCH, "1GiB", choices=["8bits"])
    with pytest.raises(ConfigError, match=r"must be a list .*choices='recompute'"):
        km.plan_memory(model, BATCH, "1GiB", choices=RECOMPUTE)


@pytest.mark.one_backend
def test_offers_are_the_bytes_of_the_optimizer_state():
    model = deep()
    plan = km.plan_memory(model, BATCH, "1TiB")
    offers = {offer.name: offer for offer in plan.offers}
    # Adam has two moments per weight in float32, and SGD has none.
    assert offers["SGD"].saves_bytes == 8 * model.count_params()
    assert offers["SGD"].peak_bytes == plan.peak_bytes - 8 * model.count_params()
    assert "SGD" in str(plan)


def test_a_copy_by_a_plan_trains_to_the_same_weights():
    model = deep()
    limit = round(0.4 * km.plan_memory(model, BATCH, "1TiB").peak_bytes)
    plan = km.plan_memory(model, BATCH, limit, choices=[RECOMPUTE, "micro-batches"])
    assert plan.micro_batches > 1
    plan = MemoryPlan.from_json(plan.to_json())
    lean, plain = plan.apply(model), clone(model)
    assert plan_of(lean) == plan
    settings = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = km.fit(lean, *data(), **settings)
    told = f"in {plan.micro_batches} micro-batches"
    assert any(told in str(one.message) for one in caught)
    expected = plain.fit(*data(), **settings)
    np.testing.assert_allclose(
        found.history["loss"], expected.history["loss"], rtol=1e-5
    )
    for one, other in zip(values(plain), values(lean), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def test_a_plan_of_another_model_is_refused():
    other = plan_of(km.rematerialize(deep(), segments=3))
    for plan in (other, replace(other, path=(99,))):
        with pytest.raises(ModelError, match="The plan is of another model"):
            plan.apply(deep(5))


def test_eight_bits_are_the_bytes_of_the_report():
    model = deep(width=64)
    search = Search(checked_request(model, 64, device="cpu"), [EIGHT_BITS])
    plan = plan_for(search, Strategy(in_8_bits=search.step.all_calls))
    compressed = MemoryPlan.from_json(plan.to_json()).apply(model)
    assert policy_of(compressed).function == "compress_activations"
    stored = activation_report(compressed, data(64, 64)[0]).stored_bytes
    kept = sum(piece.kept_bytes for piece in plan.pieces if piece.way == EIGHT_BITS)
    # The report also counts the output of the model.
    assert kept == stored - 64 * 2 * 4


def nested():
    inner = deep(5, width=64)
    return keras.Sequential([keras.Input((64,)), inner, layers.Dense(2)])


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [layers.Dense(64, activation="tanh") for _ in range(6)]

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return x[:, :2]


@pytest.mark.parametrize("make", [partial(deep, width=64), nested, Own])
@pytest.mark.parametrize(
    ("pieces", "in_8_bits"),
    [
        (((0, 3),), ((3, 5),)),
        (((0, 2), (2, 4)), ((0, 5),)),
        ((), ((1, 4),)),
    ],
)
def test_pieces_and_8_bits_go_together(make, pieces, in_8_bits):
    model, (x, y) = make(), data(64, 64)
    model(x)
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    search = Search(checked_request(model, 64, device="cpu"), CHOICES)
    plan = plan_for(search, Strategy(pieces, in_8_bits))
    lean = MemoryPlan.from_json(plan.to_json()).apply(model)
    if make is not Own:
        real = km.estimate_memory(lean, 64, method="analytic", device="cpu").peak_bytes
        assert real == pytest.approx(plan.peak_bytes, abs=64)
    settings = {"batch_size": 64, "epochs": 3, "shuffle": False, "verbose": 0}
    found, expected = (one.fit(x, y, **settings).history for one in (lean, model))
    assert found["loss"][0] == pytest.approx(expected["loss"][0], rel=1e-5)
    assert found["loss"] == pytest.approx(expected["loss"], rel=0.02)
    assert found["loss"][-1] != expected["loss"][-1]  # of rounded activations


@pytest.mark.one_backend
def test_no_more_activations_than_needed_are_in_8_bits():
    model = deep(16, width=64)
    search = Search(checked_request(model, BATCH, device="cpu"), [EIGHT_BITS])
    limit = search.plain.peak_bytes - 6 * BATCH * 64 * 4
    ((start, end),) = search.fastest(limit).in_8_bits
    assert start == 0 < end < 16
    for fewer in range(1, end - 2):  # in steps of an eighth of the activations
        less = Strategy(in_8_bits=((0, fewer),))
        assert search.figures(less).peak_bytes > limit


@pytest.mark.one_backend
def test_a_refusal_gives_a_lowest_peak_that_was_checked(monkeypatch):
    def checked(method, search, strategy):
        return (1 + 2 * bool(strategy.pieces)) * search.step.simulate(
            strategy
        ).peak_bytes

    monkeypatch.setattr(planner, "_peak_by", checked)
    request = checked_request(deep(16), BATCH, device="cpu")
    limit = round(0.7 * Search(request, []).plain.peak_bytes)
    with pytest.raises(planner.NoPlanError) as caught:
        planner.planned(request, limit, [RECOMPUTE], "traced")
    assert caught.value.lowest_bytes > limit


@pytest.mark.one_backend
def test_heavy_weights_are_planned_in_whole_batches():
    """Sums of gradients of micro-batches would be larger than the activations."""
    model = keras.Sequential([keras.Input((512,))])
    for _ in range(6):
        model.add(layers.Dense(512, activation="tanh"))
        model.add(layers.LayerNormalization())
    model.compile("sgd", "mse")
    search = Search(checked_request(model, 512, device="cpu"), CHOICES)
    lowest = min(
        (Strategy(p) for p in candidates(search.step.calls, search.step.fixed)),
        key=lambda one: search.figures(one).peak_bytes,
    )
    limit = search.figures(lowest).peak_bytes
    plan = km.plan_memory(model, 512, limit)
    assert plan.peak_bytes <= limit


@pytest.mark.one_backend
def test_numbers_of_micro_batches_are_those_that_run():
    model = deep()
    search = Search(checked_request(model, 100, device="cpu"), CHOICES)
    for count in search._counts():
        assert -(-100 // -(-100 // count)) == count


@pytest.mark.one_backend
def test_models_that_cannot_be_split_are_not_planned_in_parts():
    model = keras.Sequential([keras.Input(batch_shape=(64, 20, 4))])
    model.add(layers.LSTM(16, return_sequences=True, stateful=True))
    for _ in range(6):
        model.add(layers.Dense(64, activation="tanh"))
    model.compile("sgd", "mse")
    plain = km.plan_memory(model, 64, "1TiB").plain_peak_bytes
    plan = km.plan_memory(model, 64, round(0.9 * plain))
    assert plan.micro_batches == 1
    assert plan.changes_activations


@pytest.mark.one_backend
def test_a_plan_at_another_batch_size_keeps_the_size_of_its_parts():
    model = deep()
    plan = km.plan_memory(model, BATCH, "1TiB")
    lean = replace(plan, micro_batches=4).apply(model)
    told = "A batch of 2048 .* in 8 micro-batches"
    with pytest.warns(KerasMemWarning, match=told):
        km.fit(lean, *data(2048), batch_size=2048, verbose=0)


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_fit_within_a_limit_recomputes_and_leaves_nothing(
    alone, backend, monkeypatch, tmp_path, jit
):
    if jit and backend != "tensorflow":
        pytest.skip("JAX compiles in any case, and torch does not")
    model = deep(16)
    model.compile("adam", "mse", jit_compile=jit or backend == "jax")
    plain = clone(model)
    x, y = data(4096)
    settings = {"batch_size": 4096, "epochs": 3, "shuffle": False, "verbose": 0}
    whole = km.plan_memory(model, 4096, "1TiB").plain_peak_bytes
    # With micro-batches, recomputation would not be the fastest plan.
    monkeypatch.setattr("kerasmem.memory.fit.plan.CHOICES", (RECOMPUTE, EIGHT_BITS))
    with pytest.warns(KerasMemWarning, match=r"by a memory plan: 'seq.* less"):
        found = km.fit(
            model,
            x,
            y,
            **settings,
            memory_limit=round(0.8 * whole),
            # A trial in a child decides whether a step that XLA compiles must be split.
            on_oom="split" if jit else "raise",
            log_dir=tmp_path,
        )
    assert policy_of(model) is None
    assert plan_of(model) is None
    expected = plain.fit(x, y, **settings)
    np.testing.assert_allclose(
        found.history["loss"], expected.history["loss"], rtol=1e-5
    )
    for one, other in zip(values(plain), values(model), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    (record,) = read_run(tmp_path).plans
    assert record.changes_activations
    page = run_page_html(read_run(tmp_path))
    assert "Memory plan" in page
    assert "recomputed" in page
    model.fit(x, y, **settings)  # by stock Keras, as before


def test_a_fit_recomputes_around_a_layer_that_assigns_its_weight(alone):
    model = keras.Sequential([keras.Input((WIDTH,))])
    for number, layer in enumerate(deep().layers):
        if number in (2, 4, 6):
            model.add(layers.SpectralNormalization(layers.Dense(WIDTH)))
        model.add(layer)
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    plain, (x, y) = clone(model), data(4096)
    settings = {"batch_size": 4096, "epochs": 2, "shuffle": False, "verbose": 0}
    limit = round(0.85 * km.plan_memory(model, 4096, "1TiB").plain_peak_bytes)
    with pytest.warns(KerasMemWarning, match="by a memory plan"):
        found = km.fit(model, x, y, **settings, memory_limit=limit, on_oom="raise")
    expected = plain.fit(x, y, **settings)
    np.testing.assert_allclose(
        found.history["loss"], expected.history["loss"], rtol=1e-4
    )


@pytest.mark.one_backend
@pytest.mark.parametrize("metrics", [None, ["categorical_accuracy"]])
def test_metrics_are_those_of_the_planned_model(metrics):
    """They are not those of a nested model, and a subclassed model has its own."""
    inputs, sgd = keras.Input((6,)), keras.optimizers.SGD()
    for model in (subclassed(), models.mlp()):
        model.compile("sgd", "mse", metrics=metrics, jit_compile=False)
        around = keras.Model(inputs, model(inputs))
        for each, counted in ((model, metrics), (around, None)):
            request = checked_request(each, BATCH, optimizer=sgd, device="cpu")
            names = {op.name for op in Search(request, ()).step.ops}
            assert ("argmax" in names) == bool(counted)


@pytest.mark.one_backend
def test_a_plan_of_micro_batches_only_is_written(alone, tmp_path):
    model = deep()
    whole = km.plan_memory(model, 4096, "1TiB").plain_peak_bytes
    limit = {"memory_limit": round(0.7 * whole), "batch_size": 4096, "verbose": 0}
    with pytest.warns(KerasMemWarning, match="trained in 2 micro-batches"):
        km.fit(model, *data(4096), **limit, log_dir=tmp_path)
    (record,) = read_run(tmp_path).plans
    assert (record.micro_batches, record.changes_activations) == (2, False)
    assert "2 micro-batches" in run_page_html(read_run(tmp_path))
    limit["memory_limit"] = round(0.1 * whole)
    words = r"on_oom='raise' does not.* from [\d.]+ MiB"
    with pytest.raises(ConfigError, match=words):
        km.fit(model, *data(4096), **limit, on_oom="raise")


@pytest.mark.one_backend
@pytest.mark.parametrize("error", [ModelError, RuntimeError])
def test_a_plan_without_an_estimate_is_undone(alone, monkeypatch, error):
    estimates = iter([2])

    def estimated(*_, **__):
        parts = next(estimates, None)
        if parts is None:
            raise error("no estimate of the planned step")
        return parts

    monkeypatch.setattr(training, "micro_batches", estimated)
    monkeypatch.setattr("kerasmem.memory.fit.plan.CHOICES", (RECOMPUTE, EIGHT_BITS))
    model, policies = deep(16), []
    model.compile("adam", "mse", jit_compile=True)  # A failed step is not survived.
    whole = km.plan_memory(model, 4096, "1TiB").plain_peak_bytes
    seen = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: policies.append(policy_of(model))
    )
    limit = {"memory_limit": round(0.8 * whole), "batch_size": 4096, "verbose": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        km.fit(model, *data(4096), **limit, callbacks=[seen])
    assert policies == [None]
    text = " ".join(str(one.message) for one in caught)
    assert "trained in 2 micro-batches" in text
    assert ("No memory plan was found" in text) == (error is RuntimeError)


@pytest.mark.one_backend
def test_a_planned_copy_follows_only_its_plan(alone, monkeypatch):
    device = SimpleNamespace(limit_bytes=2**20, current_bytes=None)
    module = sys.modules["kerasmem.memory.fit.fit"]  # hidden by the function
    monkeypatch.setattr(module, "figures_of", lambda: device)
    model = deep()
    lean = replace(km.plan_memory(model, BATCH, "1TiB"), micro_batches=4).apply(model)
    for on_oom in ("split", "raise"):
        with pytest.warns(KerasMemWarning, match="4 micro-batches, as pl") as caught:
            km.fit(lean, *data(), batch_size=BATCH, on_oom=on_oom, verbose=0)
        assert len(caught) == 1


def test_a_subclassed_model_is_fitted_by_a_plan(alone):
    model = subclassed()
    jit = keras.backend.backend() == "jax"
    model.compile("sgd", "mse", jit_compile=jit)
    plain = clone(model)
    x, y = data(4096, 6)
    settings = {"batch_size": 4096, "epochs": 2, "shuffle": False, "verbose": 0}
    whole = km.plan_memory(model, 4096, "1TiB").plain_peak_bytes
    limit = round(0.85 * whole)
    with pytest.warns(KerasMemWarning, match="by a memory plan"):
        found = km.fit(model, x, y, **settings, memory_limit=limit, on_oom="raise")
    expected = plain.fit(x, y, **settings)
    np.testing.assert_allclose(
        found.history["loss"], expected.history["loss"], rtol=1e-5
    )
    assert policy_of(model) is None


@pytest.mark.one_backend
def test_a_failed_fit_leaves_no_plan_behind(alone):
    class Wrong(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyError("mine")

    model = deep(16)
    whole = km.plan_memory(model, 4096, "1TiB").plain_peak_bytes
    with (
        pytest.warns(KerasMemWarning, match="by a memory plan"),
        pytest.raises(KeyError, match="mine"),
    ):
        km.fit(
            model,
            *data(4096),
            batch_size=4096,
            memory_limit=round(0.8 * whole),
            on_oom="raise",
            callbacks=[Wrong()],
            verbose=0,
        )
    assert policy_of(model) is None


@pytest.mark.one_backend
def test_a_slow_method_checks_the_plan():
    """XLA's plan of the step, in child processes."""
    model = deep(16)
    model.compile("adam", "mse", jit_compile=True)
    how = {"method": "traced", "device": "cpu"}
    whole = km.estimate_memory(model, BATCH, **how).peak_bytes
    limit = round(0.6 * whole)
    plan = km.plan_memory(
        model, BATCH, limit, method="traced", choices=[RECOMPUTE, EIGHT_BITS]
    )
    real = km.estimate_memory(plan.apply(model), BATCH, **how).peak_bytes
    assert real == plan.peak_bytes <= limit
    assert plan.plain_peak_bytes == whole


@pytest.mark.parametrize("make", [models.several, models.encoder])
def test_models_of_other_kinds_have_plans(make):
    model = make()
    jit = keras.backend.backend() == "jax"
    model.compile("adam", "mse", jit_compile=jit)
    plain = km.plan_memory(model, 256, "1TiB")
    request = checked_request(model, 256, device="cpu")
    least = Search(request, [RECOMPUTE, EIGHT_BITS])
    limit = (least.figures(least.lowest()).peak_bytes + plain.peak_bytes) // 2
    plan = km.plan_memory(model, 256, limit, choices=[RECOMPUTE, EIGHT_BITS])
    lean = plan.apply(model)
    real = km.estimate_memory(lean, 256, method="analytic", device="cpu").peak_bytes
    assert real == pytest.approx(plan.peak_bytes, abs=64)
    assert plan.peak_bytes <= limit < plain.peak_bytes
