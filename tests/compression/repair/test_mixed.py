"""A scheme for each layer: within the budget, and where it harms least."""

from itertools import product

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kerasmem as km
from kerasmem.compression.measure import measure
from kerasmem.compression.quantize import Quantize
from kerasmem.compression.quantize.mixed import best_options
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.clone import clone
from kerasmem.graph.values import to_numpy
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
def test_options_fit_and_are_the_best_where_there_is_room(table, share):
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
    # Greedy is not the optimum, but nothing that is left over could be used.
    assert harm[rows, chosen].sum() >= min(fitting) - 1e-9
    left = budget - sizes[rows, chosen].sum()
    better = (harm < harm[rows, chosen][:, None]) & (
        sizes - sizes[rows, chosen][:, None] <= left
    )
    assert not better.any()


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
    return measure(model).weight_bytes


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
    assert found["first"] == found["third"] == "int4"


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
        ConfigError, match="'mixed' takes a budget, such as .* and no other does"
    ):
        Quantize("mixed")
    with pytest.raises(
        ConfigError, match="'mixed' takes a budget, such as .* and no other does"
    ):
        Quantize("int8", budget=km.Budget(10))
    with pytest.raises(ConfigError, match="A size is a number of bytes"):
        Quantize("mixed", budget=km.Budget("many"))
