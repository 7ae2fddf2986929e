"""`MemoryTimeline` in `fit`, on every backend's CPU."""

import copy
import os
import pickle
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import keras
import numpy as np
import pytest

from kerasmem import backends
from kerasmem.backends.profile import AllocatorTrace, MemoryEvent, Profile
from kerasmem.callbacks import MemoryTimeline
from kerasmem.errors import ConfigError, KerasMemWarning
from kerasmem.files.read_run import read_run
from kerasmem.files.run_dir import timeline_text, timelines_in
from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR
from kerasmem.records import Finding
from tests.timelines import (
    assert_adds_up,
    held_before,
    made_in_window,
    requested_by_layer,
    share_known,
)

# Without threads that wait for each other: seconds, on a machine that is busy.
FASTER = {"OMP_NUM_THREADS": "1"}
CHILD = Path(__file__).with_name("timeline_child.py")
BATCH = 32
LAST = "sequential/dense_2"
DENSE = {"sequential/dense": 50, "sequential/dense_1": 30, LAST: 3}
NESTED = {"inner/dense": 24, "inner/dense_1": 20, "shared": 20, "dense_2": 3}
SHOWN = ("forward", "backward", "optimizer")
MODELS = ("mlp", "sequence", "nested, sgd", "resnet, mixed_float16")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Return what one process saw of all models, the first `fit` broken off."""
    folder = tmp_path_factory.mktemp("timeline")
    root = str(Path(__file__).parents[2])
    environment = os.environ | FASTER | COUNTING_ALLOCATOR
    environment |= {"PYTHONPATH": root, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(CHILD), str(folder)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return pickle.loads((folder / "seen.pickle").read_bytes())


def steps_in(timeline, backend):
    """Return how many steps are in a timeline; XLA's plan is that of one."""
    assert timeline.first_step == 2
    assert timeline.steps == (1 if backend == "jax" else 3)
    return timeline.steps


@pytest.mark.parametrize("model", MODELS)
def test_live_blocks_are_the_allocators_figure_at_every_event(seen, model):
    assert seen[model]["timelines"]
    for timeline in seen[model]["timelines"]:
        assert len(timeline.times_ns) > 90
        assert_adds_up(timeline)


@pytest.mark.parametrize("model", MODELS)
def test_almost_every_byte_has_a_layer_or_a_category(seen, model):
    timeline = seen[model]["timelines"][0]
    assert share_known(made_in_window(timeline)) > 0.99


def test_a_window_of_a_broken_off_fit_can_be_read(seen, backend):
    (timeline,) = seen["broken off"]
    assert timeline.first_step == 2
    assert timeline.steps == (1 if backend == "jax" else 3)  # the last one torn
    assert_adds_up(timeline)
    assert share_known(made_in_window(timeline)) > 0.99


def test_a_gradient_monitor_beside_it_hides_nothing(seen, backend):
    cases = {"beside gradients": 1, "beside gradients, jit": 2}
    for case in cases if backend == "tensorflow" else ["beside gradients"]:
        timelines, traces = seen[case]
        assert len(timelines) == cases[case]
        for timeline in timelines:
            assert timeline.first_step == 2
            assert_adds_up(timeline)
        # As without it: TensorFlow traces a function twice that makes variables.
        assert traces == {"tensorflow": 2, "jax": 1, "torch": None}[backend]


def test_of_a_model_of_some_size_so_has_what_was_there_before(seen):
    assert share_known(seen["resnet, mixed_float16"]["timelines"][0].blocks) > 0.99


@pytest.mark.parametrize("model", MODELS)
def test_weights_and_slots_are_counted_to_the_byte(seen, model):
    weights = seen[model]["weights"]
    held = held_before(seen[model]["timelines"][0])
    parameters = requested_by_layer(held, "parameter")
    assert {layer: parameters.get(layer) for layer in weights} == weights
    slots = requested_by_layer(held, "optimizer_state")
    of_adam = 0 if model == "nested, sgd" else 2
    for layer, size in seen[model]["trained"].items():
        assert slots.get(layer, 0) == of_adam * size


