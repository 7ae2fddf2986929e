"""Memory timeline of a few training steps."""

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
from kerasmem.errors import OutputError
from kerasmem.files.run_dir import add_timelines, run_name
from kerasmem.memory.timeline import timelines, watched, watched_again
from kerasmem.records import Finding, Run, Timeline
from kerasmem.report.plots import Plot, timeline_plot
from kerasmem.report.run import notebook_html, write_run_page
from kerasmem.types import Model


class MemoryTimeline(keras.callbacks.Callback):
    """A callback that records every memory block of a few training steps.

    Each block has its requested and allocated bytes, its operation, the Keras layer and
    the phase of the step (forward, backward, optimizer, input). Its category is
    parameter, gradient, optimizer state, activation, temporary, input or unknown.

    The window ends before a validation and at the end of its epoch. If an exception
    ends `fit` inside the window, call `finish()` to read the profile. A framework
    supports one profile at a time, so overlapping windows of two callbacks share the
    first window.

    | backend | source |
    |---|---|
    | TensorFlow | its profiler, and XLA's plan of a step that is compiled with jit |
    | torch | its profiler, and its memory snapshot on CUDA |
    | JAX | XLA's plan of the compiled step, only with jit (Keras's default) |

    TensorFlow on a CPU records nothing unless `TF_CPU_ALLOCATOR_USE_BFC=1` and
    `TF_ENABLE_ONEDNN_OPTS=0` are set before its import. `kerasmem run --timeline
    SCRIPT.py` sets both. With jit, its allocator reports a step as one block without
    layers, and XLA's plan of that block is a second timeline. With `run_eagerly=True`,
    operations have no layers. On a CPU, torch reports only the variables of the memory
    that was allocated before the window. A plan covers one step, and its time is the
    number of the instruction. For an Embedding, only the gradient rows of the lookup
    are gradients; the tables that TensorFlow's optimizer builds from them are
    temporary.

    Cost: outside the window, one comparison per step. Inside, TensorFlow writes about
    50 KB per step to a temporary folder. At the end, training pauses to read the
    profile, with about 1 KB of memory per event. Plans need no compilation. The
    training result does not change, bit for bit.

    Args:
        steps: Range of consecutive steps to record, counted from 0 over the whole
            `fit`. The first steps differ from later ones, because optimizer slots are
            created and kernels are tuned. Defaults to `range(2, 5)`.
        log_dir: Folder for `timeline-0000.json.gz` (or the next free number). Its page
            `timeline-0000.html` is written after `fit`. Without a timeline, the reason
            is written to `findings.jsonl`. Defaults to None, which writes no files.

    Attributes:
        timelines: List of `Timeline` of the latest `fit`, one per allocator and plan,
            fullest first.

    Raises:
        ConfigError: If `steps` is not a range of consecutive steps.

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
        """Plot the memory in the window by category.

        Returns:
            A plot that notebooks display. `.save(path)` writes a file; `.figure` is the
            matplotlib figure.

        Raises:
            ConfigError: If there is no timeline.
        """
        return timeline_plot(self.timelines)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Reset the step count and discard earlier windows."""
        self._drop()
        self._fitted = self.model
        # A window that is still open belongs to an earlier `fit` that failed.
        self._drop_windows(lambda window: window.is_open_on(self._fitted))
        self._seen = 0
        self._is_waiting = True
        with self._guard("find the index of this process"):
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
        """Close the window, because a validation is not a training step."""
        self._close(self._seen)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Close the window."""
        self._close(self._seen)
        self._log.begin(self._fitted)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Close the window, or warn if its steps were never reached."""
        if self._is_waiting:
            self._tell_why_missing(
                f"MemoryTimeline recorded no step: `fit` ran {self._seen} steps and "
                "the window starts later. Use earlier steps, such as steps=range(0, 1)."
            )
        self.finish()

    def finish(self) -> None:
        """Close the window, read the profile and write the files.

        A second call is a no-op. Only needed if an exception ended `fit` inside the
        window, because Keras calls no hook in that case.
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
        # Only one profile can run, and the callback of a failed `fit` may still exist.
        self._drop_windows(lambda window: window.is_abandoned())
        with self._guard("start a profile"):
            try:
                self._window = _window_of(self._fitted) or _Window(
                    self, self._fitted, step
                )
            except ProfilerUnavailableError as error:
                self._tell_why_missing(f"{error} Training continues.")

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
                try:
                    self._written = add_timelines(folder, self.timelines, process)
                except OutputError as error:
                    self._tell_why_missing(f"{error} Training continues.")

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
                with self._guard("stop a profile"):
                    window.drop()


class _Window:
    """A running profile.

    Args:
        owner: Object whose garbage collection stops the profile. Keras calls no hook if
            `fit` fails.
        model: The model in training.
        step: Index of the first step.
    """

    def __init__(self, owner: object, model: Model, step: int) -> None:
        self.begin = self.end = step
        self._seen: tuple[list[Timeline], list[str]] | None = None
        self._model, self._followed = watched(model)
        self._profiler = backends.current().memory_profiler(self._followed)
        try:
            self._profiler.start()
        except BaseException:
            self._profiler.stop()  # it may have started partly
            raise
        self._fitted = model
        self._at_end = weakref.finalize(owner, self._profiler.stop)
        self._at_end.atexit = False  # no cleanup is needed at exit
        _open_windows.add(self)

    def close(self, step: int) -> tuple[list[Timeline], list[str]]:
        """Return the timelines before `step`, and the problems found.

        Later calls return the same result, because several callbacks share a window.
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
        """Stop the profile and discard its data."""
        self._at_end()

    def is_open_on(self, model: Model) -> bool:
        """Return whether steps of `model` are being recorded."""
        return self._at_end.alive and self._fitted is model

    def is_abandoned(self) -> bool:
        """Return whether the `fit` of the window has failed."""
        return self._at_end.alive and not is_fitting(self._fitted)


_open_windows: "weakref.WeakSet[_Window]" = weakref.WeakSet()


def _window_of(model: Model) -> _Window | None:
    return next((one for one in _open_windows if one.is_open_on(model)), None)


def _gap(timeline: Timeline) -> str:
    events = timeline.lost_events + len(timeline.times_ns)
    return (
        f"The profiler lost events of {timeline.allocator}. The timeline is the "
        f"longest run without a gap, without {timeline.lost_events:,} of the "
        f"{events:,} reported events. Use fewer steps to lose fewer events."
    )


def _cut_short(window: _Window, wanted: range) -> str:
    return (
        "Another MemoryTimeline of this fit was recording, and only one profile can "
        f"run at a time. Recorded steps: {window.begin} to {window.end - 1}, instead "
        f"of {wanted.start} to {wanted.stop - 1}. Use the same steps for both."
    )


def _check(steps: range) -> None:
    if not isinstance(steps, range) or steps.step != 1 or not steps or steps[0] < 0:
        valid = "a range of consecutive steps from 0, such as range(2, 5)"
        raise invalid("MemoryTimeline", "steps", steps, valid)
