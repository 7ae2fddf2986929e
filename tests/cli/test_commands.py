"""Each command does its job, and `--json` is its result and nothing else."""

import runpy
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from kerasmem.demo.run import DemoRecord
from kerasmem.files import load_model
from kerasmem.records import ModelFigures

TERSE = "--loss sparse_categorical_crossentropy --metric accuracy"


def accuracy(path, x, y):
    model = keras.models.load_model(path, compile=False)
    return np.mean(keras.ops.convert_to_numpy(model(x)).argmax(axis=1) == y)


def test_inspect_says_where_the_bytes_are(folder, kerasmem):
    found = kerasmem("inspect model.keras --batch-size 4 --json").json
    hidden = 6 * 32 + 32
    assert found["parameters"] == hidden + 32 * 3 + 3
    assert found["weight_bytes"] == 4 * found["parameters"]
    assert found["file_bytes"] == Path("model.keras").stat().st_size
    assert found["activation_peak_bytes"] == 4 * 4 * (6 + 32)
    layer = next(layer for layer in found["layers"] if layer["name"] == "hidden")
    assert (layer["parameters"], layer["output_shape"]) == (hidden, [4, 32])


@pytest.mark.one_backend
def test_inspect_shows_a_line_per_layer(folder, kerasmem):
    call = kerasmem("inspect model.keras")
    assert call.code == 0
    for text in ("hidden", "Dense", "1 x 32", "activation peak of a batch of 1"):
        assert text in call.out


def test_evaluate_measures_on_the_test_split(folder, kerasmem, samples):
    found = kerasmem("evaluate model.keras --data split.npz --json").json
    x, y = samples
    assert (found["split"], found["samples"]) == ("test", 10)
    expected = accuracy("model.keras", x[:10], y[:10])
    assert found["figures"]["metrics"]["accuracy"] == pytest.approx(expected)
    assert found["figures"]["file_bytes"] == Path("model.keras").stat().st_size


@keras.saving.register_keras_serializable("test_commands")
class Reconstructing(keras.Sequential):
    """Judges itself without labels."""

    def test_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        return {"error": keras.ops.mean(keras.ops.abs(self(x) - x))}


