"""Estimates of transfer learning against TensorFlow's CPU allocator.

    KERAS_BACKEND=tensorflow TF_ENABLE_ONEDNN_OPTS=0 \
        python -m tests.benchmarks.bench_transfer [CASE...]

Trains eight pretrained architectures (random weights) with a new head, frozen as a
whole or in part, nested or flat, and prints one row per case: the measured peak of a
later step, the analytic estimate, its error and its interval in MiB.
"""

import statistics
import sys
from functools import partial

import keras
import keras_hub
from keras import layers

from kerasmem.memory.estimate.estimate import checked_request, estimate_memory
from kerasmem.memory.estimate.measured import COUNTING_ALLOCATOR
from kerasmem.processes import ON_THE_CPU, run_in_child
from kerasmem.units import MIB
from tests.benchmarks.bench_estimate_traced import compiled

A = keras.applications
WIDEST = 1.6


def freeze(base, trainable_from):
    """Freeze the layers before an index; all of them for None."""
    base.trainable = True
    for layer in base.layers[:trainable_from]:
        layer.trainable = False
    base.trainable = trainable_from is not None


def transfer(make, trainable_from=None, *, is_nested=True, **options):
    base = make(weights=None, include_top=False, input_shape=(96, 96, 3))
    freeze(base, trainable_from)
    if is_nested:
        inputs = keras.Input((96, 96, 3))
        x = base(inputs, **options)
    else:
        inputs, x = base.input, base.output
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(10)(x))


def bert():
    base = keras_hub.models.BertBackbone(
        vocabulary_size=2000,
        num_layers=4,
        num_heads=4,
        hidden_dim=256,
        intermediate_dim=1024,
        max_sequence_length=128,
    )
    base.trainable = False
    inputs = {
        name: keras.Input((128,), dtype="int32", name=name)
        for name in ("token_ids", "segment_ids", "padding_mask")
    }
    x = base(inputs, training=False)["pooled_output"]
    return keras.Model(inputs, layers.Dense(10)(layers.Dropout(0.1)(x)))


def vit():
    base = keras_hub.models.ViTBackbone(
        image_shape=(64, 64, 3),
        patch_size=8,
        num_layers=4,
        num_heads=4,
        hidden_dim=192,
        mlp_dim=768,
    )
    for layer in (base.layers[1], *base.layers[2].encoder_layers[:3]):
        layer.trainable = False
    inputs = keras.Input((64, 64, 3))
    x = layers.GlobalAveragePooling1D()(base(inputs))
    return keras.Model(inputs, layers.Dense(10)(x))


def measured(model):
    """Return the peak of a later step in a process of its own."""
    request = checked_request(model, BATCH, device="cpu", jit_compile=False)
    return run_in_child(
        "tests.benchmarks.bench_estimate_traced:measure",
        request.job(),
        backend="tensorflow",
        environment={**ON_THE_CPU, **COUNTING_ALLOCATOR},
    )["peak"]


CASES = {
    "MobileNetV2, nested, frozen, training=False": partial(
        transfer, A.MobileNetV2, training=False
    ),
    "ResNet50, nested, frozen": partial(transfer, A.ResNet50),
    "EfficientNetB0, flat, frozen": partial(
        transfer, A.EfficientNetB0, is_nested=False
    ),
    "MobileNetV2, flat, last 50 layers trained": partial(
        transfer, A.MobileNetV2, -50, is_nested=False
    ),
    "ResNet50, nested, last 32 layers trained, training=False": partial(
        transfer, A.ResNet50, -32, training=False
    ),
    "EfficientNetB0, nested, all trained, training=False": partial(
        transfer, A.EfficientNetB0, 0, training=False
    ),
    "BERT (KerasHub), nested, frozen, training=False": bert,
    "ViT (KerasHub), nested, last block trained": vit,
}
BATCH = 32


def main(*words):
    names = [name for name in CASES if all(word in name for word in words)]
    errors, failures = [], 0
    print("| model | measured, MiB | estimate, MiB | error, % | low, MiB | high, MiB |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in names:
        keras.utils.set_random_seed(0)
        model = compiled(CASES[name]())
        true = measured(model)
        found = estimate_memory(model, BATCH, device="cpu", jit_compile=False)
        error = found.peak_bytes / true - 1
        errors.append(abs(error))
        is_inside = found.low_bytes <= true <= found.high_bytes
        is_narrow = found.high_bytes <= WIDEST * found.low_bytes
        failures += not (is_inside and is_narrow)
        sizes = true, found.peak_bytes, found.low_bytes, found.high_bytes
        peak, middle, low, high = (f"{size / MIB:.1f}" for size in sizes)
        print(
            f"| {name} | {peak} | {middle} | {100 * error:+.1f} | {low} | {high} |",
            flush=True,
        )
    median = statistics.median(errors)
    print(f"median error {median:.1%}, outside or too wide: {failures} of {len(names)}")
    return bool(failures) or median > 0.1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
