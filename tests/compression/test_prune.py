"""Pruning a model at once."""

import keras
import numpy as np
import pytest

from kerasmem.compression.prune import Prune
from kerasmem.compression.prune.masks import Masks
from kerasmem.compression.recipe import from_json
from kerasmem.errors import ConfigError, ModelError
from kerasmem.graph.kernels import is_depthwise, is_kernel
from kerasmem.graph.layers import weights
from kerasmem.graph.values import to_numpy
from tests.models import KINDS, L, chain, from_origin, in_place

ALL = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def zeros(variable):
    return int((to_numpy(variable) == 0).sum())


@ALL
def test_every_kernel_loses_its_smallest_entries_and_nothing_else_changes(kind, origin):
    model = from_origin(kind.make(), origin)
    before = {w.path: to_numpy(w.variable) for w in weights(model)}
    in_place(Prune(0.5, include="kernel|embeddings"), model)
    for weight in weights(model):
        old, new = before[weight.path], to_numpy(weight.variable)
        if is_kernel(weight):
            assert zeros(weight.variable) == old.size // 2
            np.testing.assert_array_equal(new[new != 0], old[new != 0])
            assert np.abs(old[new == 0]).max() <= np.abs(new[new != 0]).min()
        else:
            np.testing.assert_array_equal(new, old)


def test_global_pruning_takes_more_where_weights_matter_less():
    model = chain((20,), L.Dense(30), L.Dense(20))
    kernels = [layer.kernel for layer in model.layers[1:]]
    flat = np.full((20, 30), 1.0, "float32")
    peaked = np.where(np.arange(600).reshape(30, 20) % 10 == 0, 10.0, 0.01)
    kernels[0].assign(flat)
    kernels[1].assign(peaked)
    in_place(Prune(0.45, scope="global", include="kernel"), model)
    assert [zeros(kernel) for kernel in kernels] == [0, 540]


def test_gradients_for_pruning_leave_optimizer_and_batch_statistics_alone():
    model = chain((6,), L.Dense(5), L.BatchNormalization(), L.Dense(3))
    optimizer = keras.optimizers.Adam(0.01)
    model.compile(optimizer, "mse")
    before = [to_numpy(v) for v in model.non_trainable_variables]
    random = np.random.default_rng(0)
    samples = random.normal(size=(32, 6)), random.normal(size=(32, 3))
    in_place(Prune(0.5, criterion="taylor"), model, samples)
    assert model.optimizer is optimizer
    for variable, value in zip(model.non_trainable_variables, before, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), value)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_masks_on_one_variable_come_off_in_any_order(order):
    model = chain((4,), L.Dense(1, use_bias=False, kernel_constraint="non_neg"))
    model.compile("adam", "mse")
    kernel = model.layers[1].kernel
    own = kernel.constraint
    kept = np.array(
        [[[True], [True], [False], [True]], [[True], [True]] + [[False]] * 2]
    )
    masks = [Masks(model, [kernel]) for _ in kept]
    for each, mask in zip(masks, kept, strict=True):
        each.write([mask])

    values = np.array([[-1.0], [1.0], [1.0], [1.0]], "float32")
    left = [0, 1]
    for index in order:
        expected = np.where(kept[left].all(axis=0), values.clip(0), 0)
        np.testing.assert_array_equal(to_numpy(kernel.constraint(values)), expected)
        masks[index].release()
        left.remove(index)
    assert kernel.constraint is own


def test_depthwise_output_and_excluded_weights_are_left_alone_and_that_is_said():
    layers = [L.DepthwiseConv2D(3, name="wide"), L.Conv2D(4, 1, name="middle")]

    def make():
        return chain((6, 6, 3), *layers, L.Conv2D(2, 1, name="last"), L.ReLU())

    details = {c.weight: c.detail for c in in_place(Prune(0.5), make())}
    assert details["middle/kernel"] == "50.0% zero"
    assert details["wide/kernel"] == "is depthwise: few weights, each one matters"
    assert details["last/kernel"] == "is in the output layer"
    assert details["last/bias"] == "is not a kernel or embedding table"
    named = in_place(Prune(0.5, include=["wide/k", "last"]), make())
    zero = {"wide/kernel": "48.1% zero", "last/kernel": "50.0% zero"}
    assert {c.weight: c.detail for c in named if c.weight in zero} == zero
    with pytest.raises(ModelError, match="nothing to prune: none of its 6 weights"):
        in_place(Prune(0.5, exclude="middle"), make())


