"""A file that would not give its model back is not written."""

import os
import random
import zipfile

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import OutputError
from kerasmem.files import save
from kerasmem.graph.values import to_numpy
from tests.models import L, chain

X = np.random.default_rng(0).normal(size=(3, 6)).astype("float32")


class Scaled(L.Layer):
    """A layer with a weight, that some of the tests below do wrong."""

    def __init__(self, units=6, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.scale = self.add_weight(shape=(units,), initializer="uniform", name="s")

    def call(self, x):
        return self.scale * x

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class Forgetful(Scaled):
    """Its config lacks an argument that has no default."""

    def __init__(self, units, **kwargs):
        super().__init__(units, **kwargs)

    def get_config(self):
        config = super().get_config()
        return {k: v for k, v in config.items() if k != "units"}


class Narrow(Scaled):
    """Its config tells another number of units."""

    def get_config(self):
        return {**super().get_config(), "units": 5}


class Refusing(Scaled):
    """Nothing is made of its config."""

    @classmethod
    def from_config(cls, config):
        raise RuntimeError("no\nway")


class Hiding(Scaled):
    """Keras finds no layer in it, and leaves what its weights are to chance."""

    def __init__(self, units=6, **kwargs):
        super().__init__(units, **kwargs)
        self._layers.append(Scaled(units))

    def call(self, x):
        return self._layers[0](super().call(x))


class Unlike(Scaled):
    """What it saves is not what it loads."""

    def save_own_variables(self, store):
        store["scale"] = self.scale

    load_own_variables = L.Layer.load_own_variables


class Nowhere(Scaled):
    """Keras cannot save it."""

    def get_config(self):
        raise NotImplementedError("no config")


REASONS = {
    Narrow: r"could not be opened: .*Narrow.call\(\)\. \S+",
    Refusing: "could not be opened: RuntimeError: no",
    Hiding: "weight '.*/s' is opened with another value",
    Unlike: "could not be opened",
}


@pytest.fixture(params=["first", "seen"])
def seen(request, monkeypatch):
    """Whether the process has opened a file with these classes whole before."""
    monkeypatch.setattr(save, "_OPENED", save.WeakSet())
    return request.param == "seen"


def known(model):
    """Count the classes of a model as opened."""
    save._OPENED.update(type(layer) for layer in save.sublayers(model))


@pytest.mark.parametrize("cls", REASONS, ids=lambda cls: cls.__name__)
def test_what_would_not_open_is_one_error_and_no_file(cls, seen, tmp_path):
    path = tmp_path / "m.keras"
    path.write_bytes(b"as it was")
    model = chain((6,), L.Dense(6), cls(6))
    if seen:
        known(model)
    with pytest.raises(OutputError, match=REASONS[cls]) as caught:
        km.save_model(model, path)
    text = str(caught.value)
    assert text.startswith(f"Could not write {str(path)!r}: ")
    assert text.endswith("the existing file is unchanged.")
    assert "\n" not in text
    assert path.read_bytes() == b"as it was"
    assert os.listdir(tmp_path) == ["m.keras"]
    with pytest.raises(OutputError):
        km.save_model(model, tmp_path / "new.keras")
    assert os.listdir(tmp_path) == ["m.keras"]


@pytest.mark.parametrize("cls", [Forgetful, Nowhere], ids=lambda cls: cls.__name__)
def test_a_config_without_an_argument_is_completed(cls, tmp_path):
    model = chain((6,), L.Dense(6), cls(6))
    km.save_model(model, tmp_path / "m.keras")
    objects = {cls.__name__: cls}
    loaded = keras.models.load_model(tmp_path / "m.keras", custom_objects=objects)
    x = np.ones((2, 6), "float32")
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x))


class Ones(keras.initializers.Initializer):
    """An initializer of the user's own."""

    def __call__(self, shape, dtype=None):
        return keras.ops.ones(shape, dtype)

    def get_config(self):
        return {}


def twice(x):
    return 2 * x


