"""A compression that was broken off goes on where it was, to the same weights."""

import subprocess
import sys
import textwrap
import warnings

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.compression.checkpoints import key_of
from kerasmem.errors import ConfigError, ModelFileError, OutputError
from tests.models import L

STEPS = [km.PruneChannels(0.25, rounds=2), km.Prune(0.8), km.Cluster(8)]
KILLS = 1
# What a key is made of, and what a folder holds: no backend has a part in it.
of_files = pytest.mark.one_backend


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(96, 6)).astype("float32")
    return x, x @ random.normal(size=(6, 3)).astype("float32")


@pytest.fixture
def model():
    return network()


def network():
    model = keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(40, activation="relu"),
            L.Dropout(0.3),
            L.Dense(30, activation="relu"),
            L.Dense(3),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def compress(model, data, folder, **how):
    arguments = {"data": data, "fine_tune_epochs": 1, "seed": 3, "batch_size": 16}
    return km.compress(model, STEPS, checkpoint_dir=folder, **arguments | how)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run that went to its end, the model that it began with, and its folder."""
    keras.utils.set_random_seed(7)
    model, folder = network(), tmp_path_factory.mktemp("whole")
    return compress(model, data, folder), model, folder


class BreaksOff(keras.callbacks.Callback):
    """Ends the fit of one of several trainings."""

    def __init__(self, training):
        super().__init__()
        self._left = training

    def on_epoch_end(self, epoch, logs=None):
        self._left -= 1
        if self._left == 0:
            raise InterruptedError("killed")


@pytest.mark.parametrize("training", [1, 2, 3, 4])
def test_a_run_that_was_broken_off_ends_with_the_same_weights(
    training, whole, data, tmp_path
):
    whole, model, _ = whole
    with pytest.raises(InterruptedError):
        compress(model, data, tmp_path, callbacks=[BreaksOff(training)])
    done = {1: 0, 2: 0, 3: 1, 4: 2}[training]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"kerasmem-step-{done:04}.{end}" for end in ("json", "keras")]
    trained = []
    count = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: trained.append(1))
    again = compress(model, data, tmp_path, callbacks=[count])
    assert len(trained) == 4 - {0: 0, 1: 2, 2: 3}[done]
    for a, b in zip(whole.model.get_weights(), again.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert whole.changes == again.changes
    assert whole.report.after.file_bytes == again.report.after.file_bytes


def test_a_run_that_is_done_is_not_done_again(whole, data):
    first, model, folder = whole
    second = compress(model, data, folder, callbacks=[BreaksOff(1)])
    for a, b in zip(first.model.get_weights(), second.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@of_files
@pytest.mark.parametrize(
    "how", [{"seed": 4}, {"fine_tune_epochs": 2}, {"batch_size": 8}, {"data": None}]
)
def test_another_compression_does_not_go_on_there(how, whole, data):
    _, model, folder = whole
    x, y = data
    how = {"data": (x + 1, y)} if "data" in how else how
    with pytest.raises(ConfigError, match="contains another compression"):
        compress(model, **{"data": data, "folder": folder} | how)


@of_files
def test_a_model_of_other_weights_does_not_go_on_there(whole, data):
    _, model, folder = whole
    kernel, before = model.layers[0].kernel, model.get_weights()
    kernel.assign(kernel * 2)
    try:
        with pytest.raises(ConfigError, match="contains another compression"):
            compress(model, data, folder)
    finally:
        model.set_weights(before)


@of_files
def test_without_data_and_with_another_loss(model, tmp_path):
    how = {"checkpoint_dir": tmp_path, "seed": 1}
    first = km.compress(model, [km.Prune(0.5), km.Quantize("int8")], **how)
    again = km.compress(model, [km.Prune(0.5), km.Quantize("int8")], **how)
    for a, b in zip(first.model.get_weights(), again.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ConfigError, match="contains another compression"):
        km.compress(model, [km.Prune(0.5), km.Quantize("int8")], loss="mae", **how)
    with pytest.raises(ConfigError, match="contains another compression"):
        km.compress(model, km.Prune(0.5), **how)


@of_files
def test_a_schedule_that_is_a_function_is_refused(model, data, tmp_path):
    losses = [km.distillation.Logits(weight=lambda step: 0.5 + 0 * step)]
    steps = [km.Prune(0.5), km.Distill(keras.models.clone_model(model), losses=losses)]
    with pytest.raises(ConfigError, match="checkpoint_dir.*Keras schedules"):
        km.compress(model, steps, data=data, checkpoint_dir=tmp_path / "steps")


def test_the_teacher_counts(model, data, tmp_path):
    how = {"data": data, "checkpoint_dir": tmp_path / "steps", "seed": 1}
    teacher = keras.models.clone_model(model)
    teacher.save(tmp_path / "teacher.keras")
    steps = [km.Prune(0.5), km.Distill(str(tmp_path / "teacher.keras"))]
    km.compress(model, steps, **how)
    teacher.layers[0].kernel.assign(2 * teacher.layers[0].kernel)
    teacher.save(tmp_path / "teacher.keras")
    with pytest.raises(ConfigError, match="contains another compression"):
        km.compress(model, steps, **how)


@of_files
def test_code_is_refused_before_anything_is_trained(data, tmp_path):
    model = keras.Sequential([keras.Input((6,)), L.Lambda(lambda x: x), L.Dense(3)])
    model.compile("sgd", "mse")
    trained = []
    count = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: trained.append(1))
    with pytest.raises(ModelFileError, match="code in a file is never executed"):
        km.compress(
            model,
            km.Prune(0.5),
            data=data,
            fine_tune_epochs=1,
            checkpoint_dir=tmp_path,
            callbacks=[count],
        )
    assert trained == []


@of_files
def test_words_are_told_apart_by_what_they_say(model):
    def key(*words):
        return key_of(model, (), np.array(words, dtype=object))

    assert key("a", "b") == key("".join("a"), "b") != key("a", "c")
    x = np.zeros((3, 4))
    assert key_of(model, (), (x, None, x)) != key_of(model, (), (x, None, x + 1))


@of_files
def test_what_a_killed_run_left_and_what_is_the_users(model, data, tmp_path):
    (tmp_path / ".0123abcd.keras").write_text("half a file")
    (tmp_path / "step-0001.keras").write_text("the user's own")
    km.compress(model, km.Prune(0.5), checkpoint_dir=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kerasmem-step-0001.json",
        "kerasmem-step-0001.keras",
        "step-0001.keras",
    ]


@of_files
def test_a_folder_that_cannot_be_is_one_clear_line(model, data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="Could not create the folder"):
        compress(model, data, tmp_path / "file" / "folder")


def test_custom_objects_and_a_step_that_trains_go_on(data, tmp_path):
    class Doubled(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    def loss(y_true, y_pred):
        return keras.ops.mean((y_true - y_pred) ** 2, axis=-1)

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), L.Dense(20), Doubled(), L.Dense(3)])
    model.compile("sgd", loss)
    steps = [km.Prune(0.5), km.Distill("original", epochs=1), km.Quantize("int8")]
    how = {"data": data, "seed": 1, "checkpoint_dir": tmp_path / "a"}
    with pytest.raises(InterruptedError):
        km.compress(model, steps, **how, callbacks=[BreaksOff(1)])
    again = km.compress(model, steps, **how)
    whole = km.compress(model, steps, **how | {"checkpoint_dir": tmp_path / "b"})
    for a, b in zip(whole.model.get_weights(), again.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


CHILD = """
import sys
import keras
import numpy as np
import kerasmem as km

