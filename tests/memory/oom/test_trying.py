"""The number of micro-batches by trials, against a device that is made up."""

import sys
from functools import partial

import pytest

from kerasmem import backends
from kerasmem.memory.batch_size import find_batch_size
from kerasmem.memory.batch_size.trial import Trial
from kerasmem.memory.estimate import estimate_memory
from kerasmem.memory.oom import Room, StepContext
from kerasmem.memory.oom.fitting import can_be_tried, try_micro_batches
from kerasmem.units import MIB

SUMS, OTHER = MIB, 2 * MIB


@pytest.fixture
def tried(model, monkeypatch):
    """Return a function of a trial by batch size: what trials of it come to."""

    environments = []

    def run(trial, **moment):
        asked = []

        def attempt(request, limit, environment, seconds):
            asked.append((request.batch_size, limit))
            environments.append(environment)
            return trial(request.batch_size, limit)

        monkeypatch.setattr(sys.modules[find_batch_size.__module__], "attempt", attempt)
        room = Room(limit_bytes=12 * MIB, other_bytes=OTHER, accumulator_bytes=SUMS)
        found = try_micro_batches(
            model,
            StepContext(**({"batch_size": 1024} | moment)),
            room,
            partial(estimate_memory, model, device="cpu"),
        )
        return found, asked

    run.environments = environments
    return run


def needs(factor):
    """Return trials of steps that need so many times as much as is estimated."""

    def trial(model, size, limit):
        peak = round(factor * estimate_memory(model, size, device="cpu").peak_bytes)
        return Trial(size, fits=peak <= limit.usable_bytes, peak_bytes=peak)

    return trial


@pytest.mark.one_backend
@pytest.mark.parametrize("factor", [0.8, 1.0, 1.5])
def test_what_it_names_was_seen_to_fit(tried, model, factor):
    found, asked = tried(partial(needs(factor), model))
    fits = {size for size, limit in asked if needs(factor)(model, size, limit).fits}
    assert found.fitting.is_tried
    assert found.fitting.micro_batches == -(-1024 // max(fits))
    # What ran is a batch of that many parts, with their peak, not a larger one.
    assert max(fits) == -(-1024 // found.fitting.micro_batches)
    peak = needs(factor)(model, max(fits), asked[0][1]).peak_bytes
    assert found.fitting.peak_bytes == peak + OTHER + SUMS <= 12 * MIB
    assert {limit.nbytes for _, limit in asked} == {9 * MIB}
    assert max(size for size, _ in asked) < 1024
    # What is half as large again as estimated is so for what else would help too.
    assert (found.fitting.correction > 1.2) == (factor == 1.5)


def test_trials_have_the_threads_of_this_process_and_a_tenth_to_spare(tried, model):
    _, asked = tried(partial(needs(1.0), model))
    (limit,) = {limit for _, limit in asked}
    fixed = 10 * limit.usable_bytes - 9 * limit.nbytes
    assert 0 < fixed < estimate_memory(model, 1, device="cpu").peak_bytes
    assert not any("THREADS" in name for each in tried.environments for name in each)


def test_a_size_that_makes_no_fewer_micro_batches_is_not_tried(tried):
    found, asked = tried(
        lambda size, limit: Trial(size, fits=size <= 341, peak_bytes=9 * MIB)
    )
    sizes = [size for size, _ in asked]
    assert all(size == -(-1024 // -(-1024 // size)) for size in sizes)
    assert found.fitting.micro_batches == -(-1024 // max(s for s in sizes if s <= 341))


def test_sizes_are_those_of_more_micro_batches():
    assert StepContext(batch_size=10).smaller_sizes() == [1, 2, 3, 4, 5]
    assert StepContext(batch_size=10, micro_batches=3).smaller_sizes() == [1, 2, 3]
    assert StepContext(batch_size=10, micro_batches=10).smaller_sizes() == [1]
    assert StepContext(batch_size=0).smaller_sizes() == [1]


@pytest.mark.one_backend
def test_of_several_replicas_one_is_tried_with_its_part(tried, model, monkeypatch):
    alone = estimate_memory(model, 250, device="cpu", jit_compile=False)
    monkeypatch.setattr(backends.current(), "sharing_of", lambda _: (4, 4))
    shared = estimate_memory(model, 1000, device="cpu", jit_compile=False)
    assert shared.peak_bytes == alone.peak_bytes
    sizes = []

    def trial(size, limit):
        sizes.append(size)
        return Trial(size, fits=True, peak_bytes=9 * MIB)

    found, _ = tried(trial, batch_size=1000)
    # As 2, 3, ... micro-batches of 500, 334, ... samples: a fourth of each at a time.
    assert set(sizes) <= {-(-size // 4) for size in sizes_of(1000)}
    assert found.fitting.micro_batches == 2
    assert max(sizes) == 125


def sizes_of(batch_size):
    return StepContext(batch_size=batch_size).smaller_sizes()


@pytest.mark.one_backend
def test_if_nothing_fits_there_is_no_number(tried):
    found, asked = tried(lambda size, limit: Trial(size, fits=False))
    assert found.fitting is None
    assert found.failed == -(-1024 // min(size for size, _ in asked)) > 1


@pytest.mark.one_backend
def test_what_was_tried_counts_when_time_is_up(tried):
    sizes = []

    def slow(size, limit):
        sizes.append(size)
        if len(sizes) == 2:
            raise TimeoutError("it took more than a minute")
        return Trial(size, fits=True, peak_bytes=5 * MIB)

    found, _ = tried(slow)
    assert found.fitting.micro_batches == -(-1024 // sizes[0])


@pytest.mark.one_backend
def test_without_a_trial_nothing_is_known(tried):
    def never(size, limit):
        raise TimeoutError("it took more than a minute")

    assert tried(never)[0] is None


def test_only_what_keeps_to_a_limit_is_tried(backend, monkeypatch):
    monkeypatch.delenv("TF_CPU_ALLOCATOR_USE_BFC", raising=False)
    assert not can_be_tried()
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "1")
    assert can_be_tried() == (backend == "tensorflow")
