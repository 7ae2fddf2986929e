"""Bad input gets one clear line, exit code 2, and nothing half-written."""

import errno
import sys
from pathlib import Path

import keras
import numpy as np
import pytest


@pytest.fixture
def broken(folder, samples):
    """Files that are not what their names say."""
    x, y = samples
    Path("cut.keras").write_bytes(Path("model.keras").read_bytes()[:2000])
    Path("text.keras").write_text("no model")
    Path("notes.txt").write_text("no model")
    np.savez("no_x.npz", images=x, y=y)
    np.savez("unequal.npz", x=x, y=y[:-1])
    np.savez("shape.npz", x=x[:, :4], y=y)
    np.savez("classes.npz", x=x, y=y + 5)
    np.savez("labels.npz", x=x, y=np.ones((len(x), 7), "float32"))
    np.savez("unlabeled.npz", x=x)
    np.savez("one_hot.npz", x=x, y=np.eye(3)[y])
    np.savez("strings.npz", x=x, y=np.array(["cat", "dog", "bird"])[y])
    Path("cut.npz").write_bytes(Path("data.npz").read_bytes()[:500])
    return folder


@pytest.fixture
def modules(folder, monkeypatch):
    """Modules of a user's with mistakes in them."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    Path("raising.py").write_text("{}['key']")
    Path("unfinished.py").write_text("def samples(:")
    Path("my_samples.py").write_text(
        "def bad():\n    raise RuntimeError('no\\nsamples')\n\ndef none():\n    pass\n"
    )
    yield folder
    sys.modules.pop("my_samples", None)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "inspect model.keras --import raising",
            "the module of --import: KeyError: 'key'. Expected",
        ),
        (
            "inspect model.keras --import unfinished",
            "the module of --import: SyntaxError: invalid syntax (unfinished.py, line",
        ),
        (
            "evaluate model.keras --data unfinished:samples",
            "Cannot import the data function 'unfinished:samples': SyntaxError: inv",
        ),
        (
            "evaluate model.keras --data my_samples:bad",
            "The data function 'my_samples:bad' raised RuntimeError: no samples.",
        ),
        (
            "evaluate model.keras --data my_samples:none",
            "The data function 'my_samples:none' returned no samples. Expected data "
            "as x,",
        ),
    ],
)
def test_a_module_of_the_users_with_a_mistake(modules, refused, line, message):
    assert message in refused(line)


@pytest.mark.one_backend
def test_labels_that_name_other_outputs_than_the_models(folder, refused, samples):
    x, y = samples
    features = keras.Input((6,))
    outputs = [keras.layers.Dense(1, name=name)(features) for name in "pq"]
    model = keras.Model(features, outputs)
    model.compile("sgd", "mse")
    model.save("two.keras")
    np.savez("one.npz", x=x, y_p=y)
    assert "the model has the outputs p, q; the data has the labels p." in refused(
        "evaluate two.keras --data one.npz"
    )
    np.savez("named.npz", x=x, y_classes=y)
    assert "has one output. Expected: labels in one array" in refused(
        "evaluate model.keras --data named.npz"
    )


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("inspect missing.keras", "There is no file 'missing.keras'."),
        ("inspect cut.keras", "'cut.keras' is no .keras file"),
        ("inspect text.keras", "'text.keras' is no .keras file"),
        ("inspect notes.txt", "ends in .keras or .h5"),
        ("inspect .", "is a folder"),
        ("inspect model.keras --import no_such_module", "the module of --import"),
        ("evaluate model.keras --data missing.npz", "There is no data file"),
        (
            "evaluate model.keras --data .",
            "data file '.': it is a folder. Expected: an",
        ),
        (
            "evaluate model.keras --data one_hot.npz",
            "y of shape (60, 3), probably one-hot. Next: y.argmax(axis=-1), or",
        ),
        (
            "evaluate model.keras --data strings.npz",
            "Expected numeric labels. Received: y with 'cat' of type str",
        ),
        (
            "run model.keras",
            "The script is not Python code. Expected: a Python training script",
        ),
        ("run notes.txt", "The script is not Python code."),
        ("evaluate model.keras --data cut.npz", "cut.npz is not a valid .npz file"),
        ("evaluate model.keras --data no_x.npz", "no_x.npz contains no array x"),
        ("evaluate model.keras --data unequal.npz", "x has 60, y has 59 samples"),
        ("evaluate model.keras --data shape.npz", "takes shape (None, 6)"),
        (
            "evaluate model.keras --data classes.npz",
            "Expected: labels from 0 to 2. Received: y from 5",
        ),
        ("evaluate model.keras --data unlabeled.npz", "The data has no labels"),
        (
            "evaluate model.keras --data data.npz --loss no_loss",
            "Unknown Keras loss. Received: --loss no_loss",
        ),
        (
            "evaluate model.keras --data data.npz --metric no_metric",
            "Unknown Keras metric. Received: --metric no_metric",
        ),
        (
            "evaluate model.keras --data data.npz --metric acuracy",
            "Received: --metric acuracy. Did you mean 'accuracy'?",
        ),
        (
            "export model.keras -o a.tflite --scheme int8",
            "Did you mean 'int8-dynamic' or 'int8-static'?",
        ),
    ],
)
def test_reading_what_is_not_there_or_not_sound(broken, refused, line, message):
    assert message in refused(line)


def test_labels_that_the_backend_cannot_compare(broken, refused):
    assert "The labels do not fit" in refused("evaluate model.keras --data labels.npz")


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)], ids=["n", "n_1"])
@pytest.mark.parametrize(
    "line",
    [
        "evaluate model.keras --loss mse",
        "evaluate model.keras --loss hinge",
        "compress model.keras -o out.keras --prune 0.5 --loss mse",
        "compress model.keras -o out.keras --prune 0.5 --loss mse --fine-tune-epochs 1",
        "distill model.keras model.keras -o out.keras --loss mse",
    ],
)
def test_labels_that_a_loss_would_broadcast(folder, refused, samples, line, shape):
    x, y = samples
    np.savez("shaped.npz", x=x, y=y.reshape(shape))
    message = refused(f"{line} --data shaped.npz")
    assert "The labels do not fit the model and its loss" in message
    assert f"Received: y of shape {y.reshape(shape).shape}" in message


def test_labels_that_a_metric_cannot_compare(folder, refused):
    line = "evaluate model.keras --data data.npz --metric mse"
    assert "The labels do not fit" in refused(line)


@keras.saving.register_keras_serializable("tests")
class OfNamedInputs(keras.Model):
    """Takes a dict, and names no inputs."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.head = keras.layers.Dense(3)

    def call(self, inputs):
        return self.head(keras.ops.concatenate([inputs["image"], inputs["extra"]], 1))


