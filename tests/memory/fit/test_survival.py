"""A fit that runs out of memory ends as one that did not."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

from kerasmem import backends
from kerasmem.errors import (
    ConfigError,
    KerasMemWarning,
    ModelError,
    OutOfMemoryError,
)
from kerasmem.files.read_run import read_run
from kerasmem.memory.fit import fit, plan
from tests.memory.fit.failing import Shortage, failing_model

WHERE = ("forward", "backward", "update")
FOUR_EPOCHS = {"batch_size": 32, "epochs": 4, "shuffle": False, "verbose": 0}


def data(samples=160):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, 6)).astype("float32")
    return {"x": x, "y": x.sum(1, keepdims=True) ** 2}


def state_of(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [np.array(keras.ops.convert_to_numpy(v)) for v in variables]


def assert_equal(found, expected, tolerance):
    for ours, theirs in zip(state_of(found), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance, rtol=1e-4)


@pytest.fixture(scope="module")
def untouched():
    """What four epochs that never fail make: the History, and the state."""
    model = failing_model(Shortage(), "forward")
    return model.fit(**data(), **FOUR_EPOCHS).history, state_of(model)


class Hooks(keras.callbacks.Callback):
    """Notes which hook was called with which keys."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def note(*arguments, logs=None, **_):
            *arguments, last = [*arguments, logs] if logs is not None else [*arguments]
            logs = last if isinstance(last, dict) else {}
            number = arguments[0] if arguments else None
            self.calls.append((name, number, tuple(sorted(logs))))

        return note


@pytest.mark.parametrize("where", WHERE)
def test_a_failed_step_leaves_no_trace_in_the_weights(where, untouched):
    """The first steps fail: 20 updates of Adam end as they would have."""
    wanted, expected = untouched
    shortage = Shortage(at=[1, 4] if where == "update" else [0, 1])
    found = failing_model(shortage, where)
    with pytest.warns(KerasMemWarning, match="The model is unchanged"):
        history = fit(found, **data(), **FOUR_EPOCHS).history
    assert shortage.failures == 2
    assert_equal(found, expected, 1e-5)
    np.testing.assert_allclose(history["loss"], wanted["loss"], rtol=1e-5)
    np.testing.assert_allclose(history["mae"], wanted["mae"], rtol=1e-5)


def test_batches_that_never_fit_go_in_parts_all_the_way():
    two_epochs = FOUR_EPOCHS | {"epochs": 2}
    expected = failing_model(Shortage(), "forward")
    expected.fit(**data(), **two_epochs)
    shortage = Shortage(above=9)
    found = failing_model(shortage, "forward")
    with (
        pytest.warns(KerasMemWarning, match="repeated in 2 parts"),
        pytest.warns(KerasMemWarning, match="repeated in 4 parts"),
    ):
        fit(found, **data(), **two_epochs)
    assert shortage.failures == 2  # 32 and 16 samples; then 8 at a time
    assert_equal(found, state_of(expected), 1e-5)


def test_callbacks_are_called_as_in_fit():
    arguments = data() | {"batch_size": 32, "epochs": 2, "verbose": 0}
    arguments["validation_split"] = 0.2
    plain, ours = Hooks(), Hooks()
    failing_model(Shortage(), "forward").fit(**arguments, callbacks=[plain])
    model = failing_model(Shortage(at=[1]), "forward")
    with pytest.warns(KerasMemWarning, match="Memory ran out in step 2 "):
        fit(model, **arguments, callbacks=[ours])
    assert ours.calls == plain.calls
    assert ("on_epoch_end", 1, ("loss", "mae", "val_loss", "val_mae")) in ours.calls


def test_after_steps_that_ran_it_goes_on_from_the_start_of_the_epoch(monkeypatch):
    """The eighth update fails; the copy is that from before the sixth."""
    monkeypatch.setattr(plan, "_MOST_OF_THE_TIME", 1e-9)
    arguments = {"batch_size": 32, "shuffle": False, "verbose": 0}
    x, y = data().values()
    expected = failing_model(Shortage(), "update")
    expected.fit(x, y, **arguments)
    expected.fit(x[64:], y[64:], **arguments)  # its first two updates are lost
    shortage = Shortage(at=[7 * 5 + 2])  # five checks an update
    found = failing_model(shortage, "update")
    with pytest.warns(KerasMemWarning, match="rolled back by 2 updates"):
        fit(found, x, y, epochs=2, **arguments)
    assert shortage.failures == 1
    assert_equal(found, state_of(expected), 1e-5)


