"""Padding that an input named `padding_mask` tells of is learned by nobody."""

import keras
import numpy as np
import pytest

import kerasmem as km
from kerasmem.graph.values import to_numpy

L = keras.layers
LENGTH, CLASSES = 6, 5
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(0, 9, (8, LENGTH))
LABELS = RANDOM.integers(0, CLASSES, (8, LENGTH))
MASK = np.arange(LENGTH) < np.resize([[6], [4], [2]], (8, 1))


def network(width, *, dict_outputs=False):
    """Return a tagger of tokens whose padding mask changes no answer of its own."""
    keras.utils.set_random_seed(width)
    tokens = keras.Input((None,), dtype="int32", name="token_ids")
    mask = keras.Input((None,), dtype="bool", name="padding_mask")
    x = L.Embedding(9, width, keras.initializers.RandomNormal(stddev=1))(tokens)
    x = L.Dense(width, activation="relu", name="hidden")(x)
    y = L.Dense(CLASSES, name="tags")(x)
    if dict_outputs:
        y = {"tags": y, "whole": L.Dense(3)(L.GlobalAveragePooling1D()(x))}
    model = keras.Model({"token_ids": tokens, "padding_mask": mask}, y)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), None if dict_outputs else loss)
    return model


def data(*, other_padding=False):
    tokens, labels = TOKENS, LABELS
    if other_padding:
        tokens = np.where(MASK, tokens, (tokens + 3) % 9)
        labels = np.where(MASK, labels, (labels + 1) % CLASSES)
    return {"token_ids": tokens, "padding_mask": MASK}, labels


def soft(teacher, student):
    """Return T^2 KL of every token at T = 4, by NumPy."""
    exps = [np.exp(to_numpy(m(data()[0])) / 4) for m in (teacher, student)]
    p, q = (e / e.sum(-1, keepdims=True) for e in exps)
    return 16 * (p * np.log(p / q)).sum(-1)


def test_both_losses_are_those_of_the_tokens_alone():
    teacher, student = network(12), network(4)
    history = km.distill(teacher, student, data(), batch_size=8, verbose=0).history
    found = {name: values[0] for name, values in history.history.items()}
    assert found["distillation_loss"] == pytest.approx(
        soft(teacher, student)[MASK].mean(), rel=1e-4
    )
    logits = to_numpy(student(data()[0]))
    right = np.take_along_axis(logits, LABELS[..., None], -1)[..., 0]
    hard = np.log(np.exp(logits).sum(-1)) - right
    assert found["student_loss"] == pytest.approx(hard[MASK].mean(), rel=1e-4)


def test_what_stands_in_the_padding_changes_nothing():
    teachers = [network(12), network(10)]
    learned = [
        km.distill(
            teachers,
            network(4),
            data(other_padding=other),
            losses=[
                "logits",
                "features",
                km.distillation.Relational(kind="similarity"),
            ],
            batch_size=8,
            verbose=0,
            seed=0,
        )
        for other in (False, True)
    ]
    for one, other in zip(*(m.get_weights() for m in learned), strict=True):
        np.testing.assert_allclose(other, one, atol=1e-6)
    assert not np.array_equal(learned[0].get_weights()[0], network(4).get_weights()[0])


def test_weights_of_the_user_count_and_the_mask_does_not():
    teacher, student = network(12), network(4)
    weights = np.ones((8, LENGTH), "float32")
    taught = km.distill(teacher, student, (*data(), weights), batch_size=8, verbose=0)
    expected = soft(teacher, student).mean()
    found = taught.history.history["distillation_loss"][0]
    assert found == pytest.approx(expected, rel=1e-4)


def test_outputs_without_a_sequence_count_whole():
    teacher, student = network(12, dict_outputs=True), network(4, dict_outputs=True)
    x, _ = data()
    taught = km.distill(teacher, student, x, hard_weight=0, batch_size=8, verbose=0)
    answers = [m(x) for m in (teacher, student)]
    squares = {
        name: (to_numpy(answers[0][name]) - to_numpy(answers[1][name])) ** 2
        for name in ("tags", "whole")
    }
    found = taught.history.history["distillation_loss"][0]
    expected = squares["tags"][MASK].mean() + squares["whole"].mean()
    assert found == pytest.approx(expected, rel=1e-4)
