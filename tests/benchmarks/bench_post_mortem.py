"""Whether what a post-mortem says would fit does, and what it says would not does not.

Run by hand: `KERAS_BACKEND=tensorflow python tests/benchmarks/bench_post_mortem.py
[--models resnet deep_resnet dense] [--limits 64 200]`.

A child trains under a limit until memory runs out, and asks for a post-mortem. Each
remedy, and the number of micro-batches, then trains in a child of its own under the
same limit, with as many threads as TensorFlow likes, and so does a batch as large as
`find_batch_size` says. A line of JSON per advice.
"""

import argparse
import json
import os
import subprocess
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
COUNTING = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_ENABLE_ONEDNN_OPTS": "0"}
BATCHES = {
    ("resnet", 64): 64,
    ("resnet", 200): 256,
    ("deep_resnet", 64): 64,
    ("deep_resnet", 200): 256,
    ("dense", 64): 4096,
    ("dense", 200): 16384,
}


def resnet(blocks=3):
    import keras
    from keras import layers

    def block(x, units, strides):
        y = layers.Conv2D(units, 3, strides, padding="same", use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        y = layers.Conv2D(units, 3, padding="same", use_bias=False)(y)
        y = layers.BatchNormalization()(y)
        if strides > 1:
            x = layers.Conv2D(units, 1, strides, use_bias=False)(x)
        return layers.ReLU()(layers.Add()([x, y]))

    x = inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for units in (16, 32, 64):
        for number in range(blocks):
            x = block(x, units, 2 if units > 16 and not number else 1)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def deep_resnet():
    """Return a ResNet-32 of 466,906 weights."""
    return resnet(blocks=5)


def dense():
    import keras

    hidden = [keras.layers.Dense(256, activation="relu") for _ in range(16)]
    return keras.Sequential([keras.Input((256,)), *hidden, keras.layers.Dense(10)])


MODELS = {"resnet": resnet, "deep_resnet": deep_resnet, "dense": dense}


def _optimizer(name):
    import keras

    from kerasmem.optimizers import Adam8bit

    made = {
        "8-bit Adam": Adam8bit,
        "Adafactor": keras.optimizers.Adafactor,
        "SGD": keras.optimizers.SGD,
    }
    return made.get(name, keras.optimizers.Adam)()


def _model(name, remedy, batch):
    import keras

    import kerasmem as km

    model = MODELS[name]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(_optimizer(remedy), loss, jit_compile=False)
    if remedy == "rematerialization":
        return km.rematerialize(model, batch_size=batch)
    if remedy == "int8 activations":
        return km.compress_activations(model)
    return model


def _data(model, batch):
    import numpy as np

    x = np.random.default_rng(0).normal(size=(batch, *model.input_shape[1:]))
    return x.astype("float32"), np.zeros(batch, "int32")


def fail(name, batch):
    """Print the post-mortem of a step that has too little memory."""
    from kerasmem.callbacks.post_mortems import FailureWatch
    from kerasmem.memory.oom import noting_refusals

    model = _model(name, None, batch)
    watch = FailureWatch(os.devnull)
    watch._guard.warn = lambda text: None  # there is no folder to write into
    x, y = _data(model, batch)
    arguments = {"x": x, "y": y, "batch_size": batch}
    with noting_refusals() as refusals:
        try:
            model.fit(**arguments, epochs=2, verbose=0, callbacks=[watch])
        except Exception as error:  # noqa: BLE001 - any that tells of memory
            begin = time.perf_counter()
            found = _examined(watch, model, error, arguments, refusals)
            seconds = time.perf_counter() - begin
            return {"found": json.loads(found.to_json()), "seconds": seconds}
    return {"found": None}


def _examined(watch, model, error, arguments, refusals):
    from kerasmem.memory.oom import classify, post_mortem

    cause = classify(error, model, refusals=refusals)
    return post_mortem(model, cause, watch._step_context(model, arguments, ()))


def train(name, batch, remedy, parts):
    """Print the peak of a fit with a remedy, or of micro-batches that are summed up."""
    import keras
    import tensorflow as tf

    size = -(-batch // parts)
    model = _model(name, remedy, size)
    if parts > 1:
        accumulating = keras.optimizers.Adam(gradient_accumulation_steps=parts)
        model.compile(accumulating, model.loss, jit_compile=False)
    x, y = _data(model, batch)
    model.fit(x, y, batch_size=size, epochs=3, verbose=0)
    return {"peak": tf.config.experimental.get_memory_info("CPU:0")["peak"]}


def find(name, limit):
    """Print the batch size that `find_batch_size` says, with the predicted peak."""
    from kerasmem.memory.batch_size import find_batch_size

    found = find_batch_size(_model(name, None, 1), f"{limit}MiB")
    said = next(one for one in found.curve if one.batch_size == found)
    return {"size": int(found), "said": said.measured_bytes}


def child(limit, *arguments):
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--child", *map(str, arguments)],
        env=os.environ | COUNTING | {"TF_CPU_BFC_MEM_LIMIT_IN_MB": str(limit)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode == 0:
        return json.loads(ended.stdout.splitlines()[-1])
    if "train" not in arguments:
        raise RuntimeError(ended.stderr[-2000:])
    return {"peak": None, "error": ended.stderr.strip().splitlines()[-1][:200]}


def measure(name, limit):
    batch = BATCHES[name, limit]
    told = child(limit, "fail", name, batch)
    found = told["found"]
    where = {"model": name, "limit_mib": limit, "batch": batch}
    known = {"left_out": found["left_out"]}
    print(json.dumps(where | known | {"seconds": round(told["seconds"], 1)}))
    parts = found["fitting_micro_batches"]
    advice = [(remedy["name"], 1, remedy) for remedy in found["remedies"]]
    if parts:
        told = {"peak_bytes": found["fitting_bytes"], "fits": True}
        advice.insert(0, (f"{parts} micro-batches", parts, told))
    for remedy, number, told in advice:
        ran = child(limit, "train", name, batch, remedy, number)
        said = {"advice": remedy, "fits": told["fits"], "said": told["peak_bytes"]}
        print(json.dumps(where | said | ran), flush=True)
    found = child(4 * limit, "find", name, limit)
    ran = child(limit, "train", name, found["size"], "plain", 1)
    said = {"advice": f"a batch of {found['size']}", "fits": True}
    print(json.dumps(where | said | {"said": found["said"]} | ran), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--limits", nargs="+", type=int, default=[64, 200])
    options = parser.parse_args()
    for name in options.models:
        for limit in options.limits:
            measure(name, limit)


if __name__ == "__main__":
    if "--child" in sys.argv:
        _, _, task, name, batch, *more = sys.argv
        if task == "fail":
            answer = fail(name, int(batch))
        elif task == "find":
            answer = find(name, int(batch))
        else:
            answer = train(name, int(batch), more[0], int(more[1]))
        print(json.dumps(answer))
    else:
        main()