def test_it_can_be_told_to_raise_and_leaves_the_model_as_it_was(tmp_path):
    x, y = data(64).values()
    arguments = {"batch_size": 32, "shuffle": False, "verbose": 0}
    expected = failing_model(Shortage(), "update")
    expected.fit(x[:32], y[:32], **arguments)
    found = failing_model(Shortage(at=[6]), "update")
    with pytest.raises(OutOfMemoryError, match="batch_size=32") as raised:
        fit(found, x, y, on_oom="raise", log_dir=tmp_path, **arguments)
    assert_equal(found, state_of(expected), 1e-6)
    assert raised.value.post_mortem.step == 1
    assert raised.value.kind == "device"
    assert read_run(tmp_path).post_mortems[0].batch_size == 32
    found.fit(x, y, **arguments)  # trains on, as ever


def test_single_samples_that_do_not_fit_are_an_error_with_a_post_mortem():
    model = failing_model(Shortage(above=0), "forward")
    with (
        pytest.warns(KerasMemWarning, match="repeated in 2 parts"),
        pytest.raises(OutOfMemoryError, match="in 2 micro-batches") as raised,
    ):
        fit(model, **data(4), batch_size=2, verbose=0)
    assert raised.value.post_mortem.micro_batches == 2


def test_memory_that_runs_out_while_data_is_made_is_told_apart():
    def batches():
        x, y = data(32).values()
        yield x, y
        raise MemoryError("cannot allocate 8 GiB")

    model = failing_model(Shortage(), "forward")
    with pytest.raises(
        OutOfMemoryError,
        match="in the input pipeline: an allocation of 8.00 GiB failed",
    ) as raised:
        fit(model, batches(), steps_per_epoch=3, shuffle=False, verbose=0)
    assert raised.value.kind == "input pipeline"


def test_any_other_error_ends_the_fit_as_ever():
    class Wrong(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyError("mine")

    model = failing_model(Shortage(), "forward")
    with pytest.raises(KeyError, match="mine"):
        fit(model, **data(), verbose=0, callbacks=[Wrong()])
    assert not [name for name in vars(model) if "kerasmem" in name]
    model.fit(**data(), verbose=0)


def test_what_is_wrong_is_said():
    model = failing_model(Shortage(), "forward")
    with pytest.raises(ConfigError, match="on_oom='skip'"):
        fit(model, **data(), on_oom="skip")
    with pytest.raises(ModelError, match=r"after `model.compile\(...\)`"):
        fit(keras.Sequential([keras.layers.Dense(1)]), **data())


def test_a_limit_that_is_too_small_for_one_sample_is_refused():
    model = failing_model(Shortage(), "forward")
    with pytest.raises(
        ConfigError,
        match="A single sample is estimated not to fit.*memory_limit=1.00 KiB",
    ):
        fit(model, **data(), memory_limit="1KiB", verbose=0)


def test_a_limit_that_a_whole_batch_exceeds_is_an_error_if_it_may_not_be_split(
    monkeypatch,
):
    # Models of other tests in this process do not count.
    nothing = SimpleNamespace(current_bytes=None)
    monkeypatch.setattr("kerasmem.memory.fit.plan.figures_of", lambda: nothing)
    model = failing_model(Shortage(), "forward")
    before, size = model.get_weights(), 20_000  # the layers' outputs take 4.9 MiB
    arguments = {**data(size), "batch_size": size, "on_oom": "raise", "verbose": 0}
    with pytest.raises(
        ConfigError, match=r"A batch of 20000 .*memory_limit=3.00 MiB\. Next: .*'split'"
    ):
        fit(model, **arguments, memory_limit="3MiB")
    for own, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(own, old)
    fit(model, **arguments, memory_limit="1TiB")
    assert int(model.optimizer.iterations) == 1


def test_one_process_of_several_does_not_split_on_its_own(monkeypatch):
    monkeypatch.setattr(
        type(backends.current()), "processes", lambda self, model: (0, 2)
    )
    model = failing_model(Shortage(at=[1]), "forward")
    with pytest.raises(OutOfMemoryError, match="in 1 micro-batches"):
        fit(model, **data(), batch_size=32, verbose=0)