@pytest.mark.one_backend
def test_evaluate_takes_samples_alone_for_a_test_step_without_labels(
    tmp_path, monkeypatch, kerasmem
):
    monkeypatch.chdir(tmp_path)
    model = Reconstructing([keras.Input((4,)), keras.layers.Dense(4)])
    model.compile("adam", "mse")
    model.save("own.keras")
    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    np.savez("x.npz", x=x)
    found = kerasmem("evaluate own.keras --data x.npz --json").json
    expected = np.abs(keras.ops.convert_to_numpy(model(x)) - x).mean()
    metrics = found["figures"]["metrics"]
    assert metrics["error"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.one_backend
def test_evaluate_takes_a_loss_for_a_model_saved_without_one(
    folder, kerasmem, new_network
):
    new_network(compiled=False).save("bare.keras")
    found = kerasmem(f"evaluate bare.keras --data data.npz {TERSE} --json").json
    assert set(found["figures"]["metrics"]) == {"loss", "accuracy"}
    assert (found["split"], found["samples"]) == ("all", 60)


def test_compress_writes_a_smaller_model_that_does_as_it_says(
    folder, kerasmem, samples
):
    call = kerasmem(
        "compress model.keras -o small.keras --prune 0.5 --prune-include kernel "
        "--quantize int8 --data split.npz --report page.html --json"
    )
    report = call.json["report"]
    x, y = samples
    assert report["before"]["metrics"]["accuracy"] == pytest.approx(
        accuracy("model.keras", x[:10], y[:10])
    )
    assert report["after"]["metrics"]["accuracy"] == pytest.approx(
        accuracy("small.keras", x[:10], y[:10])
    )
    assert Path("small.keras").stat().st_size == report["after"]["file_bytes"]
    assert call.json["file_ratio"] > 1
    kernels = [c for c in call.json["changes"] if c["weight"].endswith("kernel")]
    assert {(c["technique"], c["changed"]) for c in kernels} == {
        ("prune", True),
        ("quantize", True),
    }
    assert "kerasmem compress model.keras" in Path("page.html").read_text()


def test_compress_removes_channels_and_stock_keras_opens_the_file(folder, kerasmem):
    report = kerasmem(
        "compress model.keras -o small.keras --prune-channels 0.5 --json"
    ).json["report"]
    small = keras.models.load_model("small.keras")
    assert small.count_params() == report["after"]["parameters"]
    assert report["after"]["parameters"] < 0.6 * report["before"]["parameters"]
    assert small.output_shape == load_model("model.keras").output_shape


@pytest.mark.one_backend
def test_compress_removes_channels_as_it_was_told(folder, kerasmem):
    line = (
        "compress model.keras -o small.keras --prune-channels 0.5 --data data.npz "
        "--prune-channels-of parameters --prune-channels-criterion taylor "
        "--prune-channels-scope isomorphic --prune-channels-rounds 2 --json"
    )
    report = kerasmem(line).json["report"]
    assert report["after"]["parameters"] <= 0.5 * report["before"]["parameters"]
    (step,) = report["steps"]
    told = {"of": "parameters", "criterion": "taylor", "scope": "isomorphic"}
    assert step.items() >= (told | {"rounds": 2}).items()
    call = kerasmem("compress model.keras -o b.keras --prune-channels-rounds 2")
    assert call.code == 2
    assert "Next: add --prune-channels." in call.err


@pytest.mark.one_backend
def test_compress_follows_a_recipe(folder, kerasmem):
    Path("r.yaml").write_text(
        "- {technique: prune, sparsity: 0.5}\n"
        "- {technique: distill, epochs: 1}\n"
        "- {technique: cluster, n: 8}\n"
    )
    call = kerasmem(
        "compress model.keras -o small.keras --recipe r.yaml --data data.npz --json"
    )
    assert [step["technique"] for step in call.json["report"]["steps"]] == [
        "prune",
        "distill",
        "cluster",
    ]
    kernel = keras.models.load_model("small.keras").get_layer("hidden").get_weights()[0]
    assert len(np.unique(kernel)) <= 8
    assert (kernel == 0).mean() >= 0.5


@pytest.mark.one_backend
def test_compress_takes_ranges_from_samples_without_labels(folder, kerasmem, samples):
    np.savez("unlabeled.npz", x=samples[0])
    line = "compress model.keras -o small.keras --quantize int8-static --data"
    call = kerasmem(f"{line} unlabeled.npz --json")
    assert call.json["report"]["after"]["metrics"] == {}
    assert "no labels: no metric is measured" in call.err
    for option in ("--max-drop 0.1", "--metric accuracy", "--measure metrics"):
        assert kerasmem(f"{line} unlabeled.npz {option}").code == 2
    x, y = samples
    np.savez("judged.npz", x_train=x, x_test=x, y_test=y)
    call = kerasmem(f"{line} judged.npz --json")
    assert set(call.json["report"]["after"]["metrics"]) >= {"accuracy"}


@pytest.mark.one_backend
def test_compress_measures_in_batches_of_the_size_it_was_told(folder, kerasmem):
    line = (
        "compress model.keras -o small.keras --prune 0.5 --data data.npz --json "
        "--measure latency"
    )
    sizes = {
        kerasmem(f"{line} {option}").json["report"]["after"]["latency_batch_size"]
        for option in ("", "--batch-size 7")
    }
    assert sizes == {32, 7}


@pytest.mark.one_backend
def test_compress_fine_tunes_in_batches_of_the_size_it_was_told(
    folder, kerasmem, monkeypatch
):
    sizes = []
    fit = keras.Model.fit
    monkeypatch.setattr(
        keras.Model,
        "fit",
        lambda self, **given: sizes.append(given["batch_size"]) or fit(self, **given),
    )
    kerasmem(
        "compress model.keras -o small.keras --prune 0.5 --data split.npz "
        "--fine-tune-epochs 1 --batch-size 25"
    )
    assert sizes == [25]


@pytest.mark.one_backend
def test_compress_sets_the_share_of_weights_to_zero_that_it_was_told(folder, kerasmem):
    found = kerasmem("compress model.keras -o small.keras --prune 0.75 --json").json
    assert found["report"]["after"]["metrics"] == {}
    model = keras.models.load_model("small.keras")
    kernel = keras.ops.convert_to_numpy(model.get_layer("hidden").kernel)
    assert np.mean(kernel == 0) == 0.75


@pytest.mark.one_backend
def test_what_is_far_worse_is_the_first_line_everywhere(
    folder, kerasmem, samples, new_network
):
    model = new_network()
    model.optimizer.learning_rate = 0.05
    model.fit(*samples, epochs=20, verbose=0)
    model.save("model.keras")
    line = "compress model.keras -o small.keras --prune 0.999 --prune-include kernel "
    line += "--data data.npz"
    call = kerasmem(f"{line} --report page.html")
    warning = call.out.splitlines()[0]
    assert warning.startswith("far worse: accuracy ")
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.index(warning) < page.index("<h1>")
    assert kerasmem(f"{line} --json").json["warning"] == warning
    new_network().save("student.keras")
    line = "distill model.keras student.keras -o small.keras --data data.npz"
    assert kerasmem(line).out.startswith("far worse: ")
    assert kerasmem(f"{line} --json").json["warning"].startswith("far worse: ")


@pytest.mark.one_backend
def test_a_loss_may_have_arguments(folder, kerasmem):
    inputs = keras.Input((6,))
    keras.Model(inputs, keras.layers.Dense(3)(inputs)).save("bare.keras")
    data = "--data data.npz --metric accuracy"
    loss = f"{data} --loss sparse_categorical_crossentropy"
    line = "compress bare.keras -o small.keras --prune 0.1 --prune-include kernel "
    line += "--fine-tune-epochs 1"
    call = kerasmem(f"{line} {loss}")
    assert call.err.count("kerasmem: warning: The output") == 1
    assert "--loss 'NAME(from_logits=True)'" in call.err
    call = kerasmem(f"{line} {loss}(from_logits=True)")
    assert "kerasmem: warning" not in call.err
    assert keras.models.load_model("small.keras").loss.from_logits
    found = kerasmem(f"evaluate small.keras {loss}(from_logits=True) --json").json
    assert found["figures"]["metrics"]["loss"] > 0


@pytest.mark.one_backend
@pytest.mark.parametrize("step", ["--prune 0.5 --max-drop 1", "--quantize int8"])
def test_a_loss_alone_keeps_the_metrics_of_the_model(folder, kerasmem, step):
    loss = "--loss sparse_categorical_crossentropy(from_logits=False)"
    line = f"compress model.keras -o small.keras --data data.npz {loss} {step}"
    report = kerasmem(f"{line} --json").json["report"]
    for model in ("before", "after"):
        assert set(report[model]["metrics"]) == {"accuracy", "loss"}
    (metrics,) = kerasmem(f"{line} --metric sparse_categorical_accuracy --json").json[
        "report"
    ]["after"]["metrics"].keys() - {"loss"}
    assert metrics == "sparse_categorical_accuracy"


@pytest.mark.one_backend
def test_compress_may_replace_an_output_of_before(folder, kerasmem):
    Path("old.keras").write_bytes(before := Path("model.keras").read_bytes())
    assert kerasmem("compress model.keras -o old.keras --quantize int8").code == 0
    assert Path("old.keras").stat().st_size < len(before)
    assert Path("model.keras").read_bytes() == before
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []


@pytest.mark.one_backend
def test_the_file_before_is_the_one_that_was_handed_in(folder, kerasmem, new_network):
    model, data = load_model("model.keras"), np.load("data.npz")
    model.fit(data["x"], data["y"], verbose=0)
    model.save("trained.keras")
    size = Path("trained.keras").stat().st_size
    line = "trained.keras -o small.keras --prune 0.5 --coding entropy"
    assert kerasmem(f"compress {line} --json").json["report"]["before"][
        "file_bytes"
    ] == (size)
    small = Path("small.keras").stat().st_size
    call = kerasmem("compress small.keras -o large.keras --prune 0.5 --coding stored")
    large = Path("large.keras").stat().st_size
    assert call.out.startswith(
        f"large.keras is larger than small.keras: {large:,} bytes instead of {small:,}."
    )
    told = " ".join(call.out.split())
    assert "no optimizer state." in told.partition("Input file: ")[2]
    new_network(units=4).save("student.keras")
    taught = "student.keras -o taught.keras --data split.npz --json"
    figures = kerasmem(f"distill trained.keras {taught}").json["figures"]
    assert figures["teacher"]["file_bytes"] == size
    assert figures["student"]["file_bytes"] == Path("taught.keras").stat().st_size


@pytest.mark.one_backend
def test_evaluate_says_that_the_data_is_not_finite(folder, kerasmem, samples):
    x, y = samples
    np.savez("nan.npz", x=np.where(np.arange(6) == 2, np.nan, x), y=y)
    call = kerasmem("evaluate model.keras --data nan.npz")
    assert call.code == 0
    assert "warning: The data contains NaN or infinity: 60 of 360 entries of x.\n" in (
        call.err
    )


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("distill", "small probabilities (default: 4.0)."),
        ("distill", "training epochs (default: 1)."),
        ("evaluate", "samples per batch (default: 32)."),
        ("compress", "(default: a new seed for each run)."),
    ],
)
def test_help_says_what_holds_without_an_option(kerasmem, command, default):
    assert default in " ".join(kerasmem(f"{command} --help").out.split())


