"""What a search tries and takes, on models that are numbers."""

import itertools
import math
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasmem.compression.search import trials
from kerasmem.compression.search.significance import HeldOut
from kerasmem.compression.search.strategy import search
from kerasmem.compression.search.target import Target
from kerasmem.compression.search.trials import SearchTask
from kerasmem.compression.technique import Context
from kerasmem.errors import ModelError

pytestmark = pytest.mark.one_backend

FULL, PARTS = 100_000.0, 20
_BITS = {"float16": 0.5, "int8": 0.25, "int4": 0.125}


def kept(step):
    """The share of the file that a technique leaves."""
    plain = step.to_json()
    by_name = {
        "quantize": lambda: _BITS[plain["scheme"]],
        "cluster": lambda: 0.2,
        "prune": lambda: 1 - plain["sparsity"],
        "factorize": lambda: plain["rank_ratio"],
        "prune_channels": lambda: 1 - plain["ratio"],
    }
    return by_name[plain["technique"]]()


class World:
    """Models whose accuracy falls with what is gone, and rises again in training.

    Args:
        hurts: by how much the accuracy falls if all is gone, by technique.
        heals: share of that which training takes back.
        grows: how many times larger a file becomes by training.
        refuses: a technique that cannot be applied.
    """

    def __init__(self, hurts, heals=0.5, grows=1.0, refuses=None):
        self.hurts, self.heals, self.grows = hurts, heals, grows
        self.refuses = refuses

    def run_steps(self, original, steps, training):
        if any(step.name == self.refuses for step in steps):
            raise ModelError("it cannot be done")
        return (steps, training.epochs > 0), []

    def costs(self, names, model, *rest):
        steps, trained = model
        size = FULL * math.prod(map(kept, steps)) * (self.grows if trained else 1)
        return dict.fromkeys(names, size)

    def metrics_by_part(self, model, held):
        steps, trained = model
        lost = sum(self.hurts[step.name] * (1 - kept(step)) ** 4 for step in steps)
        lost *= 1 - self.heals if trained else 1
        noise = [1e-3 * (-1) ** part for part in range(PARTS)] if steps else [0] * PARTS
        return [{"loss": 1.0, "accuracy": 0.9 - lost + n} for n in noise]

    def search(self, *, until=math.inf, epochs=1, **wanted):
        with pytest.MonkeyPatch.context() as patch:
            for name in ("run_steps", "costs", "metrics_by_part"):
                patch.setattr(trials, name, getattr(self, name))
            looks = itertools.count()
            clock = SimpleNamespace(monotonic=lambda: float(next(looks)))
            patch.setattr(trials, "time", clock)
            fit = {"callbacks": [], "batch_size": 1, "verbose": 0}
            task = SearchTask(
                original=None,
                target=Target(wanted.get("target", {})),
                max_drop=wanted.get("max_drop"),
                context=Context(None, fit, epochs, 0),
                held=HeldOut((), 4000, 200, 200),
                final_samples=4000,
                until=until,
            )
            best, report = search(task)
        assert best.trial.steps == report.trials[report.chosen].steps
        return report


TECHNIQUES = ("quantize", "cluster", "prune", "factorize", "prune_channels")
worlds = st.builds(
    World,
    st.fixed_dictionaries(dict.fromkeys(TECHNIQUES, st.floats(0, 0.8))),
    st.floats(0, 1),
    st.floats(1, 1.2),
    st.sampled_from((None, *TECHNIQUES)),
)
drops = st.one_of(st.none(), st.floats(0.01, 0.3))


def keeps(trial, max_drop):
    return max_drop is None or trial.worst_drop <= max_drop


@settings(max_examples=20)
@given(worlds, st.floats(0.001, 1.2), drops)
def test_with_a_target_it_takes_what_meets_it_and_loses_least(world, share, max_drop):
    report = world.search(target={"file_bytes": share * FULL}, max_drop=max_drop)
    tried, chosen = report.trials, report.trials[report.chosen]
    done = [t for t in tried if t.over <= 1 and keeps(t, max_drop)]
    assert report.is_met == bool(done)
    if done:
        assert chosen.worst_drop == min(trial.worst_drop for trial in done)
    else:
        assert chosen.over == min(t.over for t in tried if keeps(t, max_drop))
    assert keeps(chosen, max_drop)


@settings(max_examples=20)
@given(worlds, st.floats(0.01, 0.3))
def test_without_a_target_it_takes_the_smallest_that_does_its_job(world, max_drop):
    report = world.search(max_drop=max_drop)
    kept_up = [trial for trial in report.trials if keeps(trial, max_drop)]
    assert report.is_met
    assert report.trials[report.chosen].over == min(trial.over for trial in kept_up)
    for trial in report.trials:
        beaten = any(
            other.over <= trial.over
            and other.worst_drop <= trial.worst_drop
            and (other.over, other.worst_drop) != (trial.over, trial.worst_drop)
            for other in report.trials
        )
        assert trial.on_front != beaten
    refused = world.refuses
    names = {"quantize": "int8", "prune_channels": "channels"}
    if refused is not None:
        assert report.left_out[names.get(refused, refused)] == "it cannot be done"


@settings(max_examples=20)
@given(worlds, st.integers(0, 120), drops)
def test_whenever_the_time_is_up_the_best_so_far_is_returned(world, until, max_drop):
    limit = {"file_bytes": 0.3 * FULL}
    report = world.search(target=limit, max_drop=max_drop, until=until)
    assert keeps(report.trials[report.chosen], max_drop)
    assert len(report.trials) <= until / 2 + 1
    if until == 0:
        assert [trial.name for trial in report.trials] == ["unchanged"]
        assert report.stopped == "time ran out"


def test_a_model_that_meets_the_target_as_it_is_stays_so():
    report = World(dict.fromkeys(TECHNIQUES, 0.1)).search(target={"flops": 2 * FULL})
    assert [trial.name for trial in report.trials] == ["unchanged"]


def test_only_the_three_that_lose_least_are_trained():
    hurts = dict(zip(TECHNIQUES, (0.01, 0.02, 0.3, 0.5, 0.6), strict=True))
    report = World(hurts).search(target={"file_bytes": 0.15 * FULL})
    trained = [trial for trial in report.trials if trial.epochs]
    looks = [t for t in report.trials[1:] if not t.epochs and t.name != "int4"]
    looks.sort(key=lambda trial: trial.worst_drop)
    assert {trial.name for trial in trained} == {trial.name for trial in looks[:3]}


def test_a_file_that_grows_in_training_is_made_smaller_once_more():
    world = World(dict.fromkeys(TECHNIQUES, 0.5), heals=0.95, grows=1.1)
    report = world.search(target={"file_bytes": 0.3 * FULL})
    again = [t for t in report.trials if t.epochs and t.name == "channels"]
    again += [t for t in report.trials if t.epochs and t.name == "prune"]
    assert any(trial.over > 1 for trial in again)
    assert report.trials[report.chosen].over <= 1
    assert report.trials[report.chosen].epochs == 1


def test_without_epochs_nothing_is_trained():
    report = World(dict.fromkeys(TECHNIQUES, 0.1)).search(max_drop=0.05, epochs=0)
    assert not any(trial.epochs for trial in report.trials)
