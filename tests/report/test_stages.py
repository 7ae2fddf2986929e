"""The stages of a command on stderr."""

import io
from typing import ClassVar

import keras
import pytest
from rich.console import Console

import kerasmem as km
from kerasmem import stages
from kerasmem.report import progress
from kerasmem.report.progress import StageProgress
from kerasmem.stages import shown_by, stage


class Clock:
    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def shown(**options):
    return Console(file=io.StringIO(), width=100, **options)


def test_without_a_terminal_a_long_stage_is_told_when_it_is_over(clock):
    console = shown()
    with StageProgress(console, "training") as show, shown_by(show):
        for name, seconds in {"a": 1, "b [x]": 3, "training": 9, "c": 4}.items():
            stage(name)
            stage(name, 1, 2)
            clock.now += seconds
    stage("after")
    assert console.file.getvalue() == "b [x]: 3.0 s\nc: 4.0 s\n"


class Recorded:
    """A timer that runs when it is told to."""

    timers: ClassVar[list] = []

    def __init__(self, seconds, function, arguments=()):
        self.seconds, self.run = seconds, lambda: function(*arguments)
        self.is_cancelled = self.daemon = False

    def start(self):
        self.timers.append(self)

    def cancel(self):
        self.is_cancelled = True


@pytest.fixture
def timers(monkeypatch):
    monkeypatch.setattr(stages, "Timer", Recorded)
    monkeypatch.setattr(Recorded, "timers", [])
    return Recorded.timers


def announcements(timers, capsys):
    assert all(timer.is_cancelled and timer.daemon for timer in timers)
    assert {timer.seconds for timer in timers} <= {10}
    capsys.readouterr()
    for timer in timers:
        timer.run()
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("verbose", [0, 1])
def test_compress_announces_each_stage_that_takes_ten_seconds(timers, capsys, verbose):
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    km.compress(model, km.Quantize("int8"), verbose=verbose)
    names = ["opening the model", "measuring the original model"]
    names += ["quantize", "writing the file", "measuring the compressed model"]
    expected = [f"kerasmem: {name} takes more than 10 s" for name in names]
    assert announcements(timers, capsys) == expected * verbose


def test_without_a_terminal_a_stage_is_announced_while_it_runs(timers, capsys):
    for console in (shown(), shown(force_terminal=True)):
        with StageProgress(console, "training") as show:
            for name in ("a", "a", "training", "b"):
                show(name)
    expected = [f"kerasmem: {name} takes more than 10 s" for name in "ab"]
    assert announcements(timers, capsys) == expected


def test_on_a_terminal_there_is_one_line_and_it_goes():
    console = shown(force_terminal=True)
    with pytest.raises(KeyboardInterrupt), StageProgress(console, "training") as show:
        show("quantize", 1 << 20, 4 << 20)
        show("training")
        assert not show._bar.live.is_started  # the training shows itself
        show("writing")
        assert show._bar.live.is_started
        raise KeyboardInterrupt
    assert not show._bar.live.is_started
    assert "quantize" in console.file.getvalue()
    assert "1.0/4.0 MiB" in console.file.getvalue()
