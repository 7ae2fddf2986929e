"""The search for a batch size, against devices that are made up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.errors import ConfigError
from kerasmem.memory.batch_size.find import TOLERANCE, BatchSizeSearch, _result
from kerasmem.memory.batch_size.trial import BatchSizeTrial

pytestmark = pytest.mark.one_backend

FIXED = 1000
LARGEST = 4096


def search(limit, per_sample, *, said, sizes=range(1, LARGEST + 1)):
    """Return a search on a device that needs `per_sample`, estimated as `said`."""

    def attempt(size):
        peak = FIXED + per_sample * size
        return BatchSizeTrial(size, peak <= limit, peak if peak <= limit else None)

    return BatchSizeSearch(
        predict=lambda size: FIXED + said * size,
        attempt=attempt,
        limit_bytes=limit,
        fixed_bytes=FIXED,
        sizes=sizes,
    )


@settings(max_examples=200, derandomize=True)
@given(
    fitting=st.integers(1, LARGEST - 1),
    per_sample=st.integers(50, 5000),
    error=st.floats(0.85, 1.5),
)
def test_the_batch_found_runs_and_a_little_more_does_not(fitting, per_sample, error):
    limit = FIXED + per_sample * fitting + per_sample // 2
    said = max(round(per_sample * error), 1)
    look = search(limit, per_sample, said=said)
    found = look.run()
    assert found <= fitting
    assert max(found + 1, int(TOLERANCE * found)) > fitting
    assert sum(not trial.fits for trial in look.trials) <= 2


def test_an_exact_estimate_takes_three_trials():
    look = search(FIXED + 100 * 640, 100, said=100)
    assert look.run() == 640
    assert [trial.fits for trial in look.trials] == [True, True, False]


def test_failures_do_not_end_the_search_before_a_batch_fits():
    look = search(FIXED + 100 * 10, 100, said=1)
    assert look.run() == 10
    assert [trial.fits for trial in look.trials] == [False] * 6 + [True]


def test_the_peak_of_a_batch_that_does_not_fit_leads_to_one_that_does():
    def attempt(size):
        peak = FIXED + 100 * size
        return BatchSizeTrial(size, peak <= FIXED + 1000, peak)

    look = search(FIXED + 1000, 100, said=1)
    look.attempt = attempt
    assert look.run() == 10
    assert [trial.fits for trial in look.trials] == [False, True, False]


def test_the_search_ends_at_the_smallest_size_if_nothing_fits():
    look = search(FIXED + 900, 1000, said=1)
    assert look.run() == 0
    assert [trial.batch_size for trial in look.trials][-2:] == [2, 1]


def test_the_expected_limit_is_above_the_one_that_is_too_small():
    limit, needed = FIXED + 900, FIXED + 1000
    look = search(limit, 1000, said=1, sizes=[1])
    look.attempt = lambda size: BatchSizeTrial(size, fits=False, peak_bytes=needed)
    assert look.run() == 0
    with pytest.raises(ConfigError, match=r"above 1\.95 KiB.*Received.*=1\.86 KiB"):
        _result(look, limit)


def test_no_batch_above_the_largest_is_tried():
    look = search(FIXED + 10**9, 1, said=1)
    assert look.run() == LARGEST
    assert max(trial.batch_size for trial in look.trials) == LARGEST


@settings(max_examples=200, derandomize=True)
@given(
    sizes=st.sets(st.integers(2, LARGEST), max_size=40),
    fitting=st.integers(1, LARGEST - 1),
    error=st.floats(0.5, 2),
)
def test_of_a_few_sizes_the_largest_that_fits_is_found(sizes, fitting, error):
    sizes = sorted({1} | sizes)
    limit = FIXED + 100 * fitting + 50
    look = search(limit, 100, said=round(100 * error), sizes=sizes)
    predict, asked = look.predict, set()
    look.predict = lambda size: asked.add(size) or predict(size)
    found = look.run()
    tried = [trial.batch_size for trial in look.trials]
    assert set(tried) | asked <= set(sizes)
    assert len(set(tried)) == len(tried)
    if sum(not trial.fits for trial in look.trials) < 2:
        # What is larger by no more than the tolerance may be left untried.
        assert max(size for size in sizes if size <= fitting) <= max(
            found, int(TOLERANCE * found)
        )