@pytest.mark.one_backend
def test_fine_tuning_shows_its_epochs_and_holds_samples_out(folder, kerasmem):
    call = kerasmem(
        "compress model.keras -o small.keras --prune 0.5 --data data.npz "
        "--fine-tune-epochs 2 --seed 1 --json"
    )
    assert "the last tenth is used for validation" in call.err
    assert call.err.count(" - accuracy: ") == 2
    assert "Epoch 2/2" in call.err
    assert call.json["report"]["samples"] == 6


def test_distill_writes_the_student(folder, kerasmem, samples, new_network):
    new_network(units=4, compiled=False).save("student.keras")
    call = kerasmem(
        f"distill model.keras student.keras -o taught.keras --data split.npz {TERSE} "
        "--epochs 1 --json"
    )
    x, y = samples
    measured = call.json["figures"]["student"]["metrics"]["accuracy"]
    assert measured == pytest.approx(accuracy("taught.keras", x[:10], y[:10]))
    assert "distilling\n" in call.err
    assert "student_loss: " in call.err


@pytest.mark.one_backend
def test_distill_makes_the_student_of_the_teacher_and_keeps_what_that_says(
    folder, kerasmem, samples
):
    call = kerasmem(
        "distill model.keras --student-ratio 0.5 -o small.keras --data split.npz "
        f"{TERSE} --epochs 1 --cache kept --json"
    )
    figures = call.json["figures"]
    share = figures["student"]["parameters"] / figures["teacher"]["parameters"]
    assert 0.3 < share <= 0.5
    assert (folder / "kept" / "cache.json").exists()


