"""A scheme for each layer: within the budget, and where it harms least."""

import math
from dataclasses import replace
from itertools import product

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kerasmem as km
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.quantize.coding import Coding
from kerasmem.compression.quantize.mixed import best_options
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.clone import clone
from kerasmem.graph.values import nbytes, to_numpy
from tests.compression.repair.test_after import data
from tests.compression.repair.test_fold_batch_norm import outputs
from tests.graph.channels.strategies import randomize
from tests.models import KINDS, L, chain, in_place

tables = st.integers(1, 5).flatmap(
    lambda rows: st.tuples(
        st.lists(
            st.lists(st.integers(1, 50), min_size=3, max_size=3),
            min_size=rows,
            max_size=rows,
        ),
        st.lists(
            st.lists(st.floats(0, 10), min_size=3, max_size=3),
            min_size=rows,
            max_size=rows,
        ),
    )
)


@pytest.mark.one_backend
@given(tables, st.floats(0, 1))
def test_options_fit_and_are_the_best_of_all_that_fit(table, share):
    sizes, harm = np.array(table[0]), np.array(table[1])
    least, most = sizes.min(1).sum(), sizes.max(1).sum()
    budget = least + share * (most - least)
    rows = np.arange(len(sizes))
    chosen = best_options(sizes, harm, budget)
    assert sizes[rows, chosen].sum() <= budget
    whole = best_options(sizes, harm, most)
    assert harm[rows, whole].sum() == pytest.approx(harm.min(1).sum())
    fitting = [
        harm[rows, list(options)].sum()
        for options in product(range(3), repeat=len(rows))
        if sizes[rows, list(options)].sum() <= budget
    ]
    assert harm[rows, chosen].sum() == pytest.approx(min(fitting))


@pytest.mark.one_backend
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_options_of_many_rows_come_near_the_least_that_there_can_be(share):
    rng = np.random.default_rng(3)
    entries = rng.integers(1 << 10, 1 << 24, (300, 1))
    sizes = entries * [3, 4, 8, 16] // 8 + rng.integers(0, 999, (300, 4))
    harm = rng.lognormal(sigma=2, size=(300, 1)) * [1, 0.2, 1e-3, 0]
    least, most = sizes.min(1).sum(), sizes.max(1).sum()
    budget = least + share * (most - least)
    rows = np.arange(300)
    chosen = best_options(sizes, harm, budget)
    assert sizes[rows, chosen].sum() <= budget
    # Whatever the price of a byte: no choice within the budget harms less.
    bound = max(
        (harm + price * sizes).min(1).sum() - price * budget
        for price in np.append(0, np.logspace(-12, 2, 600))
    )
    assert bound * (1 - 1e-6) <= harm[rows, chosen].sum() <= bound * 1.01 + 1e-9


def net():
    model = chain(
        (20,),
        *(L.Dense(40, activation="relu", name="first"), L.Dense(40, name="second")),
        *(L.ReLU(), L.Dense(40, name="third"), L.Dense(3, name="head")),
    )
    randomize(model)
    return model


def schemes(model):
    return {v.path.split("/")[0]: v.coding.dtype for v in quantized_variables(model)}


def weight_bytes(model):
    return sum(map(nbytes, model.weights))


@pytest.mark.parametrize("with_data", [True, False])
def test_the_budget_is_kept_and_more_of_it_means_less_noise(with_data, tmp_path):
    model, x = net(), data((20,), 64)
    exact = outputs(model, x)
    errors = []
    for budget in (3500, 5500, 20000):
        small = clone(model)
        choice = Quantize("mixed", budget=km.Budget(budget))
        changes = in_place(choice, small, x if with_data else None)
        assert weight_bytes(small) <= budget
        assert sum(c.after_bytes for c in changes) == weight_bytes(small)
        told = {c.layer: c.detail.split()[0] for c in changes if c.changed}
        assert told == schemes(small)
        errors.append(np.linalg.norm(outputs(small, x) - exact))
    assert errors == sorted(errors, reverse=True)
    assert set(schemes(small).values()) == {"float16"}
    small.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(outputs(again, x), outputs(small, x))


def test_the_layer_that_harms_most_gets_more_bits():
    model, x = net(), data((20,), 64)
    first, second = model.get_layer("first"), model.get_layer("second")
    # What is large in the second layer is never used: on data alone it shows.
    first.kernel.assign(to_numpy(first.kernel) * (np.arange(40) > 0))
    first.bias.assign(np.where(np.arange(40) > 0, 0.1, -1.0))
    kernel = to_numpy(second.kernel)
    kernel[0] *= 40
    second.kernel.assign(kernel)
    int4 = clone(model)
    in_place(Quantize("int4"), int4)
    budget = weight_bytes(int4) + 40 * 40 // 2
    in_place(Quantize("mixed", budget=km.Budget(budget)), model, x)
    found = schemes(model)
    assert found["second"] == "int8"
    assert {found["first"], found["third"]} <= {"int3", "int4"}


@pytest.mark.one_backend
@pytest.mark.parametrize("rounding", ["gptq", "auto"])
def test_a_budget_for_floats_alone_leaves_nothing_to_round(rounding):
    model, x = net(), data((20,), 64)
    config = Quantize("mixed", budget=km.Budget("1GiB"), rounding=rounding)
    in_place(config, model, x)
    assert {*schemes(model).values()} == {"float16"}


def error(model, other, x):
    """Return half of the squared error of outputs over their variance."""
    return error_of(outputs(other, x), outputs(model, x))


