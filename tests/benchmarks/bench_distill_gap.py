"""How much of the gap to its teacher does a student of a tenth of the size close?

Run by hand, about 40 minutes of 2 cores at the defaults; JAX is fastest:

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_distill_gap FASHION.npz

The teacher has 1200-1200 units, dropout and max-norm constraints, the student 200-200
units, 1/12 of the parameters, and no regularization. From the same first weights, on
the same images, for as many steps, it is trained on the labels alone and with each
method of `--methods`.

With `--hold-out 10000` so many images to train on are judged by in place of the test
images: to choose settings with.
"""

import argparse
import os
import statistics
import tempfile

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import kerasmem as km
from kerasmem.backends.seeding import seeded
from tests.benchmarks.bench_distill_mnist import (
    LOSS,
    errors,
    falling,
    kept,
    network,
    read,
)

d = km.distillation
METHODS = {
    "logits": lambda t, w: d.Logits(temperature=t),
    "dkd": lambda t, w: d.DKD(temperature=t, alpha=1.0, beta=2.0),
    "dist": lambda t, w: d.DIST(temperature=t),
    "features": lambda t, w: d.Features(layers="auto", weight=w),
    "similarity": lambda t, w: d.SimilarityPreserving(weight=w),
    "correlation": lambda t, w: d.Correlation(weight=w),
    "contrastive": lambda t, w: d.Contrastive(weight=w),
    "transfer": lambda t, w: d.ProbabilisticKnowledgeTransfer(weight=w),
    "relational": lambda t, w: d.Relational(weight=w),
}


def trained_teacher(data, options):
    epochs, batch_size = options.teacher_epochs, options.batch_size
    teacher = network(1200, 0, options.dropout)
    teacher.compile(falling(epochs * -(-len(data[0]) // batch_size)), LOSS)
    with seeded(0):
        teacher.fit(*data[:2], epochs=epochs, batch_size=batch_size, verbose=0)
    return teacher


def taught(teacher, student, data, method, cache, options, seed):
    steps = -(-len(data[0]) // options.batch_size) * options.epochs
    name, _, weight = method.partition("=")
    names = name.split("+")
    losses = [METHODS[each](options.temperature, float(weight or 1)) for each in names]
    return km.distill(
        teacher,
        student,
        data[:2],
        losses=losses,
        hard_weight=options.hard_weight,
        optimizer=falling(steps),
        cache=cache,
        seed=seed,
        epochs=options.epochs,
        batch_size=options.batch_size,
        verbose=0,
    )


def compare(teacher, data, options, seed):
    """Return the accuracy in percent by method, that of the labels as "alone"."""
    x, y, *test = data
    student = network(200, seed)
    found = {}
    for method in options.methods:
        with tempfile.TemporaryDirectory() as folder:
            cache = d.Cache(folder, dtype="float16")
            model = taught(teacher, student, data, method, cache, options, seed)
        found[method] = percent(model, test)
        print(f"seed {seed}: {method} {found[method]:.2f}", flush=True)
    steps = -(-len(x) // options.batch_size) * options.epochs
    student.compile(falling(steps), LOSS)
    with seeded(seed):
        student.fit(
            x, y, epochs=options.epochs, batch_size=options.batch_size, verbose=0
        )
    found["alone"] = percent(student, test)
    print(f"seed {seed}: alone {found['alone']:.2f}", flush=True)
    return found


def percent(model, test):
    return 100 - 100 * errors(model, *test) / len(test[0])


def main(options):
    data = read(options.data, options.hold_out)
    teacher = kept(options.teacher, lambda: trained_teacher(data, options))
    reached = percent(teacher, data[2:])
    print(f"teacher {reached:.2f}", flush=True)
    rows = [compare(teacher, data, options, seed) for seed in options.seeds]
    mean = {name: statistics.mean(row[name] for row in rows) for name in rows[0]}
    sizes = [model.count_params() for model in (teacher, network(200, 0))]
    print(f"parameters {sizes}, ratio {np.divide(*sizes):.1f}")
    for method in options.methods:
        gain, gap = mean[method] - mean["alone"], reached - mean["alone"]
        print(f"{method}: {mean[method]:.2f}, {gain:+.2f} of a gap of {gap:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=["logits"])
    parser.add_argument(
        "--teacher", metavar="FILE.keras", help="take it from there, or keep it there"
    )
    parser.add_argument("--teacher-epochs", type=int, default=60)
    parser.add_argument("--dropout", type=float, nargs=2, default=[0.1, 0.3])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=4.0)
    parser.add_argument("--hard-weight", type=float, default=0.1)
    parser.add_argument("--hold-out", type=int, default=0, metavar="IMAGES")
    main(parser.parse_args())