def test_classes_and_functions_that_nobody_registered_are_those_of_the_model(
    seen, tmp_path
):
    path = tmp_path / "m.keras"
    dense = L.Dense(6, kernel_initializer=Ones(), activation=twice)
    model = chain((6,), Scaled(6), dense, L.Lambda(lambda x: x + 1))
    if seen:
        known(model)
    km.save_model(model, path)
    assert "Scaled" not in keras.saving.get_custom_objects()
    with pytest.raises(TypeError, match="Could not locate"):
        keras.models.load_model(path, safe_mode=False)
    objects = {"Scaled": Scaled, "Ones": Ones, "twice": twice}
    loaded = keras.models.load_model(path, objects, safe_mode=False)
    np.testing.assert_array_equal(to_numpy(loaded(X)), to_numpy(model(X)))


def test_two_classes_of_one_name_in_two_packages_are_told_apart(tmp_path):
    def registered(package):
        cls = type("Twin", (Scaled,), {"__module__": __name__})
        return keras.saving.register_keras_serializable(package)(cls)

    try:
        model = chain((6,), registered("one")(6), registered("two")(6))
        for _ in range(2):
            km.save_model(model, tmp_path / "m.keras")
        loaded = km.load_model(tmp_path / "m.keras")
        assert [type(layer) for layer in loaded.layers] == [
            type(layer) for layer in model.layers
        ]
    finally:
        for package in ("one", "two"):
            keras.saving.get_custom_objects().pop(f"{package}>Twin")


class Unregistered(Scaled):
    """One more class of the user's own."""


def test_a_class_of_the_users_is_opened_whole_once_and_then_only_its_structure(
    seen, tmp_path, monkeypatch
):
    del seen
    waiting, compare = [], save._compare

    def compared(model, opened, is_same):
        kinds = {type(weight) is keras.Variable for weight in opened.weights}
        waiting.append(kinds == {False})
        return compare(model, opened, is_same)

    monkeypatch.setattr(save, "_compare", compared)
    for layer in (L.Dense(5), Scaled(6), Scaled(6), Unregistered(6)):
        model = chain((6,), layer)
        for coding in ("deflate", "entropy"):
            km.save_model(model, tmp_path / "m.keras", coding=coding)
    assert waiting == [True, True, False, True, True, True, False, True]


def test_nothing_is_left_behind(seen, tmp_path):
    model = chain((6,), L.Dense(6), Scaled(6))
    if seen:
        known(model)
    random.seed(3)
    np.random.seed(3)

    def state():
        objects = dict(keras.saving.get_custom_objects())
        made = keras.Variable._initialize_with_initializer
        numbers = str(np.random.get_state(legacy=False))
        return random.getstate(), numbers, objects, made

    before = state()
    km.save_model(model, tmp_path / "m.keras")
    assert state() == before
    assert type(chain((6,), L.Dense(2)).weights[0]) is keras.Variable


def test_weights_that_no_config_tells_of_are_not_lost_in_silence(seen, tmp_path):
    model = chain((6,), L.Dense(6))
    model.more = L.Dense(3, name="more")
    model.more.build((None, 6))
    if seen:
        known(model)
    with pytest.raises(OutputError, match="lacks 2 weights, such as 'more/kernel'"):
        km.save_model(model, tmp_path / "m.keras")
    assert not list(tmp_path.iterdir())


class Rounded(Scaled):
    """What it saves has fewer digits than what it has, as its author wants it."""

    def save_own_variables(self, store):
        store["half"] = to_numpy(self.scale).astype("float16")

    def load_own_variables(self, store):
        self.scale.assign(store["half"])


def test_a_layer_that_saves_in_a_way_of_its_own_is_believed(seen, tmp_path):
    model = chain((6,), Rounded(6), L.Dense(3))
    if seen:
        known(model)
    km.save_model(model, tmp_path / "m.keras")
    loaded = km.load_model(tmp_path / "m.keras", {"Rounded": Rounded})
    np.testing.assert_allclose(to_numpy(loaded(X)), to_numpy(model(X)), rtol=1e-2)


def test_what_the_optimizer_has_learned_is_saved_as_ever(tmp_path):
    model = chain((6,), L.Dense(6))
    model.compile("adam", "mse", jit_compile=False)
    model.fit(X, X, verbose=0)
    for _ in range(2):
        km.save_model(model, tmp_path / "m.keras", include_optimizer=True)
    assert int(keras.models.load_model(tmp_path / "m.keras").optimizer.iterations) == 1
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        assert archive.testzip() is None
