"""The stages of a command on stderr."""

import io

import pytest
from rich.console import Console

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
