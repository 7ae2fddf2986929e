"""Every weight is found once, in its place; a copy is a copy."""

import keras
import numpy as np
import pytest

from kerasmem.errors import ModelError
from kerasmem.graph.clone import clone
from kerasmem.graph.kernels import is_depthwise, is_kernel, reduced_axes
from kerasmem.graph.layers import blocks, has_graph, weights
from kerasmem.graph.values import to_numpy
from tests.models import KINDS, L, Subclassed, chain

ALL = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


@ALL
def test_every_weight_is_visited_once_and_kept_where_it_is_said_to_be(kind):
    model = kind.make()
    found = list(weights(model))
    assert {id(w.variable) for w in found} == {id(v) for v in model.weights}
    assert len(found) == len(model.weights)
    assert all(getattr(w.owner, w.attribute) is w.variable for w in found)
    assert sum(w.nbytes for w in found) == sum(a.nbytes for a in model.get_weights())
    assert sum(is_kernel(w) for w in found) == kind.kernels


@ALL
def test_a_copy_has_equal_outputs_and_shares_nothing(kind):
    model, inputs = kind.make(), kind.inputs()
    model.compile("adam", "mse", metrics=["mae"])
    copy = clone(model)
    expected = to_numpy(model(inputs))
    np.testing.assert_array_equal(to_numpy(copy(inputs)), expected)
    assert not {id(v) for v in copy.variables} & {id(v) for v in model.variables}
    for variable in copy.weights:
        variable.assign(np.zeros(variable.shape))
    np.testing.assert_array_equal(to_numpy(model(inputs)), expected)
    assert copy.optimizer is not model.optimizer
    assert copy.loss == "mse"


def test_a_path_names_the_models_around_a_layer_once():
    start = keras.Input((4,))
    same = keras.Model(start, L.Dense(2, name="enc")(start), name="enc")
    recurrent = L.Bidirectional(L.LSTM(2), name="both")
    within = keras.Sequential([keras.Input((4, 3)), recurrent], name="enc")
    for model, count in ((chain((4,), same), 2), (chain((4, 3), within), 1)):
        for each in (model, clone(model)):  # wrappers of a copy leave their names out
            paths = [weight.path for weight in weights(each)]
            assert {path.split("/").count("enc") for path in paths} == {count}
            assert all(path.startswith("enc/") for path in paths)


