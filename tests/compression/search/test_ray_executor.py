"""Ray as an executor, shown with a stand-in for Ray: the suite runs without it."""

import os
import sys
import types
from concurrent.futures import BrokenExecutor, Future

import pytest

from kerasmem.errors import ConfigError
from kerasmem.extras.ray import RayExecutor

pytestmark = pytest.mark.one_backend


class RayTaskError(Exception):
    """As Ray tells what a task raised: in colors, with a traceback."""

    def __init__(self, cause):
        super().__init__(f"\x1b[36mray::run()\x1b[39m {cause}")
        self.cause = cause


class StandIn(types.ModuleType):
    """What of Ray is used; a task ends when its future is set."""

    exceptions = types.SimpleNamespace(RayTaskError=RayTaskError)

    def __init__(self, *, is_running):
        super().__init__("ray")
        self.is_running, self.put_there, self.tasks, self.ended = is_running, [], [], []

    def is_initialized(self):
        return self.is_running

    def init(self, **options):
        self.reports = os.environ["RAY_USAGE_STATS_ENABLED"]
        self.is_running = True

    def shutdown(self):
        self.is_running = False

    def cluster_resources(self):
        return {"CPU": 2.0}

    def put(self, value):
        self.put_there.append(value)
        return value

    def cancel(self, result, *, force):
        self.ended.append((result, force))

    def remote(self, function):
        return types.SimpleNamespace(options=lambda **options: self._Task(self))

    class _Task:
        def __init__(self, ray):
            self.ray = ray

        def remote(self, *args):
            done = Future()
            self.ray.tasks.append(done)
            return types.SimpleNamespace(future=lambda: done)


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.setitem(sys.modules, "ray", StandIn(is_running=False))
    return sys.modules["ray"]


def test_a_future_has_what_came_of_the_task(ray):
    with RayExecutor() as executor:
        futures = [executor.submit(print) for _ in range(3)]
        good, bad, lost = ray.tasks
        good.set_result(3)
        bad.set_exception(RayTaskError(ConfigError("one clear line")))
        lost.set_exception(OSError("the worker died"))
        assert futures[0].result() == 3
        with pytest.raises(ConfigError) as caught:
            futures[1].result()
        assert str(caught.value) == "one clear line"
        assert isinstance(caught.value.__cause__, RayTaskError)
        with pytest.raises(BrokenExecutor, match="the worker died"):
            futures[2].result()


def test_a_cancelled_future_ends_its_task(ray):
    with RayExecutor() as executor:
        first, second = (executor.submit(print) for _ in range(2))
        ray.tasks[0].set_result(None)
        assert not first.cancel()
        assert second.cancel()
        ((_, force),) = ray.ended
        assert force
        ray.tasks[1].set_exception(RayTaskError(KeyboardInterrupt()))  # too late
        assert second.cancelled()


def test_one_object_is_sent_once(ray):
    parcel = bytearray(3)
    with RayExecutor() as executor:
        executor.submit(print, parcel, "a")
        executor.submit(print, parcel, "b")
    assert ray.put_there == [parcel, "a", "b"]


@pytest.mark.parametrize("is_running", [False, True])
def test_a_cluster_ends_if_it_was_started_here(ray, is_running):
    ray.is_running = is_running
    with pytest.raises(ZeroDivisionError), RayExecutor():
        assert ray.is_running
        1 / 0  # noqa: B018
    assert ray.is_running == is_running


@pytest.mark.parametrize(("chosen", "reports"), [(None, "0"), ("1", "1")])
def test_a_cluster_reports_nothing_unless_asked_to(ray, monkeypatch, chosen, reports):
    if chosen is not None:
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", chosen)
    with RayExecutor():
        assert ray.reports == reports
        assert os.environ.get("RAY_USAGE_STATS_ENABLED") == chosen


def test_a_cluster_that_does_not_start_leaves_the_environment(ray, monkeypatch):
    def fail(**options):
        raise OSError("no port is free")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(OSError, match="no port"):
        RayExecutor()
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ
