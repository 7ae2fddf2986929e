"""A pruned model recovers by learning from the one that it was."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.recipe import apply_technique
from kerasmem.errors import ConfigError, ModelError, ModelFileError
from kerasmem.graph.values import to_numpy
from tests.models import Counting, L, chain

RNG = np.random.default_rng(0)
X = RNG.normal(size=(192, 6)).astype("float32")


@pytest.fixture(scope="module")
def teacher():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(24, activation="tanh"),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(3),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def distance(model, teacher):
    return float(np.square(predicted(model) - predicted(teacher)).mean())


def predicted(model):
    return to_numpy(model(X, training=False))


@pytest.mark.parametrize(
    "smaller", [km.Prune(0.7), km.PruneChannels(0.5, round_to=4)], ids=lambda s: s.name
)
def test_a_smaller_model_comes_near_to_what_it_was(teacher, smaller):
    before = predicted(teacher)
    alone = km.compress(teacher, smaller).model
    # No labels: there is nobody but the teacher to learn from.
    taught = km.compress(teacher, [smaller, km.Distill(epochs=6)], data=X, seed=0)
    assert distance(taught.model, teacher) < 0.5 * distance(alone, teacher)
    np.testing.assert_array_equal(predicted(teacher), before)
    assert taught.model.count_params() == alone.count_params()
    for weight, plain in zip(taught.model.weights, alone.weights, strict=True):
        if smaller.name == "prune" and weight.name == "kernel":
            removed = to_numpy(plain) == 0
            assert not to_numpy(weight)[removed].any()
            assert (to_numpy(weight) != to_numpy(plain)).any()


def test_a_teacher_may_be_a_model_or_a_file(teacher, tmp_path):
    teacher.save(tmp_path / "teacher.keras")
    models = [
        km.compress(
            teacher, [km.Prune(0.7), km.Distill(given, epochs=2)], data=X, seed=3
        ).model
        for given in (teacher, str(tmp_path / "teacher.keras"), "original")
    ]
    for other in models[1:]:
        np.testing.assert_allclose(predicted(other), predicted(models[0]), rtol=1e-5)


def test_an_int8_model_can_teach(teacher):
    small = km.compress(teacher, km.Quantize("int8")).model
    student = keras.models.clone_model(teacher)
    taught = km.distill(small, student, X, epochs=6, loss="mse", verbose=0, seed=0)
    assert distance(taught, teacher) < 0.5 * distance(student, teacher)


@pytest.mark.one_backend
def test_of_a_teacher_that_is_a_model_plain_data_has_the_name():
    assert km.Distill(keras.Sequential(name="big")).to_json()["teacher"] == (
        "<model big>"
    )


@pytest.mark.one_backend
def test_a_student_opens_where_there_is_no_kerasmem(teacher, tmp_path, new_interpreter):
    student = km.make_student(teacher, 0.5)
    taught = km.distill(teacher, student, X, verbose=0)
    taught.save(tmp_path / "student.keras")
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", predicted(taught))
    program = """
import sys
sys.modules["kerasmem"] = None  # importing it is an error from here on
import keras, numpy as np
model = keras.models.load_model("student.keras")
y = keras.ops.convert_to_numpy(model(np.load("x.npy"), training=False))
np.testing.assert_allclose(y, np.load("y.npy"), rtol=1e-5, atol=1e-6)
model.fit(np.load("x.npy"), np.load("y.npy"), verbose=0)
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"teacher": 3}, "the path of a saved model"),
        ({"teacher": "<model big>"}, "the path of a saved model"),
        ({"epochs": 0}, "whole number from 1. Received: epochs=0"),
        ({"epochs": 1.5}, "whole number from 1. Received: epochs=1.5"),
        ({"hard_weight": 2}, r"at least 0 and at most 1"),
        ({"losses": "nonsense"}, "`loss` of a config must be one of"),
    ],
)
def test_bad_values_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        km.Distill(**arguments)


@pytest.mark.one_backend
def test_what_cannot_work_is_refused_before_it_begins(teacher):
    with pytest.raises(ConfigError, match="'distill' needs training samples"):
        km.compress(teacher, km.Distill())
    with pytest.raises(ModelFileError):
        km.compress(teacher, [km.Prune(0.5), km.Distill("none.keras")], data=X)
    with pytest.raises(ConfigError, match="put 'distill' before it"):
        km.compress(teacher, [km.Quantize("int8"), km.Distill()], data=X)
    with pytest.raises(ConfigError, match="'distill' needs training samples"):
        apply_technique(km.Distill(), teacher)
    with pytest.raises(ModelError, match="outputs of the same shape"):
        km.compress(
            teacher,
            km.Distill(keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])),
            data=X,
        )


@pytest.mark.parametrize("place", ["teacher", "step", "file"])
def test_counters_and_seeds_of_the_users_model_stay(place, tmp_path):
    inputs = keras.Input((6,))
    model = keras.Model(inputs, L.Dense(3)(Counting()(inputs)))
    model.compile("adam", "mse")
    x, y = np.ones((16, 6), "float32"), np.zeros((16, 3), "float32")
    before = [np.array(to_numpy(v)) for v in model.variables]
    if place == "teacher":
        km.distill(model, chain((6,), L.Dense(3)), x, loss="mse", verbose=0)
    else:
        teacher = tmp_path / "t.keras" if place == "file" else "original"
        chain((6,), L.Dense(3)).save(tmp_path / "t.keras")
        km.compress(model, km.Distill(teacher=teacher), data=(x, y), verbose=0)
    for old, new in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, to_numpy(new))