@pytest.mark.parametrize("model", ["mlp", "sequence", "nested, sgd"])
def test_gradients_are_counted_to_the_byte(seen, model, backend):
    timeline = seen[model]["timelines"][0]
    found = requested_by_layer(timeline.blocks, "gradient")
    steps = steps_in(timeline, backend)
    trained = seen[model]["trained"]
    if (model, backend) == ("nested, sgd", "jax"):
        # XLA sums a bias's gradient up inside of its update.
        trained = {layer: size - 4 * NESTED[layer] for layer, size in trained.items()}
    assert {layer: found.get(layer) for layer in trained} == {
        layer: steps * size for layer, size in trained.items()
    }


def test_what_the_first_step_makes_is_known_in_it(seen, backend):
    timeline = seen["from the first step"]["timelines"][0]
    trained = seen["from the first step"]["trained"]
    assert_adds_up(timeline)
    found = requested_by_layer(timeline.blocks, "gradient")
    assert {layer: found.get(layer) for layer in trained} == trained
    if backend == "tensorflow":
        last = list(timeline.live(len(timeline.times_ns) - 1))
        slots = requested_by_layer(last, "optimizer_state")
        assert requested_by_layer(last, "parameter") == trained
        assert {layer: slots[layer] for layer in trained} == {
            layer: 2 * size for layer, size in trained.items()
        }


def test_activations_are_counted_to_the_byte(seen, backend):
    timeline = seen["mlp"]["timelines"][0]
    found = requested_by_layer(timeline.blocks, "activation")
    steps = steps_in(timeline, backend)
    # XLA keeps what goes into a relu too.
    kept = {LAST: 1} if backend == "jax" else dict.fromkeys(DENSE, 1)
    for layer, units in DENSE.items():
        if (layer, backend) != (LAST, "tensorflow"):
            assert found[layer] == steps * kept.get(layer, 2) * BATCH * units * 4


def test_of_logits_let_go_before_the_backward_pass_the_loss_has_its_own(seen, backend):
    # TensorFlow's loss writes over the logits, unless the accuracy, in another thread,
    # reads them just then.
    if backend == "tensorflow":
        timeline = seen["mlp"]["timelines"][0]
        made = [block for block in made_in_window(timeline) if block.phase == "forward"]
        logits = [block for block in made if block.layer == LAST]
        size = BATCH * DENSE[LAST] * 4
        assert [block.requested_bytes for block in logits] == timeline.steps * [size]
        losses = [b for b in made if "SparseSoftmaxCrossEntropy" in b.operation]
        for block in logits:
            if block.category != "activation":
                assert block.category == "temporary"
                assert any(
                    (loss.requested_bytes, loss.category) == (size, "activation")
                    and block.allocated_at < loss.allocated_at < block.freed_at
                    for loss in losses
                )


def test_rounding_is_shown_apart(seen, backend):
    for block in seen["mlp"]["timelines"][0].blocks:
        assert block.given_bytes >= block.requested_bytes
        if backend == "tensorflow":
            assert block.given_bytes % 256 == 0 or not block.operation
        else:
            assert block.given_bytes == block.requested_bytes


def test_two_replicas_have_two_of_everything(seen, backend):
    if backend != "tensorflow":
        assert "mlp, two replicas" not in seen
        return
    replicas = seen["mlp, two replicas"]
    (timeline,) = replicas["timelines"]
    assert_adds_up(timeline)
    assert share_known(made_in_window(timeline)) > 0.99
    for category, times in (("gradient", 6), ("parameter", 2), ("optimizer_state", 4)):
        blocks = timeline.blocks if times == 6 else held_before(timeline)
        found = requested_by_layer(blocks, category)
        for layer, size in replicas["trained"].items():
            assert found[layer] == times * size


def test_training_is_the_same_to_the_bit_and_no_hook_stays(seen):
    assert seen["mlp"]["values"] == seen["mlp, bare"]
    assert all(seen[model]["hooks"] == [] for model in MODELS)


def test_a_profile_of_somebody_else_is_left_alone(seen, backend):
    if backend == "tensorflow":
        (text,), timelines = seen["busy"]
        assert timelines == []
        assert text == (
            "Another profile is running, and TensorFlow supports one at a time, so "
            "there is no timeline. If the TensorBoard callback started it, use other "
            "batches there, or none: TensorBoard(profile_batch=0). Training continues."
        )


def test_a_plan_that_cannot_be_read_leaves_the_allocators_timeline(seen, backend):
    if backend == "tensorflow":
        (text,), timelines = seen["without plan"]
        assert timelines == ["profiler"]
        assert text == (
            "Could not read the compiled step in TensorFlow's profile, so the timeline "
            "contains the step as one block without layers. Received: ValueError: cut "
            "off"
        )


