"""Keras's Distiller and kerasmem's, on the same student, in turns."""

import time
from importlib.metadata import version

import keras

import kerasmem as km
from tests.benchmarks.peers.networks import (
    BATCH_SIZE,
    accuracy,
    compiled,
    falling_rate,
    fit,
    network,
    trained_network,
)
from tests.benchmarks.peers.row import Row

TOOL, PACKAGE = "kerasmem", "kerasmem"
TEMPERATURE, LABELS = 4.0, 0.1
OWN, SAME = "temperature 3, labels 0.5 (its defaults)", "temperature 4, labels 0.1"


def kerases(teacher, student, data, temperature, labels):
    loss = keras.distillation.LogitsDistillation(temperature=temperature)
    distiller = keras.distillation.Distiller(
        teacher, student, loss, student_loss_weight=labels
    )
    return distiller, data


def kerasmems(teacher, student, data, cache=None):
    losses = km.distillation.Logits(temperature=TEMPERATURE)
    distiller = km.Distiller(teacher, student, losses=losses, hard_weight=LABELS)
    if cache is not None:
        data, _ = distiller.answered(data, None, cache)
    return distiller, data


def distilled(task, name, job):
    data, test = task.images()
    teacher = trained_network(task, name, keras)
    keras.utils.set_random_seed(1)
    start = network(name, keras, scale=0.25)
    students = [network(name, keras, scale=0.25) for _ in range(4)]
    for student in students:
        student.set_weights(start.get_weights())
    cache = km.distillation.Cache(task.path(f"answers_{name}"))
    kept = f"{SAME}, answers kept"
    runs = {
        ("Keras Distiller", OWN): kerases(teacher, students[0], data, 3.0, 0.5),
        ("Keras Distiller", SAME): kerases(
            teacher, students[1], data, TEMPERATURE, LABELS
        ),
        ("kerasmem", SAME): kerasmems(teacher, students[2], data),
        ("kerasmem", kept): kerasmems(teacher, students[3], data, cache),
    }
    seconds = {key: [] for key in runs}
    for distiller, _ in runs.values():
        compiled(distiller, keras, falling_rate(task, keras))
    for _ in range(task.epochs):
        for key, (distiller, given) in runs.items():
            started = time.process_time()
            fit(distiller, given, 1)
            seconds[key].append(time.process_time() - started)
    steps = -(-len(data[0]) // BATCH_SIZE)
    for (tool, form), student in zip(runs, students, strict=True):
        release = version(PACKAGE if tool == TOOL else "keras")
        yield Row(
            name,
            job,
            tool=f"{tool} {release}",
            form=form,
            accuracy=accuracy(student, keras, test),
            step_ms=1000 * min(seconds[tool, form]) / steps,
        )


JOBS = {"distill": distilled}
