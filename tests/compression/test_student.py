"""A student is made of its teacher, with the weights that matter most."""

import keras
import numpy as np
import pytest

from kerasmem.compression.student import make_student
from kerasmem.errors import ConfigError, ModelError


def teacher_of(*widths):
    hidden = [keras.layers.Dense(w, "relu") for w in widths]
    model = keras.Sequential([keras.Input((12,)), *hidden, keras.layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


@pytest.mark.parametrize("ratio", [0.5, 0.1])
def test_a_student_keeps_a_share_of_the_parameters(ratio):
    teacher = teacher_of(64, 48)
    before = [np.array(w) for w in teacher.get_weights()]
    student = make_student(teacher, ratio)
    share = student.count_params() / teacher.count_params()
    assert 0.8 * ratio < share <= ratio
    assert student.compiled
    for now, then in zip(teacher.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_student_has_the_weights_of_the_channels_it_keeps():
    teacher = teacher_of(16)
    student = make_student(teacher, 0.5, of="channels")
    kept = np.array(student.layers[0].get_weights()[0]).T
    all_units = np.array(teacher.layers[0].get_weights()[0]).T
    assert len(kept) == 8
    assert all((row == all_units).all(axis=1).any() for row in kept)


@pytest.mark.one_backend
@pytest.mark.parametrize("ratio", [0, 1, -1, "half", float("nan")])
def test_a_ratio_out_of_range_is_refused(ratio):
    with pytest.raises(ConfigError, match="of make_student must be a number"):
        make_student(teacher_of(8), ratio)


@pytest.mark.one_backend
def test_a_ratio_that_is_too_small_says_how_small_it_may_be():
    text = r"leaves 0\.0\d+% of the parameters.*with 0\.001% to keep"
    with pytest.raises(ModelError, match=text):
        make_student(teacher_of(512, 512), 0.00001)


@pytest.mark.one_backend
def test_a_teacher_without_channels_to_spare_is_refused():
    with pytest.raises(ModelError, match="has no channels that could be removed"):
        make_student(teacher_of(), 0.5)