class Remembering(L.Layer):
    """A layer with state that is no weight."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.offset = 0.0

    def call(self, x):
        return x + self.offset

    def save_own_variables(self, store):
        store["offset"] = np.array(self.offset)

    def load_own_variables(self, store):
        self.offset = float(np.array(store["offset"]))


def test_state_that_is_no_weight_is_copied_too():
    normalization = L.Normalization()
    x = np.random.default_rng(0).normal(5, 3, (50, 4)).astype("float32")
    normalization.adapt(x)
    remembering = Remembering()
    model = chain((4,), normalization, remembering, L.Dense(2))
    remembering.offset = 5.0
    copy = clone(model)
    np.testing.assert_array_equal(to_numpy(copy(x)), to_numpy(model(x)))
    assert copy.layers[-2].offset == 5.0


def test_two_classes_of_one_name_are_told():
    def twice(factor):
        class Times(L.Layer):
            def call(self, x):
                return factor * x

        return Times()

    with pytest.raises(
        ModelError, match="two different custom objects with the same name.*'Times'"
    ):
        clone(chain((4,), L.Dense(2), twice(2), twice(3)))


def test_a_lambda_of_the_callers_own_is_copied():
    model = chain((4,), L.Dense(2), L.Lambda(lambda x: 2 * x))
    model.compile("sgd", lambda y_true, y_pred: y_true - y_pred)
    x = np.ones((3, 4), "float32")
    np.testing.assert_array_equal(to_numpy(clone(model)(x)), to_numpy(model(x)))


def test_a_lambda_that_keras_cannot_load_is_one_clear_error():
    model = chain((4,), L.Dense(2, activation=lambda x: 2 * x))
    with pytest.raises(ModelError, match="Received: Could not.* in place of lambdas"):
        clone(model)


def test_an_optimizer_without_a_config_is_one_clear_error():
    class Mine(keras.optimizers.SGD):
        def __init__(self, rate):
            super().__init__(rate)

    model = chain((4,), L.Dense(2))
    model.compile(Mine(0.1), "mse")
    with pytest.raises(
        ModelError, match="optimizer Mine cannot be created from.*get_con"
    ):
        clone(model)


def test_nested_models_are_opened_and_subclassed_ones_are_one_block():
    names = [block.name for block in blocks(KINDS["nested"].make())]
    assert [name.rstrip("_0123456789") for name in names] == [
        *["input_layer", "conv2d", "global_average_pooling2d", "dense"]
    ]
    model = KINDS["subclassed"].make()
    assert blocks(model) == [model]
    assert not has_graph(model)


class Silent(L.Layer):
    """A layer with an argument that Keras does not save."""

    def __init__(self, thing, **options):
        super().__init__(**options)
        self.inner = L.Dense(4)

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x):
        return self.inner(x)


class OwnClass(keras.Model):
    """A model that is made of inputs and outputs."""


def test_a_model_says_nothing_of_others_of_its_class():
    x = keras.Input((4,))
    silent = OwnClass(x, L.Dense(2)(Silent(object())(x)))
    plain = OwnClass(x, L.Dense(2)(L.Dense(3)(x)))
    assert blocks(silent) == [silent]
    assert len(blocks(plain)) == 3


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (L.Dense(4), (7,), {"kernel": (0,)}),
        (L.Conv2D(4, 3), (8, 8, 3), {"kernel": (0, 1, 2)}),
        (L.Conv2DTranspose(4, 3), (8, 8, 3), {"kernel": (0, 1, 3)}),
        (L.DepthwiseConv2D(3, depth_multiplier=2), (8, 8, 3), {"kernel": (0, 1)}),
        (
            L.SeparableConv1D(4, 3),
            (8, 3),
            {"depthwise_kernel": (0,), "pointwise_kernel": (0, 1)},
        ),
        (L.LSTM(4), (5, 3), {"kernel": (0,), "recurrent_kernel": (0,)}),
        (
            L.EinsumDense("abc,cde->abde", output_shape=(None, 2, 3)),
            (5, 7),
            {"kernel": (0,)},
        ),
        (
            L.EinsumDense("...bc,bcd->...d", output_shape=(3,)),
            (4, 5, 7),
            {"kernel": (0, 1)},
        ),
    ],
)
def test_a_scale_belongs_to_what_one_output_channel_sums_over(layer, shape, expected):
    found = [w for w in weights(chain(shape, layer)) if is_kernel(w)]
    assert {w.variable.name: reduced_axes(w) for w in found} == expected
    # The sums are over exactly as many entries as the layer has inputs per output.
    for weight in found:
        assert all(
            0 <= axis < len(weight.variable.shape) for axis in reduced_axes(weight)
        )


def test_depthwise_kernels_are_told_apart():
    model = chain((8, 8, 3), L.SeparableConv2D(4, 3), L.DepthwiseConv2D(3))
    assert {
        w.path.split("/", 1)[1]: is_depthwise(w) for w in weights(model) if is_kernel(w)
    } == {"depthwise_kernel": True, "pointwise_kernel": False, "kernel": True}


def test_a_model_without_weights_cannot_be_copied():
    with pytest.raises(ModelError, match="no weights yet. Build it first"):
        clone(Subclassed())


def test_a_layer_without_a_config_cannot_be_copied():
    class Secret(L.Layer):
        def __init__(self, units, factor):
            super().__init__()
            self.units = units
            self.factor = [factor, object()]

        def call(self, x):
            return x * 2

    inputs = keras.Input((3,))
    model = keras.Model(inputs, Secret(3, object())(inputs))
    with pytest.raises(
        ModelError, match=r"Received: Object Secret .*Next: .*a `get_config`"
    ):
        clone(model)


def test_the_settings_of_compile_are_kept():
    model = chain((4,), L.Dense(2))
    model.compile(
        keras.optimizers.SGD(0.25, momentum=0.5),
        "mae",
        metrics=["mse"],
        jit_compile=False,
    )
    model.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0)
    copy = clone(model)
    assert float(copy.optimizer.learning_rate) == 0.25
    assert copy.optimizer.momentum == 0.5
    assert int(copy.optimizer.iterations) == 0
    assert copy.jit_compile is False
    expected = model.evaluate(np.ones((4, 4)), np.ones((4, 2)), verbose=0)
    assert copy.evaluate(np.ones((4, 4)), np.ones((4, 2)), verbose=0) == expected
