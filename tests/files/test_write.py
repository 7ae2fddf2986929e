"""What is written of a model, and what that takes."""

import keras
import numpy as np
import pytest

from kerasmem.files import deflating
from kerasmem.files.write import save_stored, write_model
from kerasmem.graph.clone import clone, fresh_optimizer
from kerasmem.graph.values import to_numpy
from tests.models import KINDS, L, chain


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_size_of_keras_own_file_is_found_without_it_in_memory(kind, tmp_path):
    model = KINDS[kind].make()
    with fresh_optimizer(model):
        model.save(tmp_path / "keras.keras")
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
    np.testing.assert_array_equal(deflating.inflated(stream, width, piece.size), piece)
