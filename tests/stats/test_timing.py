"""How long things take, on a clock of the test's own."""

import pytest

from kerasmem.stats import timing


class Clock:
    """Seconds that pass only when something is called."""

    now = 0.0

    def perf_counter(self):
        return self.now

    def call(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def found(clock, seconds, **limits):
    return timing.in_turns([lambda: clock.call(seconds)] * 2, **limits)


def test_two_turns_are_not_counted_and_three_always_are(clock):
    assert found(clock, 9.0) == [[9000.0] * 3] * 2
    assert clock.now == 2 * 5 * 9.0


def test_what_is_quick_has_its_turns(clock):
    assert [len(times) for times in found(clock, 0.01)] == [20, 20]


def test_a_limit_ends_it_with_the_second_turn_at_the_earliest(clock):
    assert found(clock, 9.0, limit=2.0) == [[9000.0]] * 2
    assert clock.now == 2 * 2 * 9.0


def test_a_limit_within_the_turns_that_count(clock):
    assert found(clock, 0.25, limit=2.0) == [[250.0] * 3] * 2
    assert clock.now == 2 * 5 * 0.25
