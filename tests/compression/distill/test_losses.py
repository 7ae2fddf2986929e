"""Every loss is that of its paper, and so is its gradient."""

import json
from dataclasses import replace

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.compression.distill.losses import (
    DIST,
    DKD,
    LOSSES,
    AttentionTransfer,
    Features,
    Logits,
    Relational,
    as_losses,
    loss_from_json,
)
from kerasmem.compression.distill.losses.base import Answers, OutputLoss
from kerasmem.compression.distill.losses.relations import KINDS
from kerasmem.errors import ConfigError
from kerasmem.graph.outputs import OutputTask
from tests.compression.distill import papers
from tests.compression.distill.gradients import by_backend, by_differences

LABELS = np.array([0, 2, 1, 3, 0, 2])
SCHEDULES = keras.optimizers.schedules
ON_OUTPUTS = [
    (Logits(temperature=papers.T), papers.logits),
    (DKD(temperature=papers.T), papers.dkd),
    (DIST(temperature=papers.T, beta=2.0, gamma=0.5), papers.dist),
]
ON_FEATURES = [
    (Features(), papers.features),
    (AttentionTransfer(), papers.attention_transfer),
    (Relational(kind="similarity"), papers.similarity_preserving),
    (Relational(kind="distance"), papers.relational_distance),
    (Relational(kind="angle"), papers.relational_angle),
    (Relational(kind="correlation"), papers.correlation),
    (Relational(kind="correlation", gamma=0.7, order=3), papers.correlation_third),
    (Relational(kind="neighbors"), papers.probabilistic),
]


def pair(shape, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype("float32") for _ in range(2)]


def on_outputs(loss, teacher, labels=LABELS):
    def value(student):
        tensor = keras.ops.convert_to_tensor(teacher)
        answers = Answers(
            OutputTask.CATEGORICAL, tensor, student, loss.temperature, labels
        )
        return keras.ops.mean(loss.distances(answers))

    return value


def on_features(loss, teacher):
    def value(student):
        return keras.ops.mean(
            loss.distances(keras.ops.convert_to_tensor(teacher), student)
        )

    return value


def named(cases):
    return pytest.mark.parametrize(
        ("loss", "paper"), cases, ids=[paper.__name__ for _, paper in cases]
    )


@named(ON_OUTPUTS)
def test_a_loss_on_outputs_is_that_of_its_paper(loss, paper):
    teacher, student = pair((6, 4))
    value = on_outputs(loss, teacher)
    expected = paper(teacher.astype("f8"), student.astype("f8"), LABELS)
    assert float(value(keras.ops.convert_to_tensor(student))) == pytest.approx(
        expected, rel=1e-5
    )
    found = by_backend(value, student)
    by_hand = by_differences(lambda s: paper(teacher.astype("f8"), s, LABELS), student)
    np.testing.assert_allclose(found, by_hand, rtol=1e-4, atol=2e-6)


@named(ON_FEATURES)
def test_a_loss_on_features_is_that_of_its_paper(loss, paper):
    teacher, student = pair((6, 2, 3, 4))
    value = on_features(loss, teacher)
    expected = paper(teacher.astype("f8"), student.astype("f8"))
    assert float(value(keras.ops.convert_to_tensor(student))) == pytest.approx(
        expected, rel=1e-5
    )
    found = by_backend(value, student)
    by_hand = by_differences(lambda s: paper(teacher.astype("f8"), s), student)
    np.testing.assert_allclose(found, by_hand, rtol=1e-4, atol=2e-6)


@named(ON_FEATURES)
def test_equal_features_are_at_distance_zero_with_a_finite_gradient(loss, paper):
    teacher, _ = pair((6, 2, 3, 4))
    value = on_features(loss, teacher)
    assert float(value(keras.ops.convert_to_tensor(teacher))) == pytest.approx(
        0, abs=2e-6
    )
    assert np.isfinite(by_backend(value, teacher)).all()


@pytest.mark.parametrize("name", sorted({*LOSSES, *KINDS}))
def test_features_and_answers_of_zeros_or_of_one_sample_give_finite_numbers(name):
    loss = Relational(kind=name) if name in KINDS else LOSSES[name]()
    for rows in (1, 4):
        zeros = np.zeros((rows, 2, 2, 3), "float32")
        if isinstance(loss, OutputLoss):
            value = on_outputs(loss, zeros[:, 0, 0], LABELS[:rows] % 3)
            gradient = by_backend(value, zeros[:, 0, 0])
        else:
            gradient = by_backend(on_features(loss, zeros), zeros)
        assert np.isfinite(gradient).all()


