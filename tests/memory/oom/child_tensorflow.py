"""Runs out of memory for real, three times, in a process of its own: prints JSON.

    python -m tests.memory.oom.child_tensorflow

with the CPU's allocator limited, on one thread.
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf

from kerasmem.memory.compress_activations import compress_activations
from kerasmem.memory.oom import StepContext, classify, noting_refusals, post_mortem
from kerasmem.memory.plan import rematerialize
from kerasmem.optimizers import Adam8bit

LIMIT_MB = int(os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB", "0"))
BATCH = 8192


def network(accumulation=None, optimizer=keras.optimizers.Adam):
    layers = [keras.layers.Dense(256, activation="relu") for _ in range(4)]
    model = keras.Sequential(
        [keras.Input((64,)), *layers, keras.layers.Dense(1)], name="tower"
    )
    made = optimizer(gradient_accumulation_steps=accumulation)
    model.compile(made, "mse", jit_compile=False)
    return model


def batch(size):
    return np.ones((size, 64), "float32"), np.ones((size, 1), "float32")


def failed(do, model=None, **options):
    """Return why `do` ran out of memory; whatever it held is free by then."""
    with noting_refusals() as refusals:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - any that tells of memory
            return classify(error, model, refusals=refusals, **options), str(error)
    raise AssertionError("there was enough memory")


def device():
    """Fail with a whole batch, and train in as many micro-batches as are named."""
    model = network()
    model.train_on_batch(*batch(8))
    cause, text = failed(lambda: model.train_on_batch(*batch(BATCH)), model)
    found = post_mortem(model, cause, StepContext(batch_size=BATCH, step=1))
    return {
        "text": text,
        "found": found.to_json(),
        "estimate": _estimate(),
        "ran": _ran(found.fitting_micro_batches),
        "remedies": {one.name: _trains(one.name) for one in found.remedies if one.fits},
        "left": os.environ.get("TF_BFC_MEMORY_DUMP"),
    }


def _trains(remedy):
    """Return whether whole batches run with a remedy."""
    model = REMEDIES[remedy]()
    for _ in range(3):
        model.train_on_batch(*batch(BATCH))
    return True


REMEDIES = {
    "rematerialization": lambda: rematerialize(network(), batch_size=BATCH),
    "int8 activations": lambda: compress_activations(network()),
    "8-bit Adam": lambda: network(optimizer=Adam8bit),
    "Adafactor": lambda: network(optimizer=keras.optimizers.Adafactor),
    "SGD": lambda: network(optimizer=keras.optimizers.SGD),
}


def _estimate():
    from kerasmem.memory.estimate import estimate_memory

    return estimate_memory(network(), BATCH, device="cpu").to_json()


def _ran(count):
    """Return the peak of a few updates in so many micro-batches each."""
    model = network(accumulation=count)
    samples = batch(-(-BATCH // count))
    tf.config.experimental.reset_memory_stats("CPU:0")
    for _ in range(2 * count):
        model.train_on_batch(*samples)
    assert int(model.optimizer.iterations) == 2
    return tf.config.experimental.get_memory_info("CPU:0")["peak"]


def greedy(i):
    large = tf.fill((2**25,), tf.cast(i, "float32"))
    return tf.fill((8, 64), 1.0), tf.fill((8, 1), tf.reduce_sum(large))


def pipeline():
    """Fail while a batch is made, in a function that is mapped over the data."""
    data = tf.data.Dataset.range(4)
    data = data.map(greedy)
    model = network()
    cause, text = failed(lambda: model.fit(data, verbose=0), model)
    found = post_mortem(model, cause, StepContext(batch_size=8))
    return {"text": text, "found": found.to_json()}


def pieces():
    """Fail with half of the memory free, in pieces of 2 MiB."""
    piece = 2**19  # entries
    kept = []
    small = []
    try:
        while True:
            kept.append(tf.fill((piece,), 1.0))
            small.append(tf.fill((64,), 1.0))
            if len(kept) * 4 * piece > (LIMIT_MB - 8) * 2**20:
                break
    except tf.errors.ResourceExhaustedError:
        pass
    kept = [tensor for number, tensor in enumerate(kept) if number % 2]
    cause, text = failed(lambda: tf.fill((4 * piece,), 1.0))
    return {"text": text, "cause": vars(cause), "kept": len(kept)}


if __name__ == "__main__":
    seen = {"device": device(), "pipeline": pipeline(), "pieces": pieces()}
    sys.stdout.write(json.dumps(seen))