random = np.random.default_rng(0)
x = random.normal(size=(96, 6)).astype("float32")
model = keras.models.load_model(sys.argv[1])
print("begins", flush=True)
steps = [km.Prune(0.5), km.Prune(0.8), km.Cluster(8), km.Quantize("int8")]
how = dict(data=(x, x[:, :3]), fine_tune_epochs=2, seed=3, batch_size=8)
km.compress(model, steps, checkpoint_dir=sys.argv[2], **how).save(sys.argv[3])
"""


@of_files
def test_kill_9_at_any_moment_changes_nothing(model, tmp_path):
    """Here at one, in `tests/benchmarks/bench_kills.py` at fifty."""
    model.save(tmp_path / "model.keras")
    kill_and_go_on(CHILD, tmp_path, KILLS, np.random.default_rng(0))


def kill_and_go_on(code, folder, kills, random, longest=2.0):
    """Compare the file of a run that was killed some times with that of a whole one."""

    def arguments(name):
        paths = folder / "model.keras", folder / name, folder / f"{name}.keras"
        return [*map(str, paths)]

    def run(name, seconds=None):
        """Return whether the run came to its end, in so many seconds after loading."""
        line = [sys.executable, "-c", textwrap.dedent(code), *arguments(name)]
        with (folder / f"{name}.log").open("wb") as log:
            begun = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log)
        with begun:
            begun.stdout.readline()
            try:
                begun.wait(seconds)
            except subprocess.TimeoutExpired:
                begun.kill()
                begun.stdout.read()  # until all who could write there are gone
                return False
        assert begun.returncode == 0, (folder / f"{name}.log").read_text()[-2000:]
        return True

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in a process
        patch.setattr(sys, "argv", ["-c", *arguments("whole")])
        exec(textwrap.dedent(code), {})
    killed = 0
    while killed < kills and not run("killed", random.uniform(0, longest)):
        killed += 1
    run("killed")
    first, second = (
        keras.models.load_model(folder / f"{name}.keras").get_weights()
        for name in ("whole", "killed")
    )
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    return killed


@of_files
def test_a_file_that_is_no_step_is_left_alone(model, data, tmp_path):
    (tmp_path / "kerasmem-step-abc.json").write_text("{}")
    km.compress(model, km.Prune(0.5), checkpoint_dir=tmp_path)
    assert (tmp_path / "kerasmem-step-abc.json").read_text() == "{}"


@of_files
def test_a_step_is_not_written_over_what_a_link_leads_to(model, tmp_path):
    (tmp_path / "mine").write_text("mine")
    folder = tmp_path / "steps"
    folder.mkdir()
    (folder / "kerasmem-step-0001.keras").symlink_to(tmp_path / "mine")
    km.compress(model, km.Prune(0.5), checkpoint_dir=folder)
    assert (tmp_path / "mine").read_text() == "mine"
