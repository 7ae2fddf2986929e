"""What is advised is what has the least figure."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kerasmem.extras.litert.runtimes import advise
from kerasmem.records import (
    BatchTime,
    RuntimeComparison,
    RuntimeFigures,
)

pytestmark = pytest.mark.one_backend

SIZES = (1, 32)


def form(name, milliseconds=1.0, *, spread=0.0, needs_keras=False, **figures):
    low, high = milliseconds * (1 - spread), milliseconds * (1 + spread)
    times = tuple(
        BatchTime(size, size * milliseconds, size * low, size * high) for size in SIZES
    )
    return RuntimeFigures(
        name=name, how="", needs_keras=needs_keras, times=times, **figures
    )


@st.composite
def forms(draw):
    """As `compare_runtimes` gives them: the first is run by Keras and was made."""
    sizes = st.none() | st.integers(1, 10**9)
    found = []
    for number in range(draw(st.integers(1, 6))):
        is_keras = number == 0 or draw(st.booleans())
        if number and draw(st.booleans()) and draw(st.booleans()):
            found.append(
                RuntimeFigures(
                    name=str(number), how="", needs_keras=is_keras, reason="no"
                )
            )
            continue
        times = []
        for size in SIZES:
            low, mid, high = sorted(draw(st.floats(1e-3, 1e4)) for _ in range(3))
            times.append(BatchTime(size, mid, low, high))
        names = ("file_bytes", "weight_bytes", "process_bytes")
        figures = {name: draw(sizes) for name in names}
        found.append(
            RuntimeFigures(
                name=str(number),
                how="",
                needs_keras=is_keras,
                times=tuple(times),
                **figures,
            )
        )
    return found


def figure_of(use, runtime):
    """The figure that a piece of advice is about, None if the form has none."""
    if runtime.reason:
        return None
    if use.startswith("fastest"):
        if "without Keras" in use and runtime.needs_keras:
            return None
        return runtime.time(int(use.split()[-1])).milliseconds
    if use == "least weights in Keras":
        return runtime.weight_bytes if runtime.needs_keras else None
    names = {
        "least memory, runtime included": "process_bytes",
        "smallest file": "file_bytes",
    }
    return getattr(runtime, names[use])


@given(forms())
def test_the_advised_form_has_the_least_figure_of_all_that_have_one(runtimes):
    for advice in advise(runtimes):
        figures = {r.name: figure_of(advice.use, r) for r in runtimes}
        known = {name: figure for name, figure in figures.items() if figure is not None}
        assert known[advice.name] == min(known.values())
        assert advice.name not in advice.others
        assert set(advice.others) < set(known)
        assert advice.name in advice.sentence


@given(forms())
def test_there_is_advice_for_every_use_that_a_form_has_a_figure_of(runtimes):
    uses = [
        "fastest, batch of 1",
        "fastest, batch of 32",
        "least memory, runtime included",
        "smallest file",
        "fastest without Keras, batch of 1",
        "least weights in Keras",
    ]
    told = [use for use in uses if any(figure_of(use, r) is not None for r in runtimes)]
    assert [advice.use for advice in advise(runtimes)] == told


@given(forms())
def test_a_form_with_an_equal_figure_is_never_called_worse(runtimes):
    for advice in advise(runtimes):
        figures = {r.name: figure_of(advice.use, r) for r in runtimes}
        equal = {n for n, f in figures.items() if f == figures[advice.name]}
        assert equal <= {advice.name, *advice.others}


def test_times_that_overlap_are_no_difference():
    slow, fast = form("slow", 1.0, spread=0.2), form("fast", 0.9, spread=0.2)
    assert advise([slow, fast])[0].others == ("slow",)
    slow, fast = form("slow", 2.0, spread=0.2), form("fast", 0.9, spread=0.2)
    assert advise([slow, fast])[0].others == ()


def test_resident_memory_within_five_percent_is_no_difference():
    first = form("first", process_bytes=104_000, needs_keras=True)
    second = form("second", process_bytes=100_000)
    third = form("third", process_bytes=106_000)
    (memory,) = [a for a in advise([first, second, third]) if "memory" in a.use]
    assert (memory.name, memory.others) == ("second", ("first",))


def test_a_sentence_tells_the_figure_that_of_the_model_and_what_it_costs():
    model = form("model", 2.0, needs_keras=True, file_bytes=4096, difference=0.0)
    small = form("small", 0.5, file_bytes=1024, difference=0.02)
    sentences = {advice.use: advice.sentence for advice in advise([model, small])}
    assert sentences["fastest, batch of 1"] == (
        "Fastest, batch of 1: small, 0.500 ms (model: 2.00 ms); outputs differ by up "
        "to 2 %."
    )
    assert sentences["smallest file"] == (
        "Smallest file: small, 1.00 KiB (model: 4.00 KiB); outputs differ by up to 2 %."
    )


def test_rounding_of_floats_is_not_called_a_difference():
    model, exact = (
        form("model", 2.0, needs_keras=True),
        form("exact", 1.0, difference=1e-6),
    )
    assert "differ" not in advise([model, exact])[0].sentence


@pytest.mark.parametrize("reason", ["", "LiteRT has no kernel for Foo"])
def test_the_record_goes_through_json(reason):
    runtimes = (form("a", needs_keras=True, file_bytes=3), form("b", reason=reason))
    comparison = RuntimeComparison(
        model="m",
        backend="jax",
        device="cpu",
        threads=1,
        samples=32,
        with_data=True,
        runtimes=runtimes,
        advice=advise(runtimes),
    )
    assert RuntimeComparison.from_json(comparison.to_json()) == comparison
    assert comparison.batch_sizes == SIZES
    assert comparison.runtimes[0].time(7) is None
