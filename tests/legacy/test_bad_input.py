"""What cannot be converted is one clear line that names the layer and the reason."""

import json
import shutil
import zipfile

import h5py
import numpy as np
import pytest

import kerasmem as km
from kerasmem.errors import ModelFileError

pytestmark = pytest.mark.one_backend


@pytest.fixture
def copy(written, tmp_path):
    """Copy a file, to do something to it."""

    def made(name):
        source, target = written / name, tmp_path / name
        copying = shutil.copytree if source.is_dir() else shutil.copy
        copying(source, target)
        return target

    return made


def change_config(path, change):
    """Change the layers in the config of an `.h5` file."""
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        change(config["config"]["layers"])
        file.attrs["model_config"] = json.dumps(config)


def refused(path, *words):
    with pytest.raises(ModelFileError) as caught:
        km.load_model(path)
    for word in (str(path), *words):
        assert word in str(caught.value)


def test_code_in_a_file_is_never_run(written):
    for name in ("code.h5", "code.keras"):
        refused(written / name, "'lambda' (Lambda)", "code in a file is never run")


def test_a_layer_of_ones_own_is_asked_for(written):
    for name in ("custom.h5", "custom.keras"):
        refused(
            written / name,
            "'scale'",
            "is unknown. Import its module",
            "custom_objects=",
        )


def test_a_file_that_was_cut_off(copy):
    path = copy("dense.h5")
    path.write_bytes(path.read_bytes()[:-3000])
    refused(path)
    path = copy("dense.keras")
    path.write_bytes(path.read_bytes()[:-3000])
    refused(path)


def test_missing_and_superfluous_weights_and_wrong_shapes(copy):
    path = copy("dense.h5")
    with h5py.File(path, "r+") as file:
        file["model_weights/dense"].attrs["weight_names"] = [b"dense/kernel:0"]
    refused(path, "too few", "'dense'", "Expected: 2. Received: 1")
    path = copy("convolutions.h5")
    with h5py.File(path, "r+") as file:
        group = file["model_weights/conv2d"]
        group["more"] = np.ones(3)
        group.attrs["weight_names"] = [b"conv2d/kernel:0", b"more"]
    refused(path, "'more'", "'conv2d'")
    path = copy("lstm.h5")
    with h5py.File(path, "r+") as file:
        group = file["model_weights/embedding/embedding"]
        del group["embeddings:0"]
        group["embeddings:0"] = np.ones((10, 4))
    refused(path, "'embeddings'", "(10, 4)", "Expected: shape (11, 4)")


def test_weights_without_a_model(copy):
    path = copy("dense.h5")
    with h5py.File(path, "r+") as file:
        del file.attrs["model_config"]
    refused(path, "perhaps only weights")


def test_an_array_that_lies_in_another_file(copy, tmp_path):
    path = copy("dense.h5")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["secret"] = np.ones((6, 8))
    with h5py.File(path, "r+") as file:
        group = file["model_weights/dense/dense"]
        del group["kernel:0"]
        group["kernel:0"] = h5py.ExternalLink(tmp_path / "other.h5", "secret")
    refused(path, "stored outside the file")


def test_an_array_of_which_the_file_has_nothing(copy):
    path = copy("dense.h5")
    with h5py.File(path, "r+") as file:
        group = file["model_weights/dense/dense"]
        del group["kernel:0"]
        group.create_dataset("kernel:0", (1 << 40,), chunks=(1 << 20,))
    refused(path, "would take", "the file has 0")


def test_an_archive_whose_metadata_tells_nothing(copy):
    path = copy("dense.keras")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(match="Duplicate"):
        archive.writestr("metadata.json", "[]")
    refused(path, "damaged")


def time_major(layers):
    layers[2]["config"]["time_major"] = True


def unknown_function(layers):
    layers[2]["config"]["function"] = "signal.fft"


def two_axes(layers):
    layers[2]["config"]["axis"] = [1, 3]


def no_inputs(layers):
    layers[1]["inbound_nodes"][0][0][0] = "nowhere"


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("lstm", time_major, ("'lstm' (LSTM)", "time_major=True")),
        ("operators", unknown_function, ("(TFOpLambda)", "tf.signal.fft")),
        ("convolutions", two_axes, ("(BatchNormalization)", "[1, 3]")),
        ("gru", no_inputs, ("(Functional)", "damaged")),
    ],
)
def test_what_keras_3_lacks_is_named(kind, change, words, copy):
    path = copy(f"{kind}.h5")
    change_config(path, change)
    refused(path, *words)


def test_the_folder_of_a_saved_model_that_is_damaged_or_of_another_kind(copy):
    path = copy("dense")
    for file in (path / "variables").iterdir():
        file.write_bytes(file.read_bytes()[:40])
    refused(path, "weights are missing or damaged")
    metadata = path / "keras_metadata.pb"
    metadata.write_bytes(metadata.read_bytes()[:100])
    refused(path, "keras_metadata.pb")
    metadata.unlink()
    refused(path, "TFSMLayer")
    (path / "saved_model.pb").unlink()
    refused(path, "is a folder")
