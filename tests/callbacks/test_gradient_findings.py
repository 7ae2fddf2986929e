"""Each fault of a run's gradients is told once, by the layers' names; health is not."""

import math

import pytest

from kerasmem.callbacks.gradient_findings import GradientFindings
from kerasmem.callbacks.gradient_signs import LearningRate, layer_of, layer_words
from kerasmem.errors import InputError
from kerasmem.records import Finding, GradientRecord, VariableGradient

pytestmark = pytest.mark.one_backend

FAR_TOO_LARGE = LearningRate(1000.0, "SGD", usual=0.01)
USUAL = LearningRate(0.01, "SGD", usual=0.01)


def variable(path, norm=1.0, zeros=0.0, ratio=1e-3, steps=5, nonfinite=0):
    return VariableGradient(
        path, steps, norm, norm, zeros, nonfinite, norm, norm, ratio, 4
    )


def record(*variables, epoch=0, norm=1.0, norm_max=2.0, nonfinite=0, **figures):
    figures = {"norm_first": 1.0, "norm_last": 1.0} | figures
    return GradientRecord(epoch, 50, norm, norm_max, nonfinite, variables, **figures)


def told(*records, **figures):
    findings = GradientFindings("GradientMonitor")
    return [
        (finding.kind, finding.layer, finding.epoch)
        for each in records
        for finding in findings.after_epoch(each, **figures)
    ]


def test_healthy_gradients_are_not_worth_a_word():
    layers = [variable(f"dense_{n}/kernel", norm=10.0**-n) for n in range(5)]
    falling = [record(*layers, epoch=n, norm=1 / (n + 1)) for n in range(9)]
    assert told(*falling) == []


def test_a_layer_whose_gradients_are_all_zero_is_dead_and_told_once():
    dead = [variable(f"a/dense/{w}", 0.0, 1.0, 0.0) for w in ("kernel", "bias")]
    epochs = [record(*dead, variable("b/kernel"), epoch=n) for n in range(3)]
    assert told(*epochs) == [("dead layer", "a/dense", 0)]


def test_a_layer_that_gets_some_gradient_is_alive():
    alive = [variable("dense/kernel", 0.0, 1.0), variable("dense/bias", 1e-9, 0.9)]
    assert told(record(*alive)) == []
    few = [variable("dense/kernel", 0.0, 1.0, steps=2)]
    assert told(record(*few)) == []


def test_a_millionth_of_the_largest_gradient_has_vanished():
    layers = [variable("first/kernel", 0.9e-6), variable("last/kernel", 1.0)]
    assert told(record(*layers)) == [("vanishing gradient", "first", 0)]
    layers = [variable("first/kernel", 1.1e-6), variable("last/kernel", 1.0)]
    assert told(record(*layers)) == []
    biases = [variable("first/bias", 1e-9), variable("last/kernel", 1.0)]
    assert told(record(*biases)) == []


def test_a_norm_far_above_the_epochs_before_has_exploded():
    usual = [record(variable("d/kernel"), epoch=n) for n in range(3)]
    burst = record(variable("d/kernel"), epoch=3, norm_max=101.0)
    assert told(*usual, burst) == [("exploding gradient", "d", 3)]
    assert told(*usual[:2], burst) == []  # two epochs tell no median
    assert told(*usual, record(variable("d/kernel"), epoch=3, norm_max=99.0)) == []


def test_an_update_larger_than_the_weights_is_told_after_the_first_epoch():
    epochs = [record(variable("d/kernel", ratio=1.5), epoch=n) for n in range(3)]
    assert told(*epochs) == [("too large update", "d", 1)]


def test_nonfinite_gradients_are_told_with_layer_and_step():
    findings = GradientFindings("GradientMonitor")
    (finding,) = findings.after_epoch(
        record(nonfinite=7), ["a/conv/kernel", "a/conv/bias"], 17
    )
    assert (finding.layer, finding.severity) == ("a/conv", "error")
    assert finding.text == (
        "The gradient contained NaN or infinity in 7 of 50 updates, first in step 18 "
        "of the epoch in a/conv. They changed the weights, although the loss may not "
        "show it."
    )
    assert findings.after_epoch(record(nonfinite=7), ["a/conv/bias"], 1) == []


def test_steps_that_loss_scaling_skipped_are_as_they_should_be():
    assert told(record(nonfinite=4), skipped_steps=4) == []
    assert told(record(nonfinite=4), skipped_steps=3) == [
        ("nonfinite gradient", None, 0)
    ]


def test_an_epoch_without_a_finite_norm_does_not_spoil_the_median():
    usual = [record(variable("d/kernel"), epoch=n) for n in range(3)]
    lost = record(variable("d/kernel"), norm=math.nan, norm_max=math.nan, epoch=3)
    burst = record(variable("d/kernel"), epoch=4, norm_max=500.0)
    assert told(*usual, lost, burst) == [("exploding gradient", "d", 4)]


def test_a_variable_without_a_layer_stands_for_itself():
    assert layer_of("kernel") == "kernel"


def test_layers_that_follow_each_other_are_told_as_a_range():
    order = list("abcdefghijklm")
    assert layer_words({"a"}, order) == "a"
    assert layer_words({"a", "b"}, order) == "layers a, b"
    assert layer_words({"b", "c", "d", "g"}, order) == "layers b to d, g"
    assert layer_words(set("acegikm"), order) == "layers a, c, e, g and 3 more"


