"""Banks of experts: every expert is compressed as a kernel of its own would be."""

import warnings

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.quantize.owners import quantized_variables
from kerasmem.graph.values import to_numpy
from tests.compression.test_int8 import outputs, rounded
from tests.models import Experts, L, chain

SHAPES = {"up": (3, 8, 6), "down": (3, 6, 8)}


def mixture():
    """Experts of very different size: a scale that they share would lose the least."""
    model = chain((5, 8), Experts(3, 6, name="mixture"))
    random = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        sizes = np.array([0.01, 1, 100])[:, None, None]
        getattr(model.layers[-1], name).assign(random.normal(size=shape) * sizes)
    return model, random.normal(size=(4, 5, 8)).astype("float32")


def banks(model):
    return {name: to_numpy(getattr(model.layers[-1], name)) for name in SHAPES}


def rounded_in_groups(matrix, size):
    """An independent int4: `size` inputs after each other share a scale."""
    result = np.zeros_like(matrix)
    for start in range(0, len(matrix), size):
        group = matrix[start : start + size]
        scales = np.abs(group).max(0) / np.float32(7)
        result[start : start + size] = np.rint(group / scales) * scales
    return result


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (km.Quantize("int8"), lambda expert: rounded(expert, (0,))),
        (km.Quantize("int8-dynamic"), lambda expert: rounded(expert, (0,))),
        (
            km.Quantize("int4", granularity="group", group_size=2),
            lambda expert: rounded_in_groups(expert, 2),
        ),
    ],
    ids=["int8", "int8-dynamic", "int4"],
)
def test_every_expert_has_scales_of_its_own(step, expected):
    model, x = mixture()
    result = km.compress(model, step)
    found = banks(result.model)
    for name, bank in banks(model).items():
        for expert, exact in zip(found[name], bank, strict=True):
            np.testing.assert_allclose(expert, expected(exact), rtol=1e-5)
    details = {c.weight.rpartition("/")[2]: c.detail for c in result.changes}
    # Of int8-dynamic the products of experts are those of floats: nothing says else.
    assert "int8 inputs" not in details["up"] + details["down"]
    assert ("int8 inputs" in details["kernel"]) == (step.scheme == "int8-dynamic")
    plain = km.dequantize(result.model)
    if step.scheme != "int8-dynamic":  # its router rounds what comes in
        np.testing.assert_allclose(
            outputs(plain, x), outputs(result.model, x), rtol=1e-4
        )


def test_a_bank_is_stored_in_as_many_bytes_as_its_codes_and_scales():
    small = km.compress(mixture()[0], km.Quantize("int8")).model
    stored = {v.name: v for v in quantized_variables(small)}
    assert {name: v.scales.shape for name, v in stored.items() if name != "kernel"} == {
        "up": (3, 1, 6),
        "down": (3, 1, 8),
    }


def test_mixed_bits_and_two_steps_reach_the_experts():
    model, _ = mixture()
    mixed = km.compress(model, km.Quantize("mixed", budget=km.Budget(700))).model
    assert {"up", "down"} <= {v.name for v in quantized_variables(mixed)}
    first = km.compress(model, km.Quantize("int8", exclude=("down",))).model
    second = km.compress(first, km.Quantize("int4")).model
    coded = {v.name: v.coding for v in quantized_variables(second)}
    assert coded["up"].dtype == "int8"
    assert (coded["down"].dtype, coded["down"].axes) == ("int4", (1,))


def test_experts_are_pruned_along_their_inputs_and_clustered():
    model, _ = mixture()
    sparse = banks(km.compress(model, km.Prune(0.5, pattern="2:4")).model)["up"]
    quads = sparse.reshape(3, 2, 4, 6)  # four inputs of one output of one expert
    np.testing.assert_array_equal((quads == 0).sum(axis=2), 2)
    by_size = banks(km.compress(model, km.Prune(0.75)).model)
    assert [(bank == 0).sum() for bank in by_size.values()] == [108, 108]
    few = banks(km.compress(model, km.Cluster(4, granularity="tensor")).model)
    assert all(len(np.unique(bank)) <= 4 for bank in few.values())


@keras.saving.register_keras_serializable("tests")
class Hidden(L.Layer):
    """A bank that `keras.ops` does not see multiplied."""

    def build(self, shape):
        self.bank = self.add_weight((4, shape[-1], shape[-1]), name="bank")
        self.shift = self.add_weight((1, 1, shape[-1]), name="shift")

    def call(self, x):
        summed = keras.ops.sum(x[:, None, :, None] * self.bank[None], axis=2)
        return x + keras.ops.mean(summed, axis=1) + self.shift


def hidden():
    return chain((8,), Hidden(name="hidden"), L.Dense(3))


def test_a_large_share_that_stays_float_is_named():
    with pytest.warns(km.errors.KerasMemWarning) as caught:
        result = km.compress(hidden(), km.Quantize("int8"))
    # 4 * 8 * 8 entries of 4 bytes among 4 * (256 + 8 + 27) bytes.
    ours = [w for w in caught if w.category is km.errors.KerasMemWarning]
    (text,) = [str(w.message) for w in ours]
    assert "88% of the model's bytes stay float: hidden/bank (1.00 KiB). " in text
    detail = {c.weight: c.detail for c in result.changes}
    assert detail["hidden/bank"].startswith("has two or more axes, but is not known")
    assert detail["hidden/shift"] == "is not a kernel or embedding table"


@pytest.mark.parametrize("choice", [{"exclude": ("bank",)}, {"include": ("bank",)}])
def test_what_the_user_chose_is_not_warned_of(choice):
    with warnings.catch_warnings():
        warnings.simplefilter("error", km.errors.KerasMemWarning)
        km.compress(hidden(), km.Quantize("int8", **choice))


def test_biases_and_norms_of_a_tiny_model_are_not_warned_of():
    model = chain((2,), L.Dense(3), L.BatchNormalization(), L.Dense(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", km.errors.KerasMemWarning)
        result = km.compress(model, km.Quantize("int8"))
    left = sum(c.after_bytes for c in result.changes if not c.changed)
    assert left > 0.5 * result.report.before.weight_bytes