def test_dkd_with_equal_weights_of_right_and_wrong_is_logits():
    teacher, student = pair((6, 4))
    p = papers.softmax(teacher.astype("f8") / papers.T, -1)
    wrong = 1 - p[np.arange(6), LABELS]
    parts = [
        np.array(
            [
                papers.dkd(t[None], s[None], [label], alpha, beta)
                for t, s, label in zip(teacher, student, LABELS, strict=True)
            ]
        )
        for alpha, beta in ((1, 0), (0, 1))
    ]
    whole = np.mean(parts[0] + wrong * parts[1])
    loss = on_outputs(Logits(temperature=papers.T), teacher)
    assert float(loss(keras.ops.convert_to_tensor(student))) == pytest.approx(
        whole, rel=1e-5
    )


def test_labels_of_dkd_may_be_one_hot_or_a_column():
    teacher, student = pair((6, 4))
    tensor = keras.ops.convert_to_tensor(student)
    forms = [LABELS, LABELS[:, None], np.eye(4, dtype="float32")[LABELS]]
    values = [float(on_outputs(DKD(), teacher, form)(tensor)) for form in forms]
    assert values == pytest.approx([values[0]] * 3)


@pytest.mark.parametrize("kind", ["distance", "angle"])
@settings(max_examples=20, deadline=None, derandomize=True)
@given(scale=st.floats(0.5, 20), shift=st.floats(-5, 5))
def test_relations_do_not_feel_scale_and_place(kind, scale, shift):
    teacher, _ = pair((5, 6))
    moved = keras.ops.convert_to_tensor(teacher * np.float32(scale) + np.float32(shift))
    assert float(on_features(Relational(kind=kind), teacher)(moved)) == pytest.approx(
        0, abs=1e-4
    )


@pytest.mark.one_backend
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_loss_survives_json(name):
    given = {"weight": SCHEDULES.CosineDecay(2.0, 100)}
    falling = SCHEDULES.PolynomialDecay(8.0, 10, 1.0)
    given |= {"temperature": falling} if name in {"dkd", "logits"} else {}
    given |= {"layers": [("a", "b"), "c.*"]} if hasattr(LOSSES[name], "heads") else {}
    loss = LOSSES[name](**given)
    plain = json.loads(json.dumps(loss.to_json()))
    copy = loss_from_json(plain)
    assert copy.to_json() == plain
    assert float(copy.weight(50.0)) == pytest.approx(1.0)
    assert replace(copy, **given) == loss
    assert hash(loss) == hash(LOSSES[name](**given))


@pytest.mark.one_backend
def test_losses_come_as_objects_names_and_plain_data():
    assert as_losses("dkd") == (DKD(),)
    assert as_losses([Features(), {"loss": "dist", "beta": 3.0}]) == (
        Features(),
        DIST(beta=3.0),
    )


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Logits(temperature=0), "above 0. Received: temperature=0"),
        (
            lambda: Logits(temperature=SCHEDULES.PolynomialDecay(0.0, 9, 4.0)),
            "`temperature at step 0` of Logits must be .* above 0. Received: .*=0.0",
        ),
        (lambda: Logits(weight=lambda _: np.ones(2)), "weight at step 0` .*a number"),
        (
            lambda: DKD(weight=-1),
            "weight` of DKD must be a number at least 0. Received: weight=-1",
        ),
        (lambda: DKD(beta="8"), "beta` of DKD must be a number. Received: beta='8'"),
        (lambda: AttentionTransfer(power=0), "a number above 0"),
        (lambda: Relational(order=0), "Received: order=0"),
        (lambda: Relational(kind="angel"), "one of distance, angle, .* mean 'angle'"),
        (lambda: Relational(order=3), "need kind=.correlation.* kind='distance'"),
        (
            lambda: Features(layers=[("a", "b", "c")]),
            "pairs of a teacher and a student layer name",
        ),
        (lambda: as_losses([]), "one or more losses of km.distillation"),
        (lambda: as_losses(7), "Received: losses=7"),
        (lambda: as_losses("kd"), "one of logits, dkd, dist, .*loss='kd'"),
        (
            lambda: loss_from_json({"loss": "dkd", "gamma": 1}),
            "Unknown argument .gamma. of 'dkd'. Expected: weight",
        ),
        (
            lambda: loss_from_json({"loss": "dkd", "weight": {"schedule": "x"}}),
            "or a serialized LearningRateSchedule of Keras",
        ),
        (
            lambda: Logits(
                weight=keras.losses.serialize(keras.losses.MeanAbsoluteError())
            ),
            "serialized LearningRateSchedule of Keras. Received",
        ),
        (
            lambda: loss_from_json(Logits(weight=abs).to_json()),
            "Received: weight='<function abs>'",
        ),
    ],
)
def test_a_wrong_choice_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
