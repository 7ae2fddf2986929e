"""BatchNormalization after compression: what a ResNet loses, by default and by hand.

Run by hand, about 15 minutes on 2 cores:

    python tests/benchmarks/bench_batch_norm.py fashion_mnist.npz [--model resnet.keras]

A ResNet whose BatchNormalization has Keras's momentum of 0.99 is trained on images of
Fashion-MNIST, or read from `--model`. Every treatment has 1,000 training images. It
prints the accuracy on the test images as the treatment leaves the model by default, and
what `km.ReestimateBatchNorm` makes of that by hand.
"""

import argparse
import os
import warnings
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import kerasmem as km

L = keras.layers
TRAINED_ON, GIVEN = 30_000, 1_000


def resnet(shape, classes, widths=(32, 32, 64, 64, 128)):
    """Return a ResNet of 402,000 weights."""

    def normalized(x, width, size, strides=1):
        x = L.Conv2D(width, size, strides, padding="same", use_bias=False)(x)
        return L.BatchNormalization(momentum=0.99)(x)

    images = keras.Input(shape)
    x = L.Rescaling(1 / 255)(images)
    x = L.ReLU()(normalized(x, widths[0], 3, strides=2))
    for width in widths:
        strides = 1 if width == x.shape[-1] else 2
        y = L.ReLU()(normalized(x, width, 3, strides))
        y = normalized(y, width, 3)
        if strides > 1:
            x = normalized(x, width, 1, strides)
        x = L.ReLU()(L.Add()([x, y]))
    x = L.GlobalAveragePooling2D()(x)
    model = keras.Model(images, L.Dense(classes, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def trained(train, epochs):
    keras.utils.set_random_seed(0)
    model = resnet(train[0].shape[1:], 10)
    x, y = (array[:TRAINED_ON] for array in train)
    model.fit(x, y, epochs=epochs, batch_size=64, verbose=2)
    return model


def student(model, given):
    return km.distill(model, km.make_student(model, 0.25), given, verbose=0, seed=0)


def compressed(steps, **options):
    def treated(model, given):
        return km.compress(model, steps, data=given, seed=0, **options).model

    return treated


TREATMENTS = {
    "prune 50 %": compressed(km.Prune(0.5)),
    "prune 80 %": compressed(km.Prune(0.8)),
    "prune 80 % + 1 epoch": compressed(km.Prune(0.8), fine_tune_epochs=1),
    "channels 30 % + 1 epoch": compressed(km.PruneChannels(0.3), fine_tune_epochs=1),
    'preset "size"': compressed("size"),
    'preset "latency"': compressed("latency"),
    "student, ratio 0.25": student,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="fashion_mnist.npz")
    parser.add_argument("--model", type=Path, help="read it there, or keep it there")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found = np.load(options.data)
    train, test = (
        (found[f"x_{s}"][..., None].astype("float32"), found[f"y_{s}"])
        for s in ("train", "test")
    )
    if options.model and options.model.exists():
        model = keras.models.load_model(options.model)
    else:
        model = trained(train, options.epochs)
        if options.model:
            model.save(options.model)
    given = train[0][:GIVEN], train[1][:GIVEN]

    def accuracy(net):
        return net.evaluate(*test, batch_size=250, verbose=0)[1]

    def by_hand(net):
        steps = km.ReestimateBatchNorm()
        return accuracy(km.compress(net, steps, data=given[0]).model)

    print(f"{model.count_params():,} weights, 1,000 images to learn from", flush=True)
    print(f"{'untouched':24} {accuracy(model):.4f}, by hand {by_hand(model):.4f}")
    for name, treated in TREATMENTS.items():
        net = treated(model, given)
        print(f"{name:24} {accuracy(net):.4f}, by hand {by_hand(net):.4f}", flush=True)


if __name__ == "__main__":
    main()
