r"""Hinton's experiment on MNIST: how many of 10,000 test images does a student miss?

Run by hand, about 30 minutes of 2 cores; JAX is fastest:

    KERAS_BACKEND=jax python tests/benchmarks/bench_distill_mnist.py DATA.npz \
        --seeds 0 1 2 [--hints 10]

Measured on 2026-11-22: teacher 74 errors, students alone 119, 124, 131, distilled 94,
87, 88, with hints 81, 86, 96.

The teacher has 1200-1200 units, dropout, max-norm constraints and sees images moved by
up to 2 pixels; the student has 800-800 units, no regularization, and sees the images as
they are. It is trained once on the labels and once on what the teacher says of them
(T = 20), from the same first weights, for as many steps. The paper (2015, section 3):
67 errors of the teacher, 146 of the student alone, 74 distilled.

DATA.npz has x_train, y_train, x_test, y_test, images of 28 x 28 as bytes.
"""

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import kerasmem as km
from kerasmem.backends.seeding import seeded

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Moved(keras.utils.PyDataset):
    """Batches of images, each moved by a few pixels, in a new order every epoch."""

    def __init__(self, x, y, batch_size, seed, most=2):
        super().__init__()
        images = x.reshape(-1, 28, 28)
        self.most = most
        self.padded = np.pad(images, ((0, 0), (most, most), (most, most)))
        self.y, self.batch_size = y, batch_size
        self.random = np.random.default_rng(seed)
        self.order = self.random.permutation(len(y))

    def __len__(self):
        return len(self.y) // self.batch_size

    def __getitem__(self, index):
        start = index * self.batch_size
        rows = self.order[start : start + self.batch_size]
        down, right = self.random.integers(0, 2 * self.most + 1, (2, len(rows), 1, 1))
        i, j = np.arange(28)[:, None] + down, np.arange(28)[None, :] + right
        moved = self.padded[rows[:, None, None], i, j]
        return moved.reshape(len(rows), -1), self.y[rows]

    def on_epoch_end(self):
        self.order = self.random.permutation(len(self.y))


def network(units, seed, dropout=(0.0, 0.0)):
    """Return two hidden layers, with shares of inputs and of units that drop out."""
    of_inputs, of_units = dropout
    constraint = keras.constraints.MaxNorm(3.5) if any(dropout) else None
    body = [keras.Input((784,))]
    if of_inputs:
        body.append(keras.layers.Dropout(of_inputs))
    for _ in range(2):
        body.append(keras.layers.Dense(units, "relu", kernel_constraint=constraint))
        if of_units:
            body.append(keras.layers.Dropout(of_units))
    with seeded(seed):
        model = keras.Sequential([*body, keras.layers.Dense(10)])
    model.compile("adam", LOSS, metrics=["accuracy"])
    return model


def falling(steps, rate=1e-3):
    schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
    return keras.optimizers.Adam(schedule)


def errors(model, x, y):
    answers = model.predict(x, batch_size=1000, verbose=0).argmax(axis=-1)
    return int((answers != y).sum())


def read(path, hold_out=0):
    """Return images and labels to train on and to judge by.

    With `hold_out`, so many of the images to train on are what is judged by: to choose
    settings with.
    """
    with np.load(path) as data:
        x_train, x_test = (data[k] / np.float32(255) for k in ("x_train", "x_test"))
        x, x_test = (x.reshape(len(x), -1).astype("float32") for x in (x_train, x_test))
        y, y_test = data["y_train"], data["y_test"]
    if hold_out:
        return x[:-hold_out], y[:-hold_out], x[-hold_out:], y[-hold_out:]
    return x, y, x_test, y_test


def kept(path, trained):
    """Return the model in a file if it is there, else train it and keep it there."""
    if path and Path(path).exists():
        return km.load_model(path)
    model = trained()
    if path:
        model.save(path)
    return model


def trained_teacher(data, options, seed=0):
    x, y, *_ = data
    teacher = network(1200, seed, options.dropout)
    batches = Moved(x, y, options.batch_size, seed)
    steps = len(batches) * options.teacher_epochs
    teacher.compile(falling(steps), LOSS, metrics=["accuracy"])
    with seeded(seed):
        teacher.fit(batches, epochs=options.teacher_epochs, verbose=0)
    return teacher


def main(options):
    data = read(options.data, options.hold_out)
    teacher = kept(options.teacher, lambda: trained_teacher(data, options))
    print(f"teacher {errors(teacher, *data[2:])} errors", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        cache = km.distillation.Cache(folder, dtype="float32")
        for seed in options.seeds:
            compare(teacher, data, cache, options, seed)


def compare(teacher, data, cache, options, seed):
    x, y, x_test, y_test = data
    steps = -(-len(x) // options.batch_size) * options.epochs
    common = {"epochs": options.epochs, "batch_size": options.batch_size, "verbose": 0}
    student = network(800, seed)
    losses = [km.distillation.Logits(temperature=options.temperature)]
    if options.hints:
        losses.append(km.distillation.Features(weight=options.hints))
    taught = km.distill(
        teacher,
        student,
        (x, y),
        losses=losses,
        hard_weight=options.hard_weight,
        optimizer=falling(steps),
        cache=cache,
        seed=seed,
        **common,
    )
    print(f"seed {seed}: distilled {errors(taught, x_test, y_test)}", flush=True)
    if not options.alone:
        return
    student.compile(falling(steps), LOSS, metrics=["accuracy"])
    with seeded(seed):
        student.fit(x, y, **common)
    print(f"seed {seed}: alone {errors(student, x_test, y_test)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--teacher", metavar="FILE.keras", help="take it from there, or keep it there"
    )
    parser.add_argument("--teacher-epochs", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--dropout", type=float, nargs=2, default=[0.0, 0.25])
    parser.add_argument("--hold-out", type=int, default=0, metavar="IMAGES")
    parser.add_argument("--temperature", type=float, default=20.0)
    parser.add_argument("--hard-weight", type=float, default=0.1)
    parser.add_argument(
        "--hints",
        type=float,
        metavar="WEIGHT",
        help="of what the hidden layers answer, compared too (Romero et al., 2015)",
    )
    parser.add_argument("--alone", action=argparse.BooleanOptionalAction, default=True)
    main(parser.parse_args())