@pytest.fixture
def named(folder, samples):
    x, y = samples
    model = OfNamedInputs()
    model({"image": x, "extra": x})
    model.compile("sgd", "mse", jit_compile=False)
    model.save("named.keras")
    np.savez("extr.npz", x_image=x, x_extr=x, y=y)
    np.savez("labels.npz", x_image=x, x_extra=x, y=y)


def test_inputs_that_a_subclassed_model_cannot_be_called_with(named, refused):
    message = refused("evaluate named.keras --data extr.npz")
    assert " cannot be called with the inputs of the data: KeyError: " in message
    assert message.endswith("extra. Received: x named extr, image.")
    assert "\\" not in message
    assert "\x1b" not in message


def test_labels_that_do_not_fit_a_subclassed_model(named, refused):
    message = refused("evaluate named.keras --data labels.npz")
    assert "output's shape (None, 3). Received: y of shape (60,)" in message


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-o out.keras --prune 1.0", "at least 0 and less than 1"),
        ("-o out.keras --prune -0.1", "at least 0 and less than 1"),
        ("-o out.keras --prune nan", "at least 0 and less than 1"),
        ("-o out.keras --quantize int5", "scheme='int5'"),
        ("-o out.keras", "No step is selected"),
        ("-o out.keras --recipe none.yaml", "Cannot read the recipe 'none.yaml'"),
        ("-o out.keras --recipe a.yaml --prune 0.5", "--recipe with --prune"),
        ("-o out.txt --prune 0.5", "must end in .keras"),
        ("-o none/out.keras --prune 0.5", "There is no folder 'none'"),
        ("-o out.keras --prune 0.5 --report page.pdf", "must end in .html"),
        ("-o out.keras --recipe a.yaml --target flops=9", "--target starts a search "),
        ("-o out.keras --target file_bytes=0.2 --data data.npz", "file_bytes=0.2"),
        ("-o out.keras --prune 0.5 --measure metrics", "--measure metrics needs data"),
        ("-o out.keras --prune 0.5 --max-drop 0.1", "--max-drop needs data"),
        ("-o out.keras --prune 0.5 --fine-tune-epochs 2", "--fine-tune-epochs needs"),
        ("-o out.keras --prune 0.5 --data unequal.npz", "x has 60, y has 59"),
        ("-o out.keras --prune 0.5 --data shape.npz", "takes shape (None, 6)"),
    ],
)
def test_compressing_with_options_that_cannot_be(broken, refused, options, message):
    assert message in refused(f"compress model.keras {options}")


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("compress model.keras --prune 0.5", "required: -o/--output"),
        ("compress model.keras -o a.keras --prune half", "invalid float value: 'half'"),
        ("inspect model.keras --batch-size 0", "a whole number from 1, received '0'"),
        (
            "compress model.keras -o a.keras --prune 0.5 --batch-size 0",
            "--batch-size: expected a whole number from 1, received '0'",
        ),
        (
            "compress model.keras -o a.keras --prune 0.5 --max-drop nan",
            "--max-drop: expected a number of 0 or more, received 'nan'",
        ),
        (
            "compress model.keras -o a.keras --prune 0.5 --max-drop=-0.1",
            "--max-drop: expected a number of 0 or more, received '-0.1'",
        ),
        (
            "compress model.keras -o a.keras --prune 0.5 --max-drop small",
            "--max-drop: expected a number of 0 or more, received 'small'",
        ),
        (
            "evaluate model.keras --data data.npz --loss mse(no=1)",
            "with literal keyword arguments, such as sparse_categorical_crossentropy(",
        ),
        (
            "inspect model.keras --batch 4",
            "kerasmem inspect: error: unrecognized arguments: --batch 4. Did you mean "
            "'--batch-size'? See: kerasmem inspect --help",
        ),
        (
            "compress model.keras -o out.keras --quantise=int8",
            "kerasmem compress: error: unrecognized arguments: --quantise=int8. Did "
            "you mean '--quantize'? See: kerasmem compress --help",
        ),
        (
            "compress model.keras -o a.keras --prune-channels 0.5 "
            "--prune-channels-of chanels",
            "The argument `of` of PruneChannels must be one of channels, ",
        ),
        ("evaluate model.keras", "required: --data"),
        ("shrink model.keras", "invalid choice: 'shrink'"),
        (
            "evaluat model.keras",
            "'run'). Did you mean 'evaluate'? See: kerasmem --help",
        ),
        (
            "compress model.keras -o a.keras --coding entropi",
            "Did you mean 'entropy'? See: kerasmem compress --help",
        ),
        ("", "required: COMMAND"),
    ],
)
def test_a_command_line_that_cannot_be(folder, refused, line, message):
    assert message in refused(line)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--quantize int8-static", "needs samples to calibrate"),
        ("--quantize int8 --quantize-exclude denes", "Received: exclude='denes'"),
        (
            "--prune 0.5 --quantize int8-static",
            "Next: pass data=x (--data on the command",
        ),
    ],
)
def test_what_a_step_lacks_is_said_before_any_work(folder, refused, options, message):
    line = f"compress model.keras -o out.keras {options}"
    assert message in refused(line, unsaid="compressing")


