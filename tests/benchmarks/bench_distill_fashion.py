"""Does a student learn more from the demo's teacher than from the labels alone?

Run by hand, about 6 minutes on 2 cores:

    python tests/benchmarks/bench_distill_fashion.py [--seeds 0 1 2]

For every seed the demo's student is trained twice from the same first weights, on the
same images, in the same order, for as many steps: once on the labels, once by
`km.distill`. Both are judged on the demo's 2,000 test images.
"""

import argparse
import os
import statistics

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from kerasmem.backends.seeding import seeded
from kerasmem.compression.distill import distill
from kerasmem.demo.recipe import (
    Recipe,
    compile_classifier,
    falling_rate,
    mirrored_demo_data,
    residual_network,
)
from kerasmem.graph.clone import clone

RECIPE = Recipe()
TRAIN, TEST = mirrored_demo_data()


def network(widths, seed, dropout=0.0):
    with seeded(seed):
        model = residual_network((28, 28), 10, widths, dropout)
    return compile_classifier(model, RECIPE.learning_rate)


def accuracy(model):
    found = model.evaluate(*TEST, batch_size=500, verbose=0, return_dict=True)
    return found["accuracy"]


def trained_alone(model, *, epochs, batch_size, seed):
    with seeded(seed):
        model = clone(model)
        model.fit(
            *TRAIN,
            epochs=epochs,
            batch_size=batch_size,
            callbacks=[falling_rate(RECIPE.learning_rate, epochs)],
            verbose=0,
        )
    return model


def taught(teacher, student, seed):
    return distill(
        teacher,
        student,
        TRAIN,
        epochs=RECIPE.student_epochs,
        batch_size=RECIPE.student_batch_size,
        temperature=RECIPE.temperature,
        hard_weight=RECIPE.hard_weight,
        callbacks=[falling_rate(RECIPE.learning_rate, RECIPE.student_epochs)],
        verbose=0,
        seed=seed,
    )


def compare(teacher, seed):
    """Return the accuracies of one student, trained alone and taught."""
    student = network(RECIPE.student_widths, seed)
    alone = trained_alone(
        student,
        epochs=RECIPE.student_epochs,
        batch_size=RECIPE.student_batch_size,
        seed=seed,
    )
    pair = accuracy(alone), accuracy(taught(teacher, student, seed))
    print(f"seed {seed}: alone {pair[0]:.4f}, distilled {pair[1]:.4f}", flush=True)
    return pair


def main(seeds):
    teacher = trained_alone(
        network(RECIPE.widths, RECIPE.seed, RECIPE.dropout),
        epochs=RECIPE.epochs,
        batch_size=RECIPE.batch_size,
        seed=RECIPE.seed,
    )
    print(f"teacher: {accuracy(teacher):.4f}", flush=True)
    pairs = [compare(teacher, seed) for seed in seeds]
    alone, distilled = (statistics.mean(column) for column in zip(*pairs, strict=True))
    print(
        f"mean of {len(pairs)}: alone {alone:.4f}, distilled {distilled:.4f}, "
        f"difference {distilled - alone:+.4f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    main(parser.parse_args().seeds)
