"""`kerasmem compress --low-memory`, and commands that read no weight."""

import shutil
import zipfile

import keras
import numpy as np
import pytest

import kerasmem as km


@pytest.mark.one_backend
def test_a_file_is_compressed_from_file_to_file(kerasmem, folder):
    model = folder / "model.keras"
    found = kerasmem(
        f"compress {model} -o low.keras --quantize int8 --low-memory --json"
    ).json
    kerasmem(f"compress {model} -o whole.keras --quantize int8")
    low, whole = (km.load_model(f"{name}.keras") for name in ("low", "whole"))
    x = np.ones((2, 6), "float32")
    np.testing.assert_array_equal(low.predict(x), whole.predict(x))
    assert found["report"]["after"]["latency_ms"] is None
    assert found["report"]["before"]["file_bytes"] == model.stat().st_size
    assert (
        found["report"]["before"]["parameters"] == km.load_model(model).count_params()
    )


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--prune-channels 0.5", "the step 'prune_channels' needs all weights at once"),
        ("--prune 0.5 --fine-tune-epochs 1 --data data.npz", "--fine-tune-epochs"),
    ],
)
def test_what_takes_the_whole_model_is_refused(refused, folder, options, reason):
    line = f"compress {folder}/model.keras -o low.keras --low-memory {options}"
    assert reason in refused(line)


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore::kerasmem.errors.KerasMemWarning")
@pytest.mark.parametrize("scheme", ["int8", "int8-static"])
def test_with_data_it_goes_layer_by_layer(kerasmem, folder, scheme):
    line = f"compress {folder}/model.keras --quantize {scheme} --data data.npz --json"
    low = kerasmem(f"{line} -o low.keras --low-memory")
    assert "with weights on disk" in low.err
    low, whole = low.json["report"], kerasmem(f"{line} -o whole.keras").json["report"]
    for side in ("before", "after"):
        assert low[side]["metrics"] == pytest.approx(whole[side]["metrics"], rel=1e-6)
        assert low[side]["metrics"]
        assert low[side]["parameters"] == whole[side]["parameters"]
    sizes = [(folder / f"{name}.keras").stat().st_size for name in ("low", "whole")]
    assert sizes[0] == sizes[1]


@pytest.mark.one_backend
@pytest.mark.parametrize("line", ["inspect {}", "estimate {} --batch-size 4"])
@pytest.mark.parametrize("coding", ["deflate", "entropy", "stored"])
def test_no_value_of_a_weight_is_looked_at(kerasmem, folder, monkeypatch, line, coding):
    km.save_model(km.load_model(folder / "model.keras"), "m.keras", coding=coding)
    expected = kerasmem(f"{line.format('model.keras')} --json").json

    def looked_at(*_):
        raise AssertionError("a weight got its value")

    monkeypatch.setattr("kerasmem.backends.lazy._settle", looked_at)
    found = kerasmem(f"{line.format('m.keras')} --json").json
    for name in ("layers", "parameters", "weight_bytes", "peak_bytes", "parts"):
        assert found.get(name) == expected.get(name)


@pytest.mark.one_backend
@pytest.mark.parametrize("line", ["inspect {}", "estimate {} --batch-size 4"])
@pytest.mark.parametrize("name", ["model.weights.h5", "w.weights.json"])
def test_weights_beside_their_config_are_a_model(kerasmem, folder, line, name):
    shutil.copy(folder / "model.keras", "one.keras")
    with zipfile.ZipFile("one.keras") as archive:
        archive.extractall()
    km.load_model("one.keras").save_weights("w.weights.json", max_shard_size=1)
    expected = kerasmem(f"{line.format('one.keras')} --json").json
    found = kerasmem(f"{line.format(name)} --json").json
    for key in ("layers", "parameters", "weight_bytes", "peak_bytes", "parts"):
        assert found.get(key) == expected.get(key)
    told = kerasmem(f"compress {name} -o small.keras --quantize int8 --json").json
    kerasmem("compress one.keras -o whole.keras --quantize int8")
    assert told["report"]["after"]["file_bytes"] > 0
    x = np.ones((2, 6), "float32")
    one, other = (
        km.load_model(f"{each}.keras").predict(x) for each in ("small", "whole")
    )
    np.testing.assert_array_equal(one, other)


def test_a_legacy_h5_file_is_compressed(kerasmem, folder):
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64)])
    model.save("legacy.h5")
    call = kerasmem("compress legacy.h5 -o small.keras --quantize int8 --json")
    assert call.code == 0, call.err
    assert call.json["changes"][0]["after_bytes"] == 32 * 64 + 64 * 4