@pytest.mark.one_backend
def test_a_model_with_nothing_to_prune(folder, refused):
    model = keras.Sequential([keras.Input((2,)), keras.layers.ReLU()])
    model.save("empty.keras")
    assert "prune" in refused("compress empty.keras -o out.keras --prune 0.5")


@pytest.mark.one_backend
def test_a_model_saved_without_a_loss(folder, refused, new_network):
    new_network(compiled=False).save("bare.keras")
    assert "without a loss. Next: pass --loss" in refused(
        "evaluate bare.keras --data data.npz"
    )
    assert "The student was loaded without a loss" in refused(
        "distill model.keras bare.keras -o out.keras --data data.npz"
    )
    assert "--metric without --loss" in refused(
        "evaluate bare.keras --data data.npz --metric accuracy"
    )


@pytest.mark.one_backend
def test_a_result_that_does_its_job_too_badly_is_not_written(
    folder, refused, new_network
):
    # One unit for x and one for -x: the network answers every sample right.
    signs = np.concatenate([np.eye(6, 3), -np.eye(6, 3)], axis=1)
    model = new_network(units=6)
    model.set_weights([signs, np.zeros(6), signs[:3].T, np.zeros(3)])
    model.save("model.keras")
    message = refused(
        "compress model.keras -o out.keras --prune 0.95 --data data.npz "
        "--max-drop 0.001",
        code=3,
    )
    assert "accuracy changed from 1.0000 to 0." in message