@pytest.mark.one_backend
def test_a_weight_of_which_nothing_goes_is_left_alone_with_a_reason():
    model = chain((6, 6, 1), L.Conv2D(4, 3, name="first"), L.Conv2D(4, 3), L.ReLU())
    pruned = in_place(Prune(0.5, pattern="2:4", include="kernel"), model)
    (first,) = (change for change in pruned if change.weight == "first/kernel")
    assert not first.changed
    assert first.detail == "has too few entries, or entries too large, to remove any"


def test_ram_is_not_claimed_to_shrink():
    model = chain((4,), L.Dense(3))
    (kernel, bias) = in_place(Prune(0.5, include="kernel|embeddings"), model)
    assert (kernel.before_bytes, kernel.after_bytes) == (48, 48)
    assert (bias.changed, bias.detail) == (False, "is not a kernel or embedding table")


@pytest.mark.parametrize("sparsity", [-0.1, 1, 1.5, float("nan"), "0.5", True, None])
def test_a_sparsity_outside_of_0_to_1_is_an_error(sparsity):
    with pytest.raises(
        ConfigError, match="at least 0 and less than 1. Received: spars"
    ):
        Prune(sparsity)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"scope": "globl"}, r"scope='globl'. Did you mean 'global'\?"),
        ({"criterion": "tailor"}, r"criterion='tailor'. Did you mean 'taylor'\?"),
        ({"scope": "model"}, "one of layer, global, .* Received: scope='model'"),
        ({"begin": 0.6, "end": 0.5}, "begin=0.6, end=0.5"),
        ({"end": 1.1}, "0 <= begin <= end <= 1"),
        ({"exclude": ["("]}, r"regular expressions \(.* Received: exclude='\('"),
    ],
)
def test_bad_arguments_are_errors(arguments, text):
    with pytest.raises(ConfigError, match=text):
        Prune(0.5, **arguments)


def test_unknown_techniques_and_arguments_are_errors():
    with pytest.raises(
        ConfigError, match="prune, .*distill. Received: technique='melt'"
    ):
        from_json({"technique": "melt"})
    with pytest.raises(
        ConfigError, match="argument 'sparsty'.*Did you mean 'sparsity'[?] Expected: sp"
    ):
        from_json({"technique": "prune", "sparsty": 0.3})
    with pytest.raises(ConfigError, match="Invalid arguments for 'prune'.*missing"):
        from_json({"technique": "prune"})


def test_half_precision_weights_are_pruned_in_their_own_dtype():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, L.Dense(6, dtype="bfloat16")(inputs))
    in_place(Prune(0.5, include="kernel|embeddings"), model)
    kernel = model.layers[-1].kernel
    assert kernel.dtype == "bfloat16"
    assert (to_numpy(keras.ops.cast(kernel, "float32")) == 0).sum() == 12


@ALL
def test_by_default_all_but_the_output_layer_is_pruned(kind):
    model = kind.make()
    changed = {c.weight for c in in_place(Prune(0.5), model) if c.changed}
    kernels = [w for w in weights(model) if is_kernel(w)]
    left = [w.path for w in kernels if w.path not in changed and not is_depthwise(w)]
    last = {
        "conv1d": 1,
        "conv2d": 1,
        "conv3d": 1,
        "recurrent": 2,
        "nested": 1,
        "subclassed": 1,
    }
    assert len(left) == last.get(next(k for k, v in KINDS.items() if v is kind), 0)
    assert set(left).isdisjoint(changed)
    assert changed