def under_jit(seen, model):
    """Return what TensorFlow's allocator saw of a compiled step, and XLA's plan."""
    found = {t.source: t for t in seen[model]["timelines"]}
    assert list(found) == ["profiler", "buffer assignment"]
    return found["profiler"], found["buffer assignment"]


@pytest.mark.parametrize("model", ["mlp, jit", "resnet, jit"])
def test_under_jit_a_plan_shows_what_is_in_the_block_of_a_step(seen, backend, model):
    if backend != "tensorflow":
        assert model not in seen
        return
    profiled, planned = under_jit(seen, model)
    assert_adds_up(profiled)
    assert_adds_up(planned)
    assert len(profiled.times_ns) < 100 < len(planned.times_ns)
    assert (profiled.steps, planned.steps) == (3, 1)
    assert share_known(planned.blocks) > 0.999
    block = max(b.requested_bytes for b in made_in_window(profiled))
    # Beside it are results of the step that overwrite no variable.
    (reserved,) = set(planned.reserved_bytes)
    assert 0 <= reserved - planned.opening_bytes - block < 512
    assert 0.98 * block < planned.peak_bytes - planned.opening_bytes < block + 512


@pytest.mark.parametrize("model", ["mlp, jit", "resnet, jit"])
def test_under_jit_variables_are_counted_to_the_byte(seen, backend, model):
    if backend != "tensorflow":
        return
    _, planned = under_jit(seen, model)
    held = held_before(planned)
    parameters = requested_by_layer(held, "parameter")
    parameters.pop("seed_generator", None)
    assert parameters == seen[model]["weights"]
    slots = {layer: 2 * size for layer, size in seen[model]["trained"].items()}
    counters = {None: 8 + 4}  # iterations, learning rate
    assert requested_by_layer(held, "optimizer_state") == slots | counters
    batch = {"mlp, jit": BATCH * 20, "resnet, jit": BATCH * 16 * 16 * 8}[model]
    metrics = 4 * 4
    inputs = requested_by_layer(held, "input")
    assert inputs == {None: 4 * (batch + BATCH) + metrics}


def test_under_jit_gradients_are_counted_to_the_byte(seen, backend):
    if backend != "tensorflow":
        return
    _, planned = under_jit(seen, "mlp, jit")
    found = requested_by_layer(planned.blocks, "gradient")
    assert found == seen["mlp, jit"]["trained"]
    phases = {(b.layer, b.phase) for b in planned.blocks if b.layer is not None}
    assert {(layer, phase) for layer in DENSE for phase in SHOWN} <= phases


@pytest.mark.parametrize("model", MODELS)
def test_no_event_of_these_small_windows_is_lost(seen, model):
    assert [timeline.lost_events for timeline in seen[model]["timelines"]] == [0]


def small_fit(monitor, epochs=1, others=()):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x, y = np.ones((12, 4), "float32"), np.ones((12, 2), "float32")
    callbacks = [monitor, *others] if monitor else []
    model.fit(x, y, batch_size=2, epochs=epochs, verbose=0, callbacks=callbacks)
    return [weight.tobytes() for weight in model.get_weights()]


@cache
def bare(epochs=1):
    """Return the weights of a `fit` without a monitor."""
    return small_fit(None, epochs)


