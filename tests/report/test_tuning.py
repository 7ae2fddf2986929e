"""What a tuning found, in words and cells."""

from dataclasses import replace

import pytest
from rich.console import Console

from kerasmem.records import Tuning, VariantFigures
from kerasmem.report.benchmarks import (
    failure_lines,
    spread_line,
    variants_table,
)
from kerasmem.units import MIB

pytestmark = pytest.mark.one_backend

RUN = VariantFigures(
    name="as compiled",
    batch_size=32,
    peak_bytes=3 * MIB,
    peak_low_bytes=3 * MIB,
    peak_source="measured",
    first_step_ms=1500.0,
    step_ms=20.0,
    step_low_ms=18.0,
    step_high_ms=26.0,
    samples_per_second=1600.0,
    on_front=True,
)
FOUND = Tuning(
    batch_size=32,
    backend="jax",
    device="cpu",
    jit_compile=True,
    dtype_policy="float32",
    variants=(RUN, VariantFigures(name="jit", batch_size=32, reason="no room")),
    noise=0.031,
    recommendation="",
)


def table(tuning):
    console = Console(width=150)
    with console.capture() as capture:
        console.print(variants_table(tuning))
    return " ".join(capture.get().split())


def test_a_line_has_the_figures_of_its_run_or_none():
    text = table(FOUND)
    assert "│ 3.00 MiB │ 20.0 ms │ 18.0 ms to 26.0 ms │ 1.50 s │ 1,600 │ yes │" in text
    assert "│ jit │ did not run │ │" in text
    assert failure_lines(FOUND) == "jit did not run: no room"


def test_an_estimated_peak_is_called_so_wherever_it_stands():
    one = replace(RUN, peak_source="traced")
    other = replace(RUN, name="jit off", peak_source="analytic")
    estimated = replace(FOUND, variants=(one, other))
    assert table(estimated).count("3.00 MiB est.") == 2
    text = spread_line(estimated)
    assert "The peaks are estimated (method 'traced'), not measured: jax does" in text
    assert "The peak of jit off is from another method ('analytic') and is not" in text
    unknown = replace(RUN, peak_bytes=None, peak_low_bytes=None, peak_source=None)
    assert "│ unknown │ 20.0 ms" in table(replace(FOUND, variants=(unknown,)))
    assert "estimated" not in spread_line(FOUND) + table(FOUND)


@pytest.mark.parametrize(("noise", "busy"), [(0.031, False), (0.3, True)])
def test_two_runs_far_apart_tell_of_a_busy_machine(noise, busy):
    text = spread_line(replace(FOUND, noise=noise))
    assert f"the times differ by {100 * noise:.1f} %." in text
    assert ("Repeat the measurement on an idle machine" in text) == busy
    assert "twice" not in spread_line(replace(FOUND, noise=None))