@pytest.mark.one_backend
@pytest.mark.parametrize("student", ["", "model.keras --student-ratio 0.5"])
def test_distill_takes_one_student(folder, kerasmem, student):
    call = kerasmem(f"distill model.keras {student} -o a.keras --data split.npz")
    assert call.code == 2
    assert "either a student file or --student-ratio" in call.err


OWN_LAYER = """
import keras

@keras.saving.register_keras_serializable("mine")
class Twice(keras.layers.Layer):
    def call(self, x):
        return 2 * x

print("loaded on stdout")
"""


@pytest.fixture
def file_with_own_layer(folder, monkeypatch):
    """A file whose layer is known to nobody until my_layers.py is imported."""
    known = keras.saving.get_custom_objects()
    Path("my_layers.py").write_text(OWN_LAYER)
    twice = runpy.run_path("my_layers.py")["Twice"]
    keras.Sequential([keras.Input((2,)), twice(name="twice")]).save("own.keras")
    known.pop("mine>Twice")
    yield "own.keras"
    known.pop("mine>Twice", None)
    sys.modules.pop("my_layers", None)


@pytest.mark.one_backend
def test_a_custom_layer_is_known_after_an_import(file_with_own_layer, kerasmem):
    path = list(sys.path)
    unknown = kerasmem(f"inspect {file_with_own_layer}")
    assert unknown.code == 2
    assert "Next: import the module that defines it with --import" in unknown.err
    call = kerasmem(f"inspect {file_with_own_layer} --import my_layers --json")
    assert call.json["layers"][-1]["class_name"] == "Twice"
    assert "loaded on stdout" in call.err
    assert sys.path == path