def quiet(monitor, **how):
    """Return the weights, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weights = small_fit(monitor, **how)
    return weights, [str(w.message) for w in caught if w.category is KerasMemWarning]


def test_without_the_counting_allocator_it_says_what_to_set(backend):
    weights, told = quiet(MemoryTimeline(), epochs=2)
    assert weights == bare(epochs=2)
    if backend == "tensorflow":
        (text,) = told
        assert "Set TF_CPU_ALLOCATOR_USE_BFC=1 and TF_ENABLE_ONEDNN_OPTS=0" in text
        assert "kerasmem run --timeline SCRIPT.py" in text
    else:
        assert told == []


@pytest.mark.one_backend
@pytest.mark.parametrize("failing", ["start", "stop"])
def test_a_profiler_that_fails_warns_once_and_changes_nothing(monkeypatch, failing):
    class Failing:
        names = "given"

        def start(self):
            if failing == "start":
                raise OSError("disk full")

        def stop(self):
            raise OSError("disk full")

    adapter = type(backends.current())
    monkeypatch.setattr(adapter, "memory_profiler", lambda *_: Failing())
    monitor = MemoryTimeline()
    weights, told = quiet(monitor, epochs=2)
    doing = "start a profile" if failing == "start" else "read the profile"
    assert told == [
        f"MemoryTimeline could not {doing}: OSError: disk full. Training continues."
    ]
    assert weights == bare(epochs=2)
    assert monitor.timelines == []


def event(number, size):
    return MemoryEvent(number, True, 256 * number, size, size, 256 * number)


class TwoEventsOfThree:
    """A profiler that leaves out the third of four allocations."""

    names = "given"

    def __init__(self, problem=""):
        self._problem = problem

    def start(self):
        pass

    def stop(self):
        events = [event(number, 256) for number in (1, 2, 4)]
        trace = AllocatorTrace("bfc", "CPU", "profiler", events)
        return Profile([trace], problem=self._problem)


@pytest.mark.one_backend
def test_events_that_the_profiler_left_out_are_told(monkeypatch):
    adapter = type(backends.current())
    gappy = TwoEventsOfThree("The plan is missing.")
    monkeypatch.setattr(adapter, "memory_profiler", lambda *_: gappy)
    monitor = MemoryTimeline()
    _, told = quiet(monitor, epochs=2)
    assert told == [
        "The plan is missing. The profiler lost events of bfc. The timeline is the "
        "longest run without a gap, without 1 of the 3 reported events. Use fewer "
        "steps to lose fewer events."
    ]
    (timeline,) = monitor.timelines
    assert timeline.lost_events == 1
    assert timeline.in_use_bytes == (256, 512)


def test_a_folder_that_cannot_be_written_warns_once(tmp_path):
    (tmp_path / "file").write_text("no folder")
    weights, told = quiet(MemoryTimeline(log_dir=tmp_path / "file"))
    assert len(told) == 1
    assert "could not write run.json" in told[0]
    assert weights == bare()


def test_a_window_that_never_comes_is_told_and_written_down(tmp_path):
    _, told = quiet(MemoryTimeline(steps=range(100, 101), log_dir=tmp_path), epochs=2)
    assert told == [
        "MemoryTimeline recorded no step: `fit` ran 12 steps and the window starts "
        "later. Use earlier steps, such as steps=range(0, 1)."
    ]
    (finding,) = read_run(tmp_path).findings
    assert finding == Finding("no timeline", told[0], 1, None, "MemoryTimeline", "note")


def test_a_timeline_that_is_too_long_is_told_and_written_down(
    tmp_path, monkeypatch, backend
):
    if backend == "tensorflow":
        return  # no timeline in this process
    monkeypatch.setattr("kerasmem.files.run_dir._MOST_BLOCKS", 1)
    monitor = MemoryTimeline(steps=range(2), log_dir=tmp_path)
    _, told = quiet(monitor)
    (text,) = told
    assert text.startswith("The timelines are too long: ")
    assert text.endswith("Next: record fewer steps. Training continues.")
    (finding,) = read_run(tmp_path).findings
    assert finding == Finding("no timeline", text, 0, None, "MemoryTimeline", "note")
    assert monitor.timelines
    assert not list(tmp_path.glob("timeline-*"))


def test_the_window_counts_over_epochs_and_ends_with_its_epoch(tmp_path, backend):
    if backend == "tensorflow":
        return  # in a child process: see the tests of `kerasmem run`
    monitor = MemoryTimeline(steps=range(10, 20), log_dir=tmp_path)
    small_fit(monitor, epochs=3)
    (timeline,) = monitor.timelines
    assert timeline.first_step == 10
    assert timeline.steps == (1 if backend == "jax" else 2)
    assert timelines_in(timeline_text(tmp_path / "timeline-0000.json.gz")) == [timeline]


@pytest.mark.one_backend
def test_a_copy_watches_on_its_own(monkeypatch):
    """Keras Tuner copies callbacks for every trial."""
    adapter = type(backends.current())
    monkeypatch.setattr(adapter, "memory_profiler", lambda *_: OnlyOne())
    monitor = MemoryTimeline(steps=range(1))
    copied = copy.deepcopy(monitor)
    quiet(copied)
    assert copied.timelines
    assert not monitor.timelines


@pytest.mark.one_backend
@pytest.mark.parametrize("steps", [3, (1, 2), range(0), range(0, 4, 2), range(-1, 2)])
def test_steps_are_a_range_of_consecutive_steps(steps):
    with pytest.raises(ConfigError, match="such as range\\(2, 5\\). Received: steps="):
        MemoryTimeline(steps=steps)


class OnlyOne(TwoEventsOfThree):
    """A profiler that, like the real ones, cannot run twice at a time."""

    names = ()
    running = False

    def start(self):
        if OnlyOne.running:
            raise RuntimeError("a profile is being taken")
        OnlyOne.running = True

    def stop(self):
        OnlyOne.running = False
        return super().stop()


@pytest.mark.one_backend
def test_a_window_of_a_broken_off_fit_does_not_stand_in_the_way(monkeypatch):
    adapter = type(backends.current())
    monkeypatch.setattr(adapter, "memory_profiler", lambda *_: OnlyOne())

    class Break(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                raise KeyboardInterrupt

    abandoned = MemoryTimeline(steps=range(3))
    with pytest.raises(KeyboardInterrupt):
        small_fit(abandoned, others=[Break()])
    assert OnlyOne.running
    monitor = MemoryTimeline(steps=range(1))
    quiet(monitor)
    assert monitor.timelines
    assert not OnlyOne.running


@pytest.fixture
def only_one(monkeypatch):
    """Have every profiler be one that cannot run twice at a time."""
    adapter = type(backends.current())
    monkeypatch.setattr(adapter, "memory_profiler", lambda *_: OnlyOne())


@pytest.mark.one_backend
def test_two_timelines_in_one_fit_have_the_same_window(only_one, tmp_path):
    first, second = MemoryTimeline(), MemoryTimeline(log_dir=tmp_path)
    _, told = quiet(first, others=[second])
    gap = ["The profiler lost events of bfc"]
    assert [text.partition(".")[0] for text in told] == gap * 2
    assert first.timelines == second.timelines
    assert first.timelines == list(read_run(tmp_path).timelines)
    assert (first.timelines[0].first_step, first.timelines[0].steps) == (2, 3)
    assert not OnlyOne.running


@pytest.mark.one_backend
def test_a_window_that_another_cuts_short_is_told(only_one):
    second = MemoryTimeline(steps=range(3, 6))
    _, told = quiet(MemoryTimeline(steps=range(2, 4)), others=[second])
    assert (
        "Another MemoryTimeline of this fit was recording, and only one profile can "
        "run at a time. Recorded steps: 2 to 3, instead of 3 to 5. Use the same steps "
        "for both."
    ) in told[1]
    (timeline,) = second.timelines
    assert (timeline.first_step, timeline.steps) == (2, 2)


@pytest.mark.one_backend
def test_a_window_is_not_shared_with_a_fit_that_was_broken_off(only_one):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x, y = np.ones((12, 4), "float32"), np.ones((12, 2), "float32")

    def fit(*callbacks):
        model.fit(x, y, batch_size=2, verbose=0, callbacks=list(callbacks))

    def broken(batch, logs):
        raise KeyboardInterrupt

    stop = keras.callbacks.LambdaCallback(on_train_batch_end=broken)
    abandoned, monitor = (
        MemoryTimeline(steps=range(1)),
        MemoryTimeline(steps=range(4, 6)),
    )
    with pytest.raises(KeyboardInterrupt):
        fit(abandoned, stop)
    with pytest.warns(KerasMemWarning, match="lost events of bfc"):
        fit(monitor)
    (timeline,) = monitor.timelines
    assert (timeline.first_step, timeline.steps) == (4, 2)


@pytest.mark.one_backend
def test_a_profile_that_cannot_be_ended_ends_no_fit(monkeypatch):
    class Stuck(OnlyOne):
        def start(self):
            pass

        def stop(self):
            raise OSError("disk full")

    adapter = type(backends.current())
    monkeypatch.setattr(adapter, "memory_profiler", lambda *_: Stuck())
    monitor = MemoryTimeline(steps=range(2))

    def finished(batch, logs):
        monitor._drop()

    early = keras.callbacks.LambdaCallback(on_train_batch_end=finished)
    weights, told = quiet(monitor, others=[early])
    assert told == [
        "MemoryTimeline could not stop a profile: OSError: disk full. "
        "Training continues."
    ]
    assert weights == bare()
