"""A model in few bits whose teacher is the float model."""

import keras
import numpy as np
from scipy.special import softmax

import kerasmem as km
from kerasmem.graph.values import to_numpy
from tests.models import L

X = np.random.default_rng(0).normal(size=(512, 16)).astype("float32")


def logits(model):
    return to_numpy(model(X, training=False)).astype("float64")


def divergence(model, teacher):
    """Return the KL divergence of a model's classes from a teacher's, in nats."""
    ours, theirs = softmax(logits(model), -1), softmax(logits(teacher), -1)
    return (theirs * np.log(theirs / ours)).sum(-1).mean()


def test_four_bits_learn_what_their_floats_say_without_labels():
    keras.utils.set_random_seed(0)
    layers = [L.Dense(32, "relu"), L.Dense(32, "relu"), L.Dense(5)]
    model = keras.Sequential([keras.Input((16,)), *layers])
    layers[-1].kernel.assign(6 * layers[-1].kernel)  # of one that is sure
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    int4 = km.Quantize("int4")
    student = km.quantization_aware(model, int4)
    falling = keras.optimizers.schedules.CosineDecay(1e-3, 20 * 16)
    student.compile(keras.optimizers.Adam(falling), loss)
    before = logits(student)
    taught = km.distill(
        model,
        student,
        X,
        losses=km.distillation.Logits(temperature=1.0),
        hard_weight=0.0,
        epochs=20,
        batch_size=32,
        seed=1,
        verbose=0,
    )
    small, nearest = (km.compress(m, int4, verbose=0).model for m in (taught, model))
    np.testing.assert_allclose(logits(small), logits(taught), atol=1e-4)
    np.testing.assert_array_equal(logits(student), before)
    assert divergence(small, model) < 0.5 * divergence(nearest, model)