def error_of(found, exact):
    lost = np.square(found - exact.astype(np.float64)).sum(-1).mean()
    return lost / (2 * exact.var(dtype=np.float64))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "groups",
    [{"granularity": "channel"}, {"granularity": "group", "group_size": 8}],
)
def test_no_scheme_for_all_layers_that_fits_does_better(groups, seed):
    model, x = net(), data((20,), 64)
    randomize(model, seed)
    for scheme in ("int3", "int4", "int8"):
        own = {} if scheme == "int8" else groups
        same, mixed = clone(model), clone(model)
        in_place(Quantize(scheme, **own), same)
        budget = km.Budget(weight_bytes(same))
        in_place(Quantize("mixed", budget=budget, **groups), mixed, x)
        assert weight_bytes(mixed) <= budget.bytes
        # In groups the same for all has scales in 16 bits, and is this or better.
        most = 1.05 if "group_size" in own else 1 + 1e-4
        assert error(model, mixed, x) <= most * error(model, same, x)


@pytest.mark.parametrize("rounding", ["nearest", "gptq"])
def test_by_default_it_is_at_least_as_good_as_int4_of_equal_bytes(rounding):
    layers = [L.Dense(128, activation="relu"), L.Dense(96, activation="tanh")]
    model, x = chain((160,), *layers, L.Dense(80), L.Dense(5)), data((160,), 128)
    randomize(model)
    for same in (Quantize("int4"), Quantize("int4", group_size=64, scales="max")):
        int4, mixed = clone(model), clone(model)
        in_place(replace(same, rounding=rounding), int4, x)
        budget = km.Budget(weight_bytes(int4))
        choice = Quantize("mixed", budget=budget, rounding=rounding)
        changes = in_place(choice, mixed, x)
        assert weight_bytes(mixed) <= budget.bytes
        assert error(model, mixed, x) <= error(model, int4, x) * (1 + 1e-4)
        assert any("bfloat16 scales" in change.detail for change in changes)


def test_the_choice_is_near_the_best_of_all_there_are():
    model, x = net(), data((20,), 64)
    layers = [layer for layer in model.layers if layer.weights]
    codings = [Coding(scheme, (0,)) for scheme in ("int3", "int4", "int8", "float16")]
    kernels, biases = zip(*map(L.Layer.get_weights, layers), strict=True)
    fixed = sum(bias.nbytes for bias in biases)
    every = [[c.decoded(c.encode(k), k.shape) for c in codings] for k in kernels]
    sizes = [[c.nbytes(k.shape) for c in codings] for k in kernels]
    exact, found = outputs(model, x), []
    for options in product(range(4), repeat=4):
        one, two, three, four = (k[o] for k, o in zip(every, options, strict=True))
        y = np.maximum(x @ one + biases[0], 0)
        y = np.maximum(y @ two + biases[1], 0)
        y = (y @ three + biases[2]) @ four + biases[3]
        size = fixed + sum(n[o] for n, o in zip(sizes, options, strict=True))
        found.append((size, error_of(y, exact)))
    for budget in (2600, 3000, 4000, 5500):
        best = min(lost for size, lost in found if size <= budget)
        made = clone(model)
        in_place(Quantize("mixed", budget=km.Budget(budget)), made, x)
        assert weight_bytes(made) <= budget
        # What layers do alone adds up, but for what they do to each other.
        assert error(model, made, x) <= 1.2 * best


def test_scales_of_groups_are_kept_in_16_bits(tmp_path):
    model, x = net(), data((20,), 64)
    groups = {"granularity": "group", "group_size": 8}
    small = km.compress(model, km.Quantize("int4", **groups)).model
    scales = sum(math.prod(v.scales.shape) for v in quantized_variables(small))
    budget = weight_bytes(small) - 2 * scales
    result = km.compress(
        model, km.Quantize("mixed", budget=km.Budget(budget), **groups), data=x
    )
    assert weight_bytes(result.model) <= budget
    told = [change.detail for change in result.changes if change.changed]
    assert any("bfloat16 scales" in detail for detail in told)
    assert error(model, result.model, x) < 1.05 * error(model, small, x)
    result.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(outputs(again, x), outputs(result.model, x))


@pytest.mark.parametrize("name", ["attention", "nested", "subclassed"])
def test_every_kind_of_model_is_within_its_budget(name):
    kind = KINDS[name]
    model = kind.make()
    int8 = clone(model)
    in_place(Quantize("int8"), int8)
    budget = weight_bytes(int8)
    in_place(
        Quantize("mixed", budget=km.Budget(budget), bias_correction=True),
        model,
        kind.inputs(),
    )
    assert weight_bytes(model) <= budget
    assert len(quantized_variables(model)) == kind.kernels


def test_it_is_a_step_of_compress_with_what_the_schemes_share():
    choice = km.Quantize(
        "mixed",
        budget=km.Budget("6KiB"),
        granularity="group",
        group_size=16,
        exclude="head",
    )
    result = km.compress(net(), choice, data=data((20,), 16))
    assert set(schemes(result.model)) == {"first", "second", "third"}
    assert result.report.after.weight_bytes <= 6144


@pytest.mark.one_backend
def test_budgets_that_cannot_be_are_errors():
    with pytest.raises(
        ModelError, match=r"take at least .* Received: Budget.max_bytes=1000"
    ):
        in_place(Quantize("mixed", budget=km.Budget(1000)), net())
    with pytest.raises(
        ConfigError, match="'mixed' needs a budget, such as .* budget=None"
    ):
        Quantize("mixed")
    with pytest.raises(
        ConfigError,
        match="supports `budget` only for scheme='mixed'. Received: scheme='int8', bu",
    ):
        Quantize("int8", budget=km.Budget(10))
    with pytest.raises(ConfigError, match="must be a number of bytes"):
        Quantize("mixed", budget=km.Budget("many"))
