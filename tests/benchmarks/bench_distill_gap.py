"""How much of the gap to its teacher does a student of a tenth of the size close?

Run by hand, about 100 minutes of one core at the defaults:

    KERAS_BACKEND=tensorflow python -m tests.benchmarks.bench_distill_gap FASHION.npz

The teacher has convolutions of 32 and 64 filters, 700 units and dropout (with
`--varied-teacher` it sees images moved and mirrored), the student 16, 32 and 128,
1/10.7 of the parameters, and no regularization. From the same first weights and on the
same images it is trained with each method of `--methods`, and on the labels alone, for
as many epochs and for fewer: without a teacher it overfits. Of the images to train on
10,000 are held out of everything; with `--choose` models are judged by them in place of
the test images: to choose settings with.
"""

import argparse
import itertools
import os
import statistics
import tempfile

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import kerasmem as km
from kerasmem.backends.seeding import seeded
from tests.benchmarks.bench_distill_mnist import LOSS, Moved, errors, falling, kept

L = keras.layers
HELD_OUT, BATCH_SIZE = 10_000, 128
TEACHER, STUDENT = (32, 64, 700), (16, 32, 128)
d = km.distillation
METHODS = {
    "logits": lambda t, w: d.Logits(temperature=t, weight=w),
    "dkd": lambda t, w: d.DKD(temperature=t, alpha=1.0, beta=2.0, weight=w),
    "dist": lambda t, w: d.DIST(temperature=t, weight=w),
    "features": lambda t, w: d.Features(layers={"inner": "inner"}, weight=w),
    "similarity": lambda t, w: d.Relational(
        kind="similarity", layers={"inner": "inner"}, weight=w
    ),
}


class Varied(Moved):
    """Images moved by up to 2 pixels, every second one mirrored."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        x = x.reshape(-1, 28, 28, 1)
        mirrored = self.random.random((len(x), 1, 1, 1)) < 0.5
        return np.where(mirrored, x[:, :, ::-1], x), y


def network(widths, seed, dropout=(0.0, 0.0)):
    """Return two convolutions and a hidden layer, "inner", that answer with logits."""
    *filters, units = widths
    x = inputs = keras.Input((28, 28, 1))
    with seeded(seed):
        for width in filters:
            x = L.Conv2D(width, 3, padding="same", activation="relu")(x)
            x = L.Dropout(dropout[0])(L.MaxPooling2D()(x))
        x = L.Dense(units, activation="relu", name="inner")(L.Flatten()(x))
        x = L.Dense(10, dtype="float32")(L.Dropout(dropout[1])(x))
    model = keras.Model(inputs, x)
    model.compile("adam", LOSS)
    return model


def trained(model, data, epochs, rate, seed):
    model.compile(falling(epochs * steps(data), rate), LOSS)
    with seeded(seed):
        model.fit(*data, epochs=epochs, batch_size=BATCH_SIZE, verbose=0)
    return model


def steps(data):
    return -(-len(data[0]) // BATCH_SIZE)


def taught(teacher, student, data, method, options, seed):
    losses = []
    for part in method.split("+"):
        name, _, weight = part.partition("=")
        losses.append(METHODS[name](options.temperature, float(weight or 1)))
    with tempfile.TemporaryDirectory() as folder:
        return km.distill(
            teacher,
            student,
            data,
            losses=losses,
            hard_weight=options.hard_weight,
            optimizer=falling(options.epochs * steps(data), options.rate),
            cache=d.Cache(folder, dtype="float16"),
            seed=seed,
            epochs=options.epochs,
            batch_size=BATCH_SIZE,
            verbose=0,
        )


def compare(teacher, data, judged, options, seed):
    """Return the accuracy in percent by method and by epochs without a teacher."""
    student = network(options.student, seed)
    found = {}
    for method in options.methods:
        model = taught(teacher, student, data, method, options, seed)
        found[method] = percent(model, judged)
        print(f"seed {seed}: {method} {found[method]:.2f}", flush=True)
    start = student.get_weights()
    for epochs in options.alone:
        student.set_weights(start)
        trained(student, data, epochs, options.rate, seed)
        name = f"alone, {epochs} epochs"
        found[name] = percent(student, judged)
        print(f"seed {seed}: {name} {found[name]:.2f}", flush=True)
    return found


def percent(model, judged):
    return 100 - 100 * errors(model, *judged) / len(judged[0])


def read(path, *, choose):
    """Return images and labels to train on and to judge by."""
    with np.load(path) as file:
        x, y, xt, yt = (file[k] for k in ("x_train", "y_train", "x_test", "y_test"))
    x, xt = (each[..., None].astype("float32") / 255 for each in (x, xt))
    held = x[-HELD_OUT:], y[-HELD_OUT:]
    return (x[:-HELD_OUT], y[:-HELD_OUT]), held if choose else (xt, yt)


def main(options):
    keras.config.set_dtype_policy(options.dtype_policy)
    data, judged = read(options.data, choose=options.choose)

    def new_teacher():
        teacher, epochs = network(TEACHER, 0, options.dropout), options.teacher_epochs
        if not options.varied_teacher:
            return trained(teacher, data, epochs, 1e-3, 0)
        teacher.compile(falling(epochs * steps(data)), LOSS)
        with seeded(0):
            teacher.fit(Varied(*data, BATCH_SIZE, 0), epochs=epochs, verbose=0)
        return teacher

    teacher = kept(options.teacher, new_teacher)
    reached = percent(teacher, judged)
    print(f"teacher {reached:.2f}", flush=True)
    rows = [compare(teacher, data, judged, options, seed) for seed in options.seeds]
    mean = {name: statistics.mean(row[name] for row in rows) for name in rows[0]}
    sizes = [model.count_params() for model in (teacher, network(options.student, 0))]
    print(f"parameters {sizes}, ratio {np.divide(*sizes):.1f}")
    for method, epochs in itertools.product(options.methods, options.alone):
        alone = mean[f"alone, {epochs} epochs"]
        gain, gap = mean[method] - alone, reached - alone
        print(
            f"{method}: {mean[method]:.2f}, {gain:+.2f} of a gap of {gap:.2f} "
            f"to {alone:.2f} after {epochs} epochs alone"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="*", default=["logits", "features=1+logits"])
    parser.add_argument("--choose", action="store_true")
    parser.add_argument(
        "--alone", type=int, nargs="*", default=[10, 20, 80], metavar="EPOCHS"
    )
    parser.add_argument(
        "--teacher", metavar="FILE.keras", help="take it from there, or keep it there"
    )
    parser.add_argument("--student", type=int, nargs="+", default=STUDENT)
    parser.add_argument("--varied-teacher", action="store_true")
    parser.add_argument("--dtype-policy", default="mixed_bfloat16")
    parser.add_argument("--teacher-epochs", type=int, default=20)
    parser.add_argument("--dropout", type=float, nargs=2, default=[0.25, 0.5])
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--temperature", type=float, default=4.0)
    parser.add_argument("--hard-weight", type=float, default=0.1)
    main(parser.parse_args())
