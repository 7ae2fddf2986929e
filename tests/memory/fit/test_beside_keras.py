"""The history of `km.fit` is that of `model.fit`, in several forms of outputs."""

import pytest

from tests.benchmarks.bench_fit_beside_keras import LIMIT, differences, forms


@pytest.mark.parametrize("parts", [1, 3])
def test_losses_of_outputs_with_a_smaller_last_batch_equal_those_of_fit(parts):
    values = differences(forms()["dict"], parts)
    assert {"mse_loss", "val_cce_loss", "cce_mae"} < values.keys()
    assert max(values.values()) < LIMIT, values


def test_losses_of_keras_are_split_without_a_false_alarm():
    values = differences(forms()["every loss"], 3)
    assert len(values) > 40
    assert max(values.values()) < LIMIT, values
