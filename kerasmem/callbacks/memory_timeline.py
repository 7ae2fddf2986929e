"""Where every byte goes during a few steps of a training."""

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from kerasmem import backends
from kerasmem.backends.profile import ProfilerUnavailableError
from kerasmem.callbacks.attachment import is_fitting
from kerasmem.callbacks.run_log import Guard, RunLog
from kerasmem.checks import invalid
from kerasmem.files.run_dir import add_timelines, run_name
from kerasmem.memory.timeline import timelines, watched, watched_again
from kerasmem.records import Finding, Run, Timeline
from kerasmem.report.plots import Plot, timeline_plot
from kerasmem.report.run import notebook_html, write_run_page
from kerasmem.types import Model


class MemoryTimeline(keras.callbacks.Callback):
    """A callback that records every block of memory of a few training steps.

    Each block has its bytes (asked for and given), its operation, the Keras layer,
    the phase of the step (forward, backward, optimizer, input) and a category
    (parameter, gradient, optimizer state, activation, temporary, input, unknown).
    The window ends with its epoch at the latest, and before a validation. If `fit` is
    broken off inside of it, as by out-of-memory, `finish()` reads what there is. A
    framework takes one profile at a time: of two in one fit, one that would begin while
    the other records gets the other's window.

    | backend | where it comes from |
    |---|---|
    | TensorFlow | its profiler; under jit XLA's plan for the compiled step too |
    | torch | its profiler, and on CUDA its memory snapshot |
    | JAX | XLA's plan for the compiled step; only with jit, Keras's default |

    On a CPU, TensorFlow tells nothing unless `TF_CPU_ALLOCATOR_USE_BFC=1` and
    `TF_ENABLE_ONEDNN_OPTS=0` are set before it is imported, as `kerasmem run
    --timeline SCRIPT.py` does. Under jit its allocator sees a step as one block without
    layers; what is in that block is a timeline of its own, XLA's plan as on JAX. With
    `run_eagerly=True` operations have no layers. On a CPU torch does not tell of what
    was there before but for the variables. A plan is that of one step; the time is the
    number of the instruction. The gradient of an Embedding comes as the rows that were
    looked up; the tables that TensorFlow's optimizer makes of them hold other things
    (its square, its part of a momentum) and are temporary.

    Cost: nothing outside of the window but a comparison per step. In the window
    TensorFlow writes some 50 KB a step into a temporary folder, which is deleted; at
    its end training waits until the profile is read, and an event takes about 1 KB of
    memory for that moment. Nothing is compiled for a plan: TensorFlow's profile brings
    it with it, and JAX remembers it. Training itself is the same, bit for bit.

    Args:
        steps: the steps to record, numbered from 0 over the whole `fit`. The first
            ones are unlike the others: slots are made, kernels are tuned.
        log_dir: folder in which the window becomes `timeline-0000.json.gz` (or the
            next number that is free), of 5 MB at most, and when the fit has ended
            `timeline-0000.html`, the page of it. Where there can be none, the reason
            becomes a finding in `findings.jsonl`.

    Attributes:
        timelines: one `Timeline` per allocator and plan, fullest first; of the latest
            `fit`.

    Raises:
        ConfigError: if `steps` is no range of consecutive steps.

    Example:
        >>> timeline = MemoryTimeline(steps=range(10, 12))
        >>> timeline.timelines
        []
    """

    async_safe = True  # it has no hook at the end of a batch

    def __init__(
        self,
        *,
        steps: range = range(2, 5),
        log_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        _check(steps)
        self.timelines: list[Timeline] = []
        self._steps = steps
        self._log_dir = log_dir
        self._guard = Guard("MemoryTimeline")
        self._log = RunLog(log_dir, self._guard)
        self._fitted: Any = None
        self._window: _Window | None = None
        self._is_waiting = False
        self._written: Path | None = None
        self._seen = self._before_epoch = self._epoch = 0

    def _repr_html_(self) -> str:
        return notebook_html(Run(timelines=tuple(self.timelines)))

    def plot(self) -> Plot:
        """Return a picture of the window by category: `.save(path)` writes it.

        Returns:
            A picture that a notebook shows; `.figure` is matplotlib's.

        Raises:
            ConfigError: if there is no timeline.
        """
        return timeline_plot(self.timelines)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Wait for the window."""
        self._drop()
        self._fitted = self.model
        # No window of this fit can be open yet: it is one of a fit that was broken off.
        self._drop_windows(lambda window: window.is_open_on(self._fitted))
        self._seen = 0
        self._is_waiting = True
        with self._guard("find out which process this is"):
            self._log.find_process(self._fitted)
        self._log.begin(self._fitted)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the steps over all epochs."""
        self._epoch = epoch
        self._before_epoch = self._seen

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Open or close the window."""
        if not self._is_waiting and self._window is None:
            return
        step = self._before_epoch + batch
        # Not `self.model`, which fetches all weights on JAX.
        self._seen = step + self._fitted.steps_per_execution
        if self._window is not None and step >= self._steps.stop:
            self._close(step)
        elif self._is_waiting and self._seen > self._steps.start:
            self._open(step)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Close the window: a validation is no training step."""
        self._close(self._seen)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Close the window."""
        self._close(self._seen)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Close the window, or say so if there was no such step."""
        if self._is_waiting:
            self._tell_why_missing(
                f"MemoryTimeline saw no step of its window: there were {self._seen} "
                "steps. Give it earlier ones, such as steps=range(0, 1)."
            )
        self._log.complete(self._fitted)
        self.finish()

    def finish(self) -> None:
        """Close the window, read it and write it down; a second call is a no-op.

        Needed only where `fit` was broken off inside of the window, as by
        out-of-memory: Keras tells a callback nothing of that.
        """
        self._close(self._seen)
        self._write_page()
        self._drop()

    def _write_page(self) -> None:
        file, self._written = self._written, None
        if file is not None:
            with self._guard("write the page of the timeline"):
                page = file.with_name(file.name.removesuffix(".json.gz"))
                name = run_name(file.parent)
                run = Run(timelines=tuple(self.timelines), name=name)
                write_run_page(run, page.with_suffix(".html"))

    def _open(self, step: int) -> None:
        self._is_waiting = False
        # There can be but one profile at a time, and the callback that took one may
        # live as long as it likes.
        self._drop_windows(lambda window: window.is_abandoned())
        with self._guard("take a profile"):
            try:
                self._window = _window_of(self._fitted) or _Window(
                    self, self._fitted, step
                )
            except ProfilerUnavailableError as error:
                self._tell_why_missing(f"{error} Training goes on.")

    def _close(self, step: int) -> None:
        window, self._window = self._window, None
        if window is None:
            return
        with self._guard("read the profile"):
            self.timelines, problems = window.close(step)
            if window.end < min(step, self._steps.stop):
                problems = [*problems, _cut_short(window, self._steps)]
            if problems:
                self._guard.warn(" ".join(problems))
        if self.timelines and self._log_dir is not None:
            with self._guard("write the timeline"):
                folder, process = Path(self._log_dir), self._log.process
                self._written = add_timelines(folder, self.timelines, process)

    def _tell_why_missing(self, reason: str) -> None:
        self._guard.warn(reason)
        with self._guard("write findings.jsonl"):
            about = (self._epoch, None, "MemoryTimeline", "note")
            self._log.append("findings", Finding("no timeline", reason, *about))

    def _drop(self) -> None:
        window, self._window = self._window, None
        self._drop_windows(lambda one: one is window)
        self._fitted = None
        self._is_waiting = False

    def _drop_windows(self, is_meant: Callable[["_Window"], bool]) -> None:
        for window in list(_open_windows):
            if is_meant(window):
                with self._guard("end a profile"):
                    window.drop()


class _Window:
    """A profile that is being taken.

    Args:
        owner: whatever lives as long as the window can be closed: a `fit` that is
            broken off tells nobody.
        model: the model that is being fitted.
        step: number of the first step.
    """

    def __init__(self, owner: object, model: Model, step: int) -> None:
        self.begin = self.end = step
        self._seen: tuple[list[Timeline], list[str]] | None = None
        self._model, self._followed = watched(model)
        self._profiler = backends.current().memory_profiler(self._followed)
        try:
            self._profiler.start()
        except BaseException:
            self._profiler.stop()  # it may have come half the way
            raise
        self._fitted = model
        self._at_end = weakref.finalize(owner, self._profiler.stop)
        self._at_end.atexit = False  # then there is nothing to keep clean
        _open_windows.add(self)

    def close(self, step: int) -> tuple[list[Timeline], list[str]]:
        """Return what happened until `step`, this one left out, and what is missing.

        Later calls, of other owners, return the same.
        """
        if self._seen is None:
            self._seen = self._read(step)
        return self._seen

    def _read(self, step: int) -> tuple[list[Timeline], list[str]]:
        self.end = step
        try:
            model = watched_again(self._model, self._followed)
        except BaseException:
            self.drop()
            raise
        self._at_end.detach()
        profile = self._profiler.stop()
        steps = range(self.begin, step)
        windows = timelines(profile, model, self._profiler.names, steps)
        problems = [profile.problem] if profile.problem else []
        return windows, problems + [_gap(one) for one in windows if one.lost_events]

    def drop(self) -> None:
        """Stop, and forget what was seen."""
        self._at_end()

    def is_open_on(self, model: Model) -> bool:
        """Return True while steps of `model` are recorded."""
        return self._at_end.alive and self._fitted is model

    def is_abandoned(self) -> bool:
        """Return True if the fit was broken off: Keras tells nobody."""
        return self._at_end.alive and not is_fitting(self._fitted)


_open_windows: "weakref.WeakSet[_Window]" = weakref.WeakSet()


def _window_of(model: Model) -> _Window | None:
    return next((one for one in _open_windows if one.is_open_on(model)), None)


def _gap(timeline: Timeline) -> str:
    events = timeline.lost_events + len(timeline.times_ns)
    return (
        f"The profiler left out events of {timeline.allocator}. Its timeline is the "
        f"longest run without a gap; {timeline.lost_events:,} of the {events:,} events "
        "that were told are not in it. A window of fewer steps loses fewer."
    )


def _cut_short(window: _Window, wanted: range) -> str:
    return (
        "Another MemoryTimeline of this fit recorded, and there is one profile at a "
        f"time: the timeline has the steps {window.begin} to {window.end - 1}, not "
        f"{wanted.start} to {wanted.stop - 1}. Give both the same steps."
    )


def _check(steps: range) -> None:
    if not isinstance(steps, range) or steps.step != 1 or not steps or steps[0] < 0:
        valid = "a range of steps of the whole fit from 0, such as range(2, 5)"
        raise invalid("MemoryTimeline", "steps", steps, valid)
