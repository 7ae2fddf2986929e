"""What is recommended follows from the figures, and never from their noise."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.extras.tune.advice import combined, noise, recommendation
from kerasmem.records import VariantFigures
from kerasmem.units import MIB

pytestmark = pytest.mark.one_backend


def run(name, *, ms=100.0, mib=100, spread=0.02, source="measured", samples=32):
    return VariantFigures(
        name=name,
        how=f"how to {name}",
        batch_size=samples,
        peak_bytes=round(mib * MIB),
        peak_low_bytes=round(0.99 * mib * MIB),
        peak_source=source,
        first_step_ms=10 * ms,
        step_ms=ms,
        step_low_ms=(1 - spread) * ms,
        step_high_ms=(1 + spread) * ms,
        steps=10,
        samples_per_second=1e3 * samples / ms,
    )


def failed(name, reason):
    return VariantFigures(name=name, how=f"how to {name}", batch_size=32, reason=reason)


BASE = run("as compiled")


def test_the_fastest_that_needs_no_more_is_to_be_used_and_the_leanest_if_short():
    text = recommendation(
        [
            BASE,
            run("jit", ms=50, mib=101),
            run("big", ms=20, mib=300),
            run("accumulate", ms=150, mib=40),
        ],
        noise=0.01,
    )
    assert text == (
        "Use jit (how to jit): 2.00 times as fast (50.0 ms instead of 100 ms per "
        "step), "
        "with about as much memory. If memory is short, use accumulate (how to "
        "accumulate): a peak of 40.0 MiB instead of 100 MiB, at 1.50 times the "
        "step time."
    )


def test_what_is_faster_only_with_more_memory_is_said_to_need_it():
    text = recommendation([BASE, run("big", ms=20, mib=300)], noise=0.01)
    assert "if memory allows: 5.00 times as fast" in text
    assert "for a peak of 300 MiB instead of 100 MiB" in text
    assert text.endswith("No option needs clearly less memory.")


def test_one_option_that_does_both_is_told_once():
    text = recommendation([BASE, run("jit", ms=50, mib=50)], noise=0.0)
    assert text.endswith("with a peak of 50.0 MiB instead of 100 MiB.")
    assert text.count("jit") == 2


def test_estimates_are_called_so_and_of_two_methods_are_not_compared():
    planned = replace(BASE, peak_source="traced", peak_low_bytes=BASE.peak_bytes)
    lean = run("lean", mib=50, source="traced")
    assert "a peak of 50.0 MiB (estimated)" in recommendation([planned, lean], 0.0)
    other = run("lean", mib=50, source="analytic")
    assert "No option needs clearly less" in recommendation([planned, other], 0.0)


def test_memory_that_nobody_knows_is_compared_with_nothing():
    unknown = replace(
        run("jit", ms=20), peak_bytes=None, peak_low_bytes=None, peak_source=None
    )
    text = recommendation([BASE, unknown], noise=0.0)
    assert "per step), but its memory could not be compared. No option needs" in text
    assert combined(unknown, unknown).peak_bytes is None
    lost = failed("as compiled", "lost")
    assert "Use b (" in recommendation([lost, unknown, run("b")], noise=None)


def test_a_model_that_does_not_run_as_compiled_gets_what_runs():
    text = recommendation(
        [failed("as compiled", "out of memory"), run("a", mib=60), run("b", mib=50)],
        noise=None,
    )
    assert text.startswith(
        "The model as compiled does not run: out of memory. Use b (how to"
    )
    assert recommendation([failed("as compiled", "lost")], None) == (
        "No option ran. As compiled: lost"
    )


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    ms=st.floats(50, 200),
    spread=st.floats(0.0, 0.4),
    drift=st.floats(0.0, 0.4),
)
def test_nothing_within_the_spread_of_the_times_is_faster(ms, spread, drift):
    other = run("other", ms=ms, spread=spread)
    text = recommendation([BASE, other], noise=drift)
    overlaps = other.step_high_ms * (1 + drift) >= BASE.step_low_ms
    if overlaps or ms > 95:
        assert text.startswith(
            "Keep the current options: no other is faster beyond the"
        )
    elif ms < 95:
        assert text.startswith("Use other")


def test_two_runs_as_compiled_become_one_with_the_spread_of_both():
    slow, fast = run("a", ms=120, mib=100), run("a", ms=80, mib=90)
    assert noise(slow, fast) == pytest.approx(0.5)
    found = combined(slow, fast)
    assert (found.step_ms, found.steps) == (100, 20)
    assert found.step_low_ms == fast.step_low_ms
    assert found.step_high_ms == slow.step_high_ms
    assert (found.peak_low_bytes, found.peak_bytes) == (
        fast.peak_low_bytes,
        slow.peak_bytes,
    )
    assert found.samples_per_second == pytest.approx(320)


def test_one_of_two_runs_that_failed_leaves_the_other():
    gone = failed("a", "out of memory")
    assert combined(gone, BASE) == combined(BASE, gone) == BASE
    assert noise(gone, BASE) is None
