"""Losses as text, and losses that are not for what a model ends in."""

import warnings

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.graph.outputs import as_loss, warn_if_unfit
from tests.models import L, chain

SPARSE = "sparse_categorical_crossentropy"
LOGITS = f"{SPARSE}(from_logits=True)"


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("text", "kind", "config"),
    [
        (LOGITS, keras.losses.SparseCategoricalCrossentropy, {"from_logits": True}),
        (" Huber( delta = 2.5 )", keras.losses.Huber, {}),
        (
            "BinaryFocalCrossentropy( gamma = 3.0 )",
            keras.losses.BinaryFocalCrossentropy,
            {"gamma": 3.0},
        ),
        ("mse(reduction='sum')", keras.losses.MeanSquaredError, {"reduction": "sum"}),
        ("kl_divergence()", keras.losses.KLDivergence, {}),
    ],
)
def test_text_with_arguments_becomes_a_loss_of_keras(text, kind, config):
    loss = as_loss(text)
    assert type(loss) is kind
    assert loss.get_config().items() >= config.items()
    assert as_loss({"a": "mse", "b": [None, text]})["a"] == "mse"
    assert type(as_loss([text])[0]) is kind


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nothing(from_logits=True)", "keras.losses has no 'nothing'"),
        ("sparse_categorical_crossentrop(x=1)", "Did you mean"),
        ("mse(no=1)", "unexpected keyword argument 'no'"),
        ("mse(reduction='many')", "reduction"),
        ("mse('sum')", "arguments without names"),
        ("mse(**{})", "arguments without names"),
        ("mse(reduction=open('x'))", "malformed node"),
        ("__import__('os').system('true')", "not a name with arguments"),
        ("Loss()", "keras.losses has no 'Loss'"),
        ("mse(", "was never closed"),
        ("mse(a=" + "(" * 400 + ")", "too many nested"),
        ("mse(a=" + "1" * 600 + ")", "607 characters, which is too long"),
    ],
)
def test_what_is_no_loss_is_one_clear_error(text, reason):
    with pytest.raises(ConfigError, match="name of keras.losses with") as error:
        as_loss(text)
    assert reason in str(error.value)


def ending_in(*layers, units=3):
    return chain((4,), L.Dense(units, name="last"), *layers)


def words(model, loss):
    model.compile("sgd", loss)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_if_unfit(model)
    return [str(each.message) for each in seen]


class Own(L.Dense):
    def call(self, x):
        return keras.ops.softmax(super().call(x))


def own_loss(y, predictions):
    return keras.losses.sparse_categorical_crossentropy(y, predictions)


def sequential():
    return keras.Sequential([keras.Input((4,)), L.Dense(3)])


def nested():
    return chain((4,), ending_in(L.Dropout(0.1)), L.Activation("linear"))


def two_outputs():
    inputs = keras.Input((4,))
    first = L.Dense(3, activation="softmax", name="a")(inputs)
    return keras.Model(inputs, {"a": first, "b": L.Dense(1, name="b")(inputs)})


@pytest.mark.parametrize(
    ("make", "loss", "word"),
    [
        (ending_in, SPARSE, "set from_logits=True"),
        (nested, keras.losses.CategoricalCrossentropy(), "or end the model in a soft"),
        (sequential, SPARSE, "set from_logits=True"),
        (ending_in, "binary_crossentropy", "or end the model in a sigmoid"),
        (ending_in, keras.losses.BinaryFocalCrossentropy(), "from_logits=True"),
        (
            lambda: ending_in(L.Activation("sigmoid")),
            SPARSE,
            "end the model in a softm",
        ),
        (two_outputs, {"a": SPARSE, "b": "binary_crossentropy"}, "ends in unbounded"),
    ],
)
def test_a_loss_that_is_not_for_the_last_layer_is_named(make, loss, word):
    (text,) = words(make(), loss)
    assert word in text
    assert "Next: " in text


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (ending_in, as_loss(LOGITS)),
        (ending_in, "mse"),
        (ending_in, "kl_divergence"),
        (ending_in, own_loss),
        (lambda: ending_in(L.Softmax()), SPARSE),
        (lambda: ending_in(L.Activation("softmax", dtype="float32")), SPARSE),
        (lambda: ending_in(L.Activation("sigmoid")), "binary_crossentropy"),
        (lambda: ending_in(L.Rescaling(0.5)), SPARSE),
        (lambda: ending_in(Own(3)), SPARSE),
        (two_outputs, {"a": SPARSE, "b": "mse"}),
        (two_outputs, {"a": SPARSE, "b": None}),
    ],
    ids=[
        "logits",
        "mse",
        "kl_divergence",
        "own_loss",
        "softmax",
        "softmax_activation",
        "sigmoid",
        "rescaling",
        "own_layer",
        "two_outputs",
        "output_without_loss",
    ],
)
def test_of_what_fits_or_is_not_known_nothing_is_said(make, loss):
    assert words(make(), loss) == []


def test_keras_itself_finds_the_logits_before_a_softmax_on_tensorflow():
    found = words(ending_in(L.Softmax()), as_loss(LOGITS))
    if keras.backend.backend() == "tensorflow":
        assert found == []
        found = words(ending_in(L.Softmax(dtype="float16")), as_loss(LOGITS))
    assert "expects logits, so the activation is applied twice" in found[0]


def test_it_is_said_wherever_something_is_trained():
    x, y = np.ones((8, 4), "float32"), np.arange(8) % 3
    model = ending_in(L.Dense(3))
    model.compile("sgd", SPARSE)
    with pytest.warns(KerasMemWarning, match="expects probabilities"):
        km.compress(model, km.Prune(0.5), data=(x, y), fine_tune_epochs=1)
    with pytest.warns(KerasMemWarning, match="expects probabilities"):
        km.distill(model, km.make_student(model, 0.5), (x, y), verbose=0)
    with pytest.warns(KerasMemWarning, match="expects probabilities"):
        km.fit(model, x, y, verbose=0)
    result = km.compress(model, km.Prune(0.5), data=(x, y), loss=LOGITS)
    assert result.model.loss.from_logits
    student = km.distill(model, ending_in(), (x, y), loss=LOGITS, verbose=0)
    assert student.loss.from_logits
