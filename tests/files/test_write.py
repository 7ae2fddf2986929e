"""What is written of a model, and what that takes."""

import zlib

import keras
import ml_dtypes
import numpy as np
import pytest

import kerasmem as km
from kerasmem.files import deflating
from kerasmem.files.write import save_stored, write_model
from kerasmem.graph.clone import clone
from kerasmem.graph.saving import fresh_optimizer
from kerasmem.graph.values import to_numpy
from tests.models import KINDS, L, chain


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_size_of_keras_own_file_is_found_without_it_in_memory(kind, tmp_path):
    model = KINDS[kind].make()
    own = getattr(model, "optimizer", None)
    object.__setattr__(model, "optimizer", fresh_optimizer(model))
    model.save(tmp_path / "keras.keras")
    object.__setattr__(model, "optimizer", own)
    save_stored(model, tmp_path / "ours.keras")
    keras_file, ours = (tmp_path / f"{n}.keras" for n in ("keras", "ours"))
    assert ours.stat().st_size == keras_file.stat().st_size
    loaded = keras.models.load_model(ours)
    for one, other in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))
    assert not list(tmp_path.glob("*.h5"))


def test_a_method_of_the_users_own_is_there_as_before(tmp_path):
    model, called = chain((3,), L.Dense(2)), []

    def save_own_variables(store):
        called.append(store)

    model.save_own_variables = save_own_variables
    write_model(model, tmp_path / "a.keras", "deflate")
    assert called
    assert model.save_own_variables is save_own_variables


class OfInner(keras.Model):
    """A model that saves another one."""

    def __init__(self):
        super().__init__()
        self.inner = chain((60,), L.Dense(50), L.Dense(2))

    def call(self, x):
        return self.inner(x)

    def save(self, filepath, **options):
        self.inner.save(filepath, **options)


@pytest.mark.parametrize("coding", ["deflate", "entropy", "stored"])
def test_a_model_saves_what_its_own_save_writes(coding, tmp_path):
    model, x = OfInner(), np.ones((3, 60), "float32")
    model(x)
    km.save_model(model, tmp_path / "a.keras", coding=coding)
    assert [path.name for path in tmp_path.iterdir()] == ["a.keras"]
    loaded = km.load_model(tmp_path / "a.keras")
    assert type(loaded) is type(model.inner)
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))


class Looking(L.Dense):
    """It looks at what it has saved, and saves a number of a type without a name."""

    def save_own_variables(self, store):
        super().save_own_variables(store)
        assert (len(store), [*store.keys()]) == (2, ["0", "1"])
        assert "1" in store
        assert "2" not in store
        store["sum"] = store["0"].sum()
        store["gone"] = np.ones(3)
        del store["gone"]
        store["eight"] = np.arange(700).astype(ml_dtypes.float8_e4m3fn)

    def load_own_variables(self, store):
        self.kernel.assign(store["0"])
        self.bias.assign(store["1"])
        np.testing.assert_allclose(store["sum"], to_numpy(self.kernel).sum(), rtol=1e-5)
        eight = store["eight"].view(ml_dtypes.float8_e4m3fn).astype("float32")
        expected = np.arange(700).astype(ml_dtypes.float8_e4m3fn).astype("float32")
        np.testing.assert_array_equal(eight, expected)
        assert sorted(store.keys()) == ["0", "1", "eight", "sum"]


@pytest.mark.parametrize("coding", ["deflate", "entropy", "stored"])
def test_a_layer_may_look_at_what_it_has_saved(coding, tmp_path):
    model = chain((60,), Looking(50), L.Dense(2))
    km.save_model(model, tmp_path / "a.keras", coding=coding)
    loaded = km.load_model(tmp_path / "a.keras", {"Looking": Looking})
    x = np.ones((2, 60), "float32")
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))


class Passing(L.Dense):
    """It saves another kernel than it has, for a moment."""

    def save_own_variables(self, store):
        kernel = to_numpy(self.kernel)
        self.kernel.assign(-kernel)
        super().save_own_variables(store)
        self.kernel.assign(kernel)


def test_what_a_layer_has_for_a_moment_is_saved(tmp_path):
    model = chain((900,), Passing(900))
    write_model(model, tmp_path / "a.keras", "deflate")
    loaded = km.load_model(tmp_path / "a.keras", {"Passing": Passing})
    expected = -to_numpy(model.layers[-1].kernel)
    np.testing.assert_array_equal(to_numpy(loaded.layers[-1].kernel), expected)


@pytest.mark.parametrize("coding", ["deflate", "entropy", "stored"])
def test_slots_of_a_new_optimizer_are_zeros(coding, tmp_path):
    model = chain((30,), L.Dense(40), L.Dense(2))
    model.compile("adam", "mse")
    model.fit(np.ones((4, 30)), np.ones((4, 2)), verbose=0)
    trained = [to_numpy(v) for v in model.optimizer.variables]
    write_model(model, tmp_path / "a.keras", coding)
    for variable, value in zip(model.optimizer.variables, trained, strict=True):
        np.testing.assert_array_equal(to_numpy(variable), value)
    loaded = keras.models.load_model(tmp_path / "a.keras")
    assert len(loaded.optimizer.variables) == len(trained)
    for variable in loaded.optimizer.variables:
        if len(variable.shape):
            assert not to_numpy(variable).any()
    assert int(loaded.optimizer.iterations) == 0


def test_a_copy_draws_no_first_values(monkeypatch):
    model = chain((6, 6, 2), L.Conv2D(3, 2), L.Flatten(), L.Dense(4))
    cls = keras.initializers.GlorotUniform
    monkeypatch.setattr(cls, "__call__", lambda *_, **__: pytest.fail("drawn"))
    copy = clone(model)
    assert {type(v) for v in copy.variables} == {keras.Variable}
    copy.layers[-1].kernel.assign(0 * to_numpy(copy.layers[-1].kernel))
    assert to_numpy(model.layers[-1].kernel).any()


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("kind", "width", "most"),
    [("normal", 4, 0.84), ("normal", 2, 0.85), ("codes", 1, 0.29), ("rows", 4, 0.05)],
)
def test_each_plane_is_written_in_the_way_that_suits_it(kind, width, most):
    random = np.random.default_rng(0)
    values = random.normal(size=1 << 18).astype("float32" if width != 2 else "float16")
    if kind == "codes":
        kept = np.abs(values) > np.quantile(np.abs(values), 0.8)
        values = np.where(kept, np.clip(np.round(values * 31), -127, 127), 0)
        values = values.astype("int8")
    if kind == "rows":
        values = np.tile(values[: 1 << 12], 64)
    piece = values.view(np.uint8)
    stream = deflating.deflated(piece, width)
    assert stream is not None
    assert len(stream) < most * piece.size
    planes = np.frombuffer(zlib.decompress(stream), np.uint8).reshape(width, -1)
    np.testing.assert_array_equal(planes.T.reshape(-1), piece)
