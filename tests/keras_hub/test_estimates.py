"""What models of KerasHub are estimated to need, against TensorFlow's allocator."""

import keras
import pytest

import kerasmem as km
from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR
from kerasmem.processes import ON_THE_CPU, run_in_child
from tests.keras_hub.families import FAMILIES, samples, shapes, targets

pytestmark = pytest.mark.one_backend  # the others' allocators count nothing on a CPU

FEW = ("Bert", "GPT2")
BATCH = 128
LENGTH = 16


def model_of(name):
    model = FAMILIES[name]()
    model.compile("adam", "mse", metrics=[], weighted_metrics=[], jit_compile=False)
    return model, samples(model, BATCH, LENGTH)


def measured(job):
    """Return the peak of a second step of each family; runs in a child."""
    import tensorflow as tf

    allocator = tf.config.experimental
    peaks = {}
    for name in job["families"]:
        before = allocator.get_memory_info("CPU:0")["current"]
        model, x = model_of(name)
        y = targets(model, x)
        model.train_on_batch(x, y)
        allocator.reset_memory_stats("CPU:0")
        model.train_on_batch(x, y)
        peaks[name] = allocator.get_memory_info("CPU:0")["peak"] - before
        keras.utils.clear_session()
        del model
    return peaks


@pytest.mark.slow
def test_an_estimate_comes_near_the_peak_of_a_second_step():
    true = run_in_child(
        f"{__name__}:measured",
        {"families": FEW},
        backend="tensorflow",
        environment={**ON_THE_CPU, **COUNTING_ALLOCATOR},
    )
    for name in FEW:
        model, x = model_of(name)
        given = shapes(model, x)
        found = km.estimate_memory(model, BATCH, input_shape=given, device="cpu")
        assert found.method == "analytic"
        assert found.peak_bytes == pytest.approx(true[name], rel=0.15), name
        assert found.low_bytes < true[name] < found.high_bytes, name
