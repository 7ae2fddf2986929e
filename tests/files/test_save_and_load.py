"""Files are whole or not there, and what cannot be read is one clear line."""

import os
import subprocess
import sys
import textwrap
import zipfile

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ConfigError, KerasMemWarning, ModelFileError, OutputError
from kerasmem.files.atomic import new_folder, replacing
from kerasmem.files.load import first_reason
from kerasmem.graph.values import to_numpy
from tests.models import KINDS, L, LazyBlock, chain

X = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")


@pytest.fixture
def model():
    made = chain((6,), L.Dense(50, activation="relu"), L.Dense(2))
    made.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    made.fit(X, X[:, :2], verbose=0)
    return made


def test_stock_keras_opens_a_deflated_file_bit_for_bit_and_without_a_warning(
    model, tmp_path
):
    km.save_model(model, tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        stored = [
            m.filename
            for m in archive.infolist()
            if m.compress_type != zipfile.ZIP_DEFLATED
        ]
    # The date is in it: deflated, the size of the file would change with the second.
    assert stored == ["metadata.json"]
    assert loaded.evaluate(X, X[:, :2], verbose=0) == pytest.approx(
        model.evaluate(X, X[:, :2], verbose=0)
    )


def test_the_optimizer_starts_anew_unless_it_is_asked_for(model, tmp_path):
    km.save_model(model, tmp_path / "new.keras")
    km.save_model(model, tmp_path / "old.keras", include_optimizer=True)
    new = keras.models.load_model(tmp_path / "new.keras").optimizer
    old = keras.models.load_model(tmp_path / "old.keras").optimizer
    assert int(new.iterations) == 0
    assert all((to_numpy(v) == 0).all() for v in new.variables if v.shape != ())
    assert int(old.iterations) == 1
    for a, b in zip(model.optimizer.variables, old.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
    assert int(model.optimizer.iterations) == 1
    assert model.fit(X, X[:, :2], verbose=0).history["loss"][0] > 0


@pytest.mark.one_backend
def test_zeros_cost_next_to_nothing(tmp_path):
    model = chain((200,), L.Dense(500))
    km.save_model(model, tmp_path / "dense.keras")
    km.compress(model, km.Prune(0.95)).save(tmp_path / "pruned.keras")
    dense, pruned = (
        (tmp_path / f"{n}.keras").stat().st_size for n in ("dense", "pruned")
    )
    # 5000 floats are left; log2(C(100000, 5000)) / 8 = 3580 bytes tell which.
    assert 4 * 5000 * 0.8 < pruned < 4 * 5000 + 2 * 3580 + 6000
    assert dense > 300_000


def test_an_h5_file_is_loaded(tmp_path):
    model = chain((6,), L.Dense(2))
    model.save(tmp_path / "m.h5")
    loaded = km.load_model(tmp_path / "m.h5")
    np.testing.assert_allclose(to_numpy(loaded(X)), to_numpy(model(X)), rtol=1e-6)


@pytest.mark.one_backend
def test_custom_layers_come_by_name(tmp_path):
    model = KINDS["custom"].make()
    km.save_model(model, tmp_path / "m.keras")
    unknown = dict(keras.saving.get_custom_objects())
    keras.saving.get_custom_objects().clear()
    try:
        with pytest.raises(
            ModelFileError, match=r"the class 'LazyBlock' is unknown.*--import"
        ):
            km.load_model(tmp_path / "m.keras")
        loaded = km.load_model(tmp_path / "m.keras", {"tests>LazyBlock": LazyBlock})
    finally:
        keras.saving.get_custom_objects().update(unknown)
    np.testing.assert_array_equal(to_numpy(loaded(X)), to_numpy(model(X)))


@pytest.mark.one_backend
def test_a_model_whose_loss_is_unknown_is_loaded_without_it(tmp_path):
    def odd(y_true, y_pred):
        return keras.ops.mean(y_true - y_pred)

    model = chain((6,), L.Dense(2))
    model.compile("sgd", odd)
    model.save(tmp_path / "m.keras")
    with pytest.warns(KerasMemWarning, match="without its loss and metrics: .*'odd'"):
        loaded = km.load_model(tmp_path / "m.keras")
    assert not loaded.compiled


@pytest.mark.one_backend
def test_code_in_a_file_is_never_run(tmp_path):
    model = chain((6,), L.Lambda(lambda x: x + 1))
    model.save(tmp_path / "m.keras")
    with pytest.raises(ModelFileError, match="code in a file is never executed"):
        km.load_model(tmp_path / "m.keras")


def damaged(tmp_path, name):
    path = tmp_path / "m.keras"
    chain((6,), L.Dense(400)).save(path)
    whole = path.read_bytes()
    contents = {
        "half": whole[: len(whole) // 2],
        "empty": b"",
        "text": b"no model at all",
        "other_zip": None,
        "flipped": whole[:2000]
        + bytes(b ^ 255 for b in whole[2000:2600])
        + whole[2600:],
    }
    if name == "other_zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("readme.txt", "a zip of something else")
    else:
        path.write_bytes(contents[name])
    return path


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["half", "empty", "text", "other_zip", "flipped"])
def test_a_damaged_file_is_one_clear_line(name, tmp_path):
    with pytest.raises(ModelFileError, match=r"m\.keras'") as caught:
        km.load_model(damaged(tmp_path, name))
    assert "\n" not in str(caught.value)


@pytest.mark.one_backend
@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_incomplete_weights_are_named(kind, tmp_path):
    path, half = tmp_path / "m.keras", tmp_path / "half.keras"
    chain((6,), L.Dense(400)).save(path)
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(half, "w", kind) as archive:
        for name in whole.namelist():
            content = whole.read(name)
            is_cut = name.endswith(".h5")
            archive.writestr(name, content[: len(content) // 2] if is_cut else content)
    message = f"{str(half)!r} is damaged: its weights are incomplete. Next: save or"
    for attempt in (
        lambda: km.load_model(half),
        lambda: km.compress(half, km.Quantize("int8")),
        lambda: km.compress(
            half, km.Quantize("int8"), output=tmp_path / "o.keras", low_memory=True
        ),
    ):
        with pytest.raises(ModelFileError) as caught:
            attempt()
        assert str(caught.value).startswith(message)


@pytest.mark.one_backend
def test_a_missing_folder_is_the_next_step(tmp_path):
    path = tmp_path / "nodir" / "a.txt"
    with pytest.raises(OutputError) as caught, replacing(path):
        pass
    folder = str(path.parent)
    assert str(caught.value).endswith(
        f"Nothing was written. Next: create the folder {folder!r}."
    )


@pytest.mark.one_backend
def test_a_path_that_is_no_model_file_is_one_clear_line(tmp_path):
    with pytest.raises(ModelFileError, match="There is no file"):
        km.load_model(tmp_path / "missing.keras")
    with pytest.raises(ModelFileError, match="is a folder"):
        km.load_model(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ModelFileError, match=r"ends in .keras or .h5. Received"):
        km.load_model(tmp_path / "a.txt")


@pytest.mark.one_backend
def test_only_keras_files_are_written(model, tmp_path):
    with pytest.raises(ConfigError, match=r"ends in .keras. Received: .*m\.h5"):
        km.save_model(model, tmp_path / "m.h5")


@pytest.mark.one_backend
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_broken_write_leaves_the_old_file_and_nothing_else(error, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.one_backend
def test_content_is_on_the_disk_before_its_name(tmp_path, monkeypatch):
    file, folder, flushed = tmp_path / "a.bin", tmp_path / "preset", []

    def fsync(handle):
        assert not file.exists()
        assert not folder.exists()
        flushed.append(os.fstat(handle).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    with new_folder(folder) as temporary:
        (temporary / "inner").mkdir()
        (temporary / "inner" / "b.bin").write_bytes(bytes(5))
    assert flushed == [5]
    folder.rename(tmp_path / "other")
    with replacing(file) as temporary:
        temporary.write_bytes(bytes(7))
    assert flushed == [5, 7]


def test_permissions_and_links_are_kept(tmp_path):
    path, link = tmp_path / "a.txt", tmp_path / "link.txt"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with replacing(link) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "link.txt"]


@pytest.mark.one_backend
def test_a_long_name_is_written(tmp_path):
    path = tmp_path / ("x" * 249 + ".keras")
    with replacing(path) as temporary:
        temporary.write_text("whole")
    assert path.read_text() == "whole"


@pytest.mark.one_backend
def test_something_that_is_no_model_is_not_saved(tmp_path):
    with pytest.raises(ConfigError, match="must be a keras.Model. Received"):
        km.save_model(L.Dense(3), tmp_path / "m.keras")


@pytest.mark.one_backend
def test_a_folder_that_is_not_there_is_one_clear_line(model, tmp_path):
    with pytest.raises(OutputError, match=r"Could not write .* No such file"):
        km.save_model(model, tmp_path / "no" / "m.keras")


@pytest.mark.one_backend
def test_a_full_disk_is_one_clear_line_and_the_old_file_stays(tmp_path):
    # A limit on the size of files is what an unprivileged test can have of a full disk.
    script = """
        import keras, resource, signal
        import kerasmem as km
        model = keras.Sequential([keras.Input((200,)), keras.layers.Dense(500)])
        km.save_model(model, "small.keras")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            km.save_model(model, "small.keras")
        except km.errors.OutputError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Could not write 'small.keras'" in done.stdout, done.stderr
    assert os.listdir(tmp_path) == ["small.keras"]
    assert km.load_model(tmp_path / "small.keras").count_params() == 100_500


@pytest.mark.one_backend
def test_ctrl_c_while_saving_leaves_the_old_file_and_nothing_else(
    model, tmp_path, monkeypatch
):
    path = tmp_path / "m.keras"
    km.save_model(model, path)
    before = path.read_bytes()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("kerasmem.files.write.shutil.copyfileobj", interrupted)
    trained = model.optimizer
    with pytest.raises(KeyboardInterrupt):
        km.save_model(model, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.keras"]
    assert model.optimizer is trained


@pytest.mark.one_backend
def test_a_reason_is_never_empty():
    cause = "Error when deserializing class 'A'."
    error = TypeError(f"{cause}\n\nException encountered: ")
    assert first_reason(error) == f"TypeError: {cause}"