@pytest.mark.one_backend
def test_a_full_disk(folder, refused, monkeypatch):
    def no_space(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_space)
    message = refused("compress model.keras -o out.keras --prune 0.5")
    assert "No space left on device" in message


def full_for(name, monkeypatch):
    """Let the disk be full for one file."""
    replace = Path.replace

    def no_space(self, target):
        if Path(target).name == name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", no_space)


COMPRESS = "compress model.keras -o out.keras --prune 0.5 --report page.html"


@pytest.mark.one_backend
def test_a_page_that_cannot_be_written_leaves_no_model(folder, refused, monkeypatch):
    full_for("page.html", monkeypatch)
    assert "Could not write 'page.html': No space left" in refused(COMPRESS)


@pytest.mark.one_backend
def test_a_model_that_cannot_be_written_leaves_the_page(folder, kerasmem, monkeypatch):
    full_for("out.keras", monkeypatch)
    call = kerasmem(COMPRESS)
    assert call.code == 2
    assert "Could not write 'out.keras': No space left" in call.err
    assert not Path("out.keras").exists()
    assert Path("page.html").exists()


@pytest.mark.one_backend
def test_ctrl_c_during_the_save(folder, refused, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    assert "Interrupted." in refused("compress model.keras -o out.keras --prune 0.5")


@pytest.mark.one_backend
def test_a_mistake_of_ours_is_not_hidden(folder, kerasmem, monkeypatch):
    def mistake(*arguments, **options):
        raise RuntimeError("a bug")

    monkeypatch.setattr("kerasmem.files.inspect_file", mistake)
    with pytest.raises(RuntimeError, match="a bug"):
        kerasmem("inspect model.keras")


@pytest.mark.one_backend
@pytest.mark.parametrize("output", ["model.keras", "../{}/model.keras", "soft", "hard"])
@pytest.mark.parametrize(
    "line",
    [
        "compress model.keras --quantize int8",
        "compress model.keras --max-drop 0.1 --data data.npz",
        "convert model.keras",
        "distill model.keras other.keras --data data.npz",
        "distill other.keras model.keras --data data.npz",
    ],
)
def test_what_was_handed_in_is_never_the_output(
    line, output, folder, refused, monkeypatch
):
    def start():
        raise AssertionError

    monkeypatch.setattr(sys.modules["kerasmem.cli.main"], "start_keras", start)
    Path("other.keras").touch()
    Path("soft").symlink_to("model.keras")
    Path("hard").hardlink_to("model.keras")
    message = refused(f"{line} -o {output.format(folder.name)}")
    assert "The output is the input file, which is never modi" in message


@pytest.mark.parametrize(
    "line",
    [
        "inspect missing.keras",
        "compress missing.keras -o out.keras --prune 0.5",
        "distill model.keras missing.keras -o out.keras --data data.npz",
    ],
)
def test_a_model_that_is_not_there_is_said_before_keras_starts(
    line, folder, refused, monkeypatch
):
    def start():
        raise AssertionError

    monkeypatch.setattr(sys.modules["kerasmem.cli.main"], "start_keras", start)
    assert "There is no file 'missing.keras'." in refused(line)
