"""Ordinary trainings give no finding; the benchmark of this name has twenty."""

import pytest

from tests.benchmarks.bench_false_alarms import findings


@pytest.mark.parametrize("name", ["batch normalization", "cached rows", "several fits"])
def test_an_ordinary_training_gives_no_finding(name):
    assert findings(name) == []