@pytest.mark.one_backend
def test_a_layer_that_nobody_registered_is_known_after_an_import(folder, kerasmem):
    Path("plain_layers.py").write_text(
        OWN_LAYER.replace('@keras.saving.register_keras_serializable("mine")', "")
    )
    thrice = runpy.run_path("plain_layers.py")["Twice"]
    dense = keras.layers.Dense(3)
    keras.Sequential([keras.Input((2,)), dense, thrice()]).save("plain.keras")
    try:
        call = kerasmem(
            "compress plain.keras -o out.keras --quantize int8 --import plain_layers "
            "--json"
        )
        assert call.json["report"]["after"]["parameters"] == 9
        assert kerasmem("inspect out.keras").code == 2
    finally:
        sys.modules.pop("plain_layers", None)


@pytest.mark.one_backend
def test_distill_holds_samples_out_where_there_is_no_test_split(
    folder, kerasmem, samples, new_network
):
    new_network(units=4, compiled=False).save("student.keras")
    x, y = samples
    np.savez("only.npz", x=x, y=y)
    call = kerasmem(
        f"distill model.keras student.keras -o taught.keras --data only.npz {TERSE} "
        "--epochs 1 --json"
    )
    assert "the last tenth is used for validation" in call.err
    measured = call.json["figures"]["student"]["metrics"]["accuracy"]
    assert measured == pytest.approx(accuracy("taught.keras", x[54:], y[54:]))


@pytest.mark.one_backend
def test_several_inputs_come_by_name(folder, kerasmem):
    a, b = keras.Input((2,), name="a"), keras.Input((3,), name="b")
    output = keras.layers.Dense(2)(keras.layers.Concatenate()([a, b]))
    model = keras.Model({"a": a, "b": b}, output)
    model.compile("sgd", "mse", jit_compile=False)
    model.save("two.keras")
    np.savez("two.npz", x_a=np.ones((9, 2)), x_b=np.ones((9, 3)), y=np.zeros((9, 2)))
    found = kerasmem("evaluate two.keras --data two.npz --json").json
    inputs = {"a": np.ones((1, 2)), "b": np.ones((1, 3))}
    expected = np.mean(np.square(keras.ops.convert_to_numpy(model(inputs))))
    assert found["figures"]["metrics"]["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.one_backend
def test_demo_shows_the_models_side_by_side_and_where_the_files_are(
    folder, kerasmem, monkeypatch
):
    asked = []

    def run_demo(out, *, console):
        asked.append(str(out))
        models = {
            "original": ModelFigures(2048, 1024, 256, 256),
            "student": ModelFigures(512, 256, 64, 64),
        }
        return DemoRecord(models, ("here/original.keras",), {"training": 1.5}, 2000)

    monkeypatch.setattr("kerasmem.demo.run.run_demo", run_demo)
    shown = kerasmem("demo")
    assert "4.00x" in shown.out
    assert "here/original.keras" in shown.out
    found = kerasmem("demo --out here --json").json
    assert found["models"]["student"]["file_bytes"] == 512
    assert asked == ["kerasmem-demo", "here"]


@pytest.mark.one_backend
def test_a_metric_that_is_no_number_is_null_in_json(folder, kerasmem, new_network):
    model = new_network()
    model.set_weights([np.full_like(w, np.nan) for w in model.get_weights()])
    model.save("broken.keras")
    found = kerasmem("evaluate broken.keras --data data.npz --json").json
    assert found["figures"]["metrics"]["loss"] is None


@pytest.mark.one_backend
def test_help_lists_what_there_is(kerasmem):
    assert kerasmem("--version").out.split()[0] == "kerasmem"
    commands = ("demo", "inspect", "estimate", "compress", "distill", "evaluate")
    commands += ("run", "report")
    assert all(command in kerasmem("--help").out for command in commands)
    assert all(kerasmem(f"{command} --help").code == 0 for command in commands)