def sigmoids(vanished, layers=20, **figures):
    norms = [1e-9 * (i + 1) if i in vanished else 1.0 for i in range(layers)]
    variables = [variable(f"deep/dense_{i}/kernel", n) for i, n in enumerate(norms)]
    return record(*variables, **figures)


def test_layers_that_vanish_together_are_one_finding_without_the_models_name():
    findings = GradientFindings("GradientMonitor")
    findings.start_fit("deep")
    (finding,) = findings.after_epoch(sigmoids(range(3, 14)))
    assert finding.text == (
        "The gradient norms of layers dense_3 to dense_13 are 4e-09 to 1.4e-08, "
        "compared with 1 in dense_0: these 11 layers hardly train. Use other "
        "activations, normalization or skip connections."
    )
    assert finding.layer is None
    assert finding.layers == tuple(f"dense_{i}" for i in range(3, 14))
    assert Finding.from_json(finding.to_json()) == finding


def test_a_severity_that_is_none_is_refused():
    line = Finding("a", "b", 0, None, "c").to_json()
    with pytest.raises(InputError, match="one of error, warning, note. Received"):
        Finding.from_json(line.replace('"warning"', '"awful"'))


def test_a_range_that_only_grows_is_not_told_again_but_another_one_is():
    epochs = [sigmoids({1, 2}), sigmoids({1, 2, 3}, epoch=1)]
    elsewhere = sigmoids({1, 2, 3, 9}, epoch=2)
    assert told(*epochs, elsewhere) == [
        ("vanishing gradient", None, 0),
        ("vanishing gradient", "deep/dense_9", 2),
    ]


def diverging(ratio, layers=3, **figures):
    variables = [variable(f"d_{i}/kernel", ratio=ratio) for i in range(layers)]
    return record(*variables, **figures)


def test_a_divergence_in_the_first_epoch_is_told_with_the_learning_rate():
    lost = diverging(1.2e9, norm_max=5.6e16, nonfinite=48)
    findings = GradientFindings("GradientMonitor")
    (finding,) = findings.after_epoch(
        lost, ["d_0/kernel"], first_nonfinite=2, rate=FAR_TOO_LARGE
    )
    assert finding.text == (
        "The learning rate of 1000 is far too large. In epoch 1 an update of d_0 was "
        "1.2e+09 times as large as its weights (about 0.001 is healthy), the "
        "gradient norm rose from 1 to 5.6e+16 and the gradient contained NaN or "
        "infinity from step 3. Keras's default for SGD is 0.01. The weights are lost: "
        "restart from an earlier checkpoint."
    )
    assert (finding.kind, finding.severity) == ("divergence", "error")


@pytest.mark.parametrize(
    "figures",
    [
        {"norm_max": 1e4},
        {"norm_last": 0.0},  # every ReLU is dead
        {"ratio": 12.0},
        {"epoch": 7, "ratio": 12.0},
    ],
)
def test_what_follows_from_a_divergence_is_not_told(figures):
    lost = diverging(**{"ratio": 4.0} | figures)
    dead = [variable(f"d_{i}/kernel", 0.0, 1.0, 0.0) for i in range(3)]
    after = [record(*dead, epoch=n, norm=0.0, norm_last=0.0) for n in range(8, 11)]
    assert told(lost, *after) == [("divergence", None, lost.epoch)]


def test_a_usual_learning_rate_is_not_blamed():
    (finding,) = GradientFindings("m").after_epoch(
        diverging(50.0, norm_max=1e9), rate=USUAL
    )
    assert "0.01, which is not unusual for SGD" in finding.text
    assert "Inputs or targets with a scale far from 1" in finding.text


def test_another_fit_after_a_divergence_is_looked_at_anew():
    findings = GradientFindings("m")
    findings.after_epoch(diverging(50.0, norm_max=1e9))
    findings.start_fit("model")
    assert findings.after_epoch(sigmoids({1}))[0].kind == "vanishing gradient"
    (again,) = findings.after_epoch(diverging(50.0, norm_max=1e9))
    assert again.kind == "divergence"


@pytest.mark.parametrize(
    "healthy",
    [
        diverging(0.9, norm_max=1e4),  # a first epoch in which the gradient grew
        diverging(2.0),  # weights that begin near zero
        diverging(400.0, layers=1),  # a linear fit to large targets: norms fall
        diverging(0.01, norm=1e9, norm_first=1e9, norm_max=2e9),  # targets of 1e6
        record(variable("a/kernel", ratio=400.0), variable("b/kernel"), norm_max=9.0),
    ],
)
def test_what_only_looks_like_a_divergence_is_not_called_one(healthy):
    assert "divergence" not in {kind for kind, *_ in told(healthy)}


def test_an_absurd_norm_needs_no_epochs_before_it():
    assert told(record(variable("d/kernel"), norm_max=1.1e4)) == [
        ("exploding gradient", "d", 0)
    ]
    assert told(record(variable("d/kernel"), norm_max=0.9e4)) == []
    second = record(variable("d/kernel"), norm_max=1.1e4, norm_first=1e4, epoch=1)
    assert told(record(variable("d/kernel")), second) == [
        ("exploding gradient", "d", 1)
    ]


def test_an_absurd_update_is_told_in_the_first_epoch():
    (finding,) = GradientFindings("m").after_epoch(
        record(variable("a/kernel", ratio=400.0, steps=1), variable("b/kernel")),
        rate=FAR_TOO_LARGE,
    )
    assert (finding.kind, finding.layer) == ("too large update", "a")
    assert finding.text.endswith("Use a lower learning rate than 1000.")
