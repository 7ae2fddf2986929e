"""A student with its teacher, and the same net from nothing with as many steps."""

import keras

import kerasmem as km
from kerasmem.graph.clone import clone

RATES = (1e-3, 3e-3)


def compiled(model, steps, rate):
    """Return a model, compiled for logits of classes and a rate that falls to 0."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    falling = keras.optimizers.schedules.CosineDecay(rate, steps)
    optimizer = keras.optimizers.Adam(falling, global_clipnorm=1.0)
    model.compile(optimizer, loss, metrics=[], weighted_metrics=[])
    return model


def fit(model, data, batch_size):
    """Train a model once through inputs, labels and, where there are, weights.

    In the order that they have: KerasHub's tasks never shuffle.
    """
    x, y, *weights = data
    weights = weights[0] if weights else None
    options = {"batch_size": batch_size, "shuffle": False, "verbose": 0}
    model.fit(x, y, sample_weight=weights, **options)


def distilled(teacher, student, data, batch_size, hard_weight=0.5):
    """Return a compiled student, trained once through `data` by its teacher."""
    return km.distill(
        teacher,
        student,
        data,
        losses=km.distillation.Logits(temperature=1.0),
        hard_weight=hard_weight,
        batch_size=batch_size,
        seed=1,
        verbose=0,
    )


def rivals(teacher, student, data, steps, batch_size):
    """Yield trained nets with their names: the student, and its like from nothing.

    Args:
        teacher: a compiled model.
        student: a model, which is left as it is.
        data: inputs and labels, with sample weights or without, for `steps` batches.
        steps: how many.
        batch_size: samples in one.
    """
    for rate in RATES:
        own = compiled(clone(student), steps, rate)
        yield f"student, taught, {rate}", distilled(teacher, own, data, batch_size)
        keras.utils.set_random_seed(1)
        new = compiled(type(student).from_config(student.get_config()), steps, rate)
        fit(new, data, batch_size)
        yield f"the same net from nothing, {rate}", new
