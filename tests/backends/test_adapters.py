"""What every adapter promises, on the backend that runs."""

import json
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops

from kerasmem import backends
from kerasmem.errors import ConfigError
from kerasmem.memory.nvidia import read_card


@pytest.fixture
def optimizer():
    built = keras.optimizers.Adam()
    built.build([keras.Variable(np.ones(3, "float32"))])
    return built


def test_the_adapter_is_that_of_the_running_backend(backend):
    assert backends.current().name == backend
    assert backends.current() is backends.current()


def test_only_the_running_backend_is_imported(backend):
    backends.current()
    rooms = {n.split(".")[2] for n in sys.modules if n.startswith("kerasmem.backends.")}
    assert rooms & {"tensorflow", "jax", "torch"} == {backend}


def test_a_backend_without_an_adapter_is_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "openvino")
    with pytest.raises(ConfigError, match=r"Received: .*'openvino'\. Set KERAS_BACK"):
        backends.current.__wrapped__()


def test_a_state_starts_as_it_was_given_and_is_read_and_written(optimizer):
    start = np.arange(6, dtype="float32").reshape(2, 3)
    state = backends.current().step_state(optimizer, start, "state")

    np.testing.assert_array_equal(state.read(), start)
    before = state.read()
    state.write(start + 1)
    np.testing.assert_array_equal(state.read(), start + 1)
    np.testing.assert_array_equal(before, start)


def test_a_released_state_leaves_the_optimizer_as_it_was(optimizer):
    variables, attributes = optimizer.variables, set(vars(optimizer))
    states = [
        backends.current().step_state(optimizer, np.ones(2, "float32"), name)
        for name in ("first", "second")
    ]

    for state in states:  # not in the order of a stack
        state.release()
        state.release()

    assert [id(v) for v in optimizer.variables] == [id(v) for v in variables]
    assert set(vars(optimizer)) == attributes


@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_checkpoint_does_not_hold_a_state(optimizer, is_scaled):
    if is_scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
        optimizer.build([keras.Variable(np.ones(3, "float32"))])
    plain, watched = {}, {}
    optimizer.save_own_variables(plain)

    state = backends.current().step_state(optimizer, np.ones(2, "float32"), "state")
    optimizer.save_own_variables(watched)
    optimizer.load_own_variables(plain)

    assert sorted(watched) == sorted(plain)
    np.testing.assert_array_equal(state.read(), [1, 1])


def ids(variables):
    return [id(variable) for variable in variables]


@pytest.mark.parametrize("released", [0, 1])
def test_a_state_released_by_the_saving_itself_does_not_come_back(optimizer, released):
    plain, plain_variables = {}, ids(optimizer.variables)
    optimizer.save_own_variables(plain)
    saved, value = {}, np.ones(2, "float32")

    def release(original, store):
        states[released].release()
        return original(store)

    states = [backends.current().step_state(optimizer, value, "first")]
    backends.patch_method(optimizer, "save_own_variables", release)
    states.append(backends.current().step_state(optimizer, value, "second"))
    riding = ids(optimizer.variables)
    optimizer.save_own_variables(saved)

    assert sorted(saved) == sorted(plain)
    gone = id(states[released].variable)
    assert ids(optimizer.variables) == [kept for kept in riding if kept != gone]
    states[1 - released].release()
    assert ids(optimizer.variables) == plain_variables


def test_no_backward_pass_is_recorded_in_the_inference_scope(backend):
    variable = keras.Variable(np.ones(2, "float32"))
    with backends.current().inference():
        doubled = variable * 2
    assert not getattr(doubled, "requires_grad", False)


def test_device_figures_are_whole_bytes_or_there_is_a_reason():
    adapter = backends.current()
    for reading in adapter.device_memory():
        assert reading.peak_bytes >= reading.current_bytes >= 0
        assert isinstance(reading.peak_bytes, int)
    assert adapter.why_no_device_memory().endswith(".")


