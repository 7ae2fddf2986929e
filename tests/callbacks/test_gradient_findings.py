"""Each fault of a run's gradients is told once, by the layer's name; health is not."""

import math

from kerasmem.callbacks.gradient_findings import GradientFindings, layer_of
from kerasmem.records import GradientRecord, VariableGradient


def variable(path, norm=1.0, zeros=0.0, ratio=1e-3, steps=5, nonfinite=0):
    return VariableGradient(
        path, steps, norm, norm, zeros, nonfinite, norm, norm, ratio, 4
    )


def record(*variables, epoch=0, norm=1.0, norm_max=2.0, nonfinite=0):
    return GradientRecord(epoch, 50, norm, norm_max, nonfinite, variables)


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
    assert finding.layer == "a/conv"
    assert finding.text == (
        "The gradient held NaN or infinity in 7 of 50 updates, first in step 17 of the "
        "epoch in a/conv. The weights took them over; the loss need not show it."
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
