"""Ordinary trainings give no finding; the benchmark of this name has twenty.

Each runs in a process of its own, as that of a user: the resident memory of a worker
of pytest, which holds thousands of tests, rises for reasons of its own.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["batch normalization", "cached rows", "several fits"])
def test_an_ordinary_training_gives_no_finding(name):
    command = [sys.executable, "-m", "tests.benchmarks.bench_false_alarms", name]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "nothing found" in ended.stdout, ended.stdout
    assert ", 0 with findings" in ended.stdout