@pytest.fixture
def fitted():
    """Return a function of a batch's number of rows: a model fitted on one such."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")

    def fit(rows):
        model.fit(np.ones((rows, 3)), np.ones((rows, 2)), batch_size=rows, verbose=0)
        return model

    return fit


@pytest.mark.usefixtures("counted_traces")
def test_traces_of_the_training_step_are_counted(fitted, backend):
    adapter = backends.current()
    assert adapter.traces(keras.Sequential()) is None

    counts = [adapter.traces(fitted(rows)) for rows in (4, 4, 5, 6)]

    # TensorFlow makes a second shape any shape.
    expected = {"tensorflow": [1, 1, 2, 2], "jax": [1, 1, 2, 3], "torch": [None] * 4}
    assert counts == expected[backend]


def test_a_step_that_jax_could_not_keep_for_fast_calls_has_no_count():
    class Compiled:
        def _cache_size(self):
            return 0

        def __call__(self):
            """Nothing."""

    model = SimpleNamespace(train_function=Compiled())
    assert backends.current().traces(model) is None


def test_alone_this_is_process_0_of_1(fitted):
    assert backends.current().processes(fitted(4)) == (0, 1)


def test_the_process_is_the_one_that_the_launcher_names(fitted, backend, monkeypatch):
    # JAX is told by `jax.distributed.initialize`: tests/callbacks/test_memory_on_jax.py
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
    task = {"type": "worker", "index": 1}
    config = json.dumps({"cluster": cluster, "task": task})
    launched = {"TF_CONFIG": config, "RANK": "2", "WORLD_SIZE": "3"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)

    expected = (0, 1) if backend == "jax" else (2, 3)
    assert backends.current().processes(fitted(4)) == expected


def test_a_process_that_does_not_train_is_not_counted(fitted, monkeypatch):
    task = {"type": "evaluator", "index": 0}
    config = json.dumps({"cluster": {"worker": ["b:1", "c:1"]}, "task": task})
    monkeypatch.setenv("TF_CONFIG", config)
    assert backends.current().processes(fitted(4)) == (0, 1)


def test_without_an_accelerator_there_is_no_card_and_no_input_apart():
    adapter = backends.current()
    has_card = bool(adapter.cuda_ordinals())
    assert has_card is any("gpu" in n or "cuda" in n for n in names(adapter))
    assert has_card or adapter.input_bytes() is None


def names(adapter):
    return [reading.name.lower() for reading in adapter.device_memory()]


@pytest.mark.gpu
@pytest.mark.skipif(
    all(r.name.startswith("CPU") for r in backends.current().device_memory()),
    reason="needs an accelerator",
)
def test_the_peak_of_a_gpu_holds_a_tensor_that_is_gone(backend):
    adapter = backends.current()
    was_reset = adapter.reset_device_peak()
    before = adapter.device_memory()[0].peak_bytes
    float(ops.sum(ops.ones((64, 1024, 1024))))
    after = adapter.device_memory()[0]
    assert was_reset is (backend != "jax")
    assert after.peak_bytes - before >= 200 * 1024**2 or backend == "jax"
    assert after.complete
    assert after.reserved_bytes is None or after.reserved_bytes >= after.current_bytes
    card = read_card(adapter.cuda_ordinals()[after.name])
    assert card.total_bytes >= card.used_bytes >= after.current_bytes


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_is_masked_is_zero_whatever_it_was(dtype):
    values = [float("nan"), -1.0, float("-inf"), 2.0]
    value = ops.convert_to_tensor(values, dtype)
    kept = ops.convert_to_tensor([False, False, False, True])
    masked = backends.current().masked(value, kept)
    found = np.array(ops.convert_to_numpy(ops.cast(masked, "float32")))
    np.testing.assert_array_equal(found, [0, 0, 0, 2])
    assert not np.signbit(found).any()
