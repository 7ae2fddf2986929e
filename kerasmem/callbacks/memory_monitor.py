"""Memory of the devices and of the process per epoch."""

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import keras

from kerasmem import backends
from kerasmem.callbacks.attachment import is_fitting, is_running
from kerasmem.callbacks.leak_watch import LeakWatch, figures
from kerasmem.callbacks.run_log import Guard, RunLog, epoch_figures, warn
from kerasmem.checks import Whole
from kerasmem.errors import KerasMemWarning
from kerasmem.memory.peaks import MemoryReader, Phase
from kerasmem.memory.workers import RunFolderReader, series
from kerasmem.processes.host import host_peak
from kerasmem.records import Finding, MemoryRecord, Run
from kerasmem.report.plots import Plot, panels_plot
from kerasmem.report.run import notebook_html
from kerasmem.report.run.memory import memory_panels
from kerasmem.types import Logs, Model


class MemoryMonitor(keras.callbacks.Callback):
    """A callback that writes current and peak memory of each epoch to `logs`.

    Place this callback before callbacks that read its keys, such as `EarlyStopping`
    (with `mode="min"`), `CSVLogger` and `TensorBoard`. In `evaluate` and `predict`, the
    callback only adds records. If memory grows from epoch to epoch, the callback issues
    one warning and adds one `Finding`. The training result does not change.

    | key in `logs` | value in MiB |
    |---|---|
    | `device_peak_mib` | peak bytes in use in the epoch, on the fullest device |
    | `device_mib` | bytes in use at the end of the epoch, on the fullest device |
    | `host_peak_mib` | peak resident memory of the process in the epoch |

    The device values come from the allocator of the framework. On a CPU, JAX and torch
    have none: the device keys are absent and `unavailable` has the reason. TensorFlow's
    CPU allocator counts only requests of at least 256 KiB, unless
    `TF_CPU_ALLOCATOR_USE_BFC=1` is set before the import. On JAX, the peak is the peak
    of the process, because JAX cannot reset it.

    With several devices, there are also sums such as `device_peak_sum_mib`. With
    several processes, process 0 writes the largest value and the sum over all
    processes. See [Watching a training](../watching.md) for records, findings and
    costs.

    Args:
        every: `"epoch"`, `"batch"` or a number of batches between additional records.
            `logs` are written only at the end of an epoch. Defaults to `"epoch"`.
        host: Boolean. Whether to read the resident memory of the process. Defaults to
            True.
        log_dir: Folder for `memory.jsonl` (one line per record) and `findings.jsonl`
            (one line per finding). Lines are appended to existing files. Defaults to
            None, which writes no files.

    Attributes:
        records: List of `MemoryRecord`, in bytes, over all runs.
        findings: List of `Finding`, at most one per growing figure.
        unavailable: Reason for missing device values, or None.

    Raises:
        ConfigError: If `every` is invalid.

    Example:
        >>> monitor = MemoryMonitor(every=100)
        >>> monitor.records
        []
    """

    async_safe = True  # the batch hooks touch neither the model nor the logs

    def __init__(
        self,
        *,
        every: str | int = "epoch",
        host: bool = True,
        log_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self.records: list[MemoryRecord] = []
        self.findings: list[Finding] = []
        self.unavailable: str | None = None
        self._interval = _interval(every)
        self._watch_host = host
        self._log_dir = log_dir
        self._guard = Guard("MemoryMonitor")
        self._log = RunLog(log_dir, self._guard)
        self._leaks = LeakWatch("MemoryMonitor")
        self._leaks_by_call = LeakWatch("MemoryMonitor", "call")
        self._calls = 0
        self._lock = threading.Lock()  # Keras may call batch hooks in several threads
        self._reader: MemoryReader | None = None
        self._others: RunFolderReader | None = None
        self._fitted: Any = None
        self._epoch = 0
        self._is_first_step = False
        self._test_phase: Phase = "evaluate"
        self._steps_per_execution = 1

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without reader and lock: Keras Tuner copies callbacks."""
        return vars(self) | {"_lock": None, "_reader": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state with a new lock and no reader."""
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def _repr_html_(self) -> str:
        return notebook_html(
            Run(memory=tuple(self.records), findings=tuple(self.findings))
        )

    def plot(self) -> Plot:
        """Plot memory by epoch.

        Returns:
            A plot that notebooks display. `.save(path)` writes a file; `.figure` is the
            matplotlib figure.

        Raises:
            ConfigError: If there are no records.
        """
        return panels_plot(memory_panels(self.records))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Determine the available measurements."""
        self._open()
        self._fitted = self.model
        self._is_first_step = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reset the peaks."""
        self._epoch = epoch
        self._with_reader(lambda reader: reader.begin("train"))

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Add a record if one is due."""
        if self._is_first_step:
            self._is_first_step = False
            self._with_reader(MemoryReader.end_first_step)
        self._read_if_due(batch, "train")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add a record, write its values to `logs` and check for leaks."""
        self._epoch = epoch
        record = self._read(None, "train", logs)
        if record is not None and logs is not None:
            logs.update(self._series(record))
        model = self.model
        self._log.begin(model)
        self._look_for_leaks(self._leaks, epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stop the measurement."""
        self._close()
        self._fitted = None

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Reset the peaks for a validation or `evaluate`."""
        self._test_phase = "validation" if self._is_in_fit() else "evaluate"
        self._begin_pass(self._test_phase)

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Add a record if one is due."""
        self._read_if_due(batch, self._test_phase)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Add a record."""
        self._end_pass(self._test_phase)

    def on_predict_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Reset the peaks for `predict`."""
        self._begin_pass("predict")

    def on_predict_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Add a record if one is due."""
        self._read_if_due(batch, "predict")

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        """Add a record."""
        self._end_pass("predict")

    def _begin_pass(self, phase: Phase) -> None:
        if not self._is_in_fit():
            self._open()
        self._with_reader(lambda reader: reader.begin(phase))

    def _end_pass(self, phase: Phase) -> None:
        self._read(None, phase)
        self._with_reader(lambda reader: reader.end(phase))
        if not self._is_in_fit():
            self._close()
            self._end_call()

    def _end_call(self) -> None:
        self._calls += 1
        self._look_for_leaks(self._leaks_by_call, self._calls - 1)

    def _look_for_leaks(self, watch: LeakWatch, number: int) -> None:
        findings: list[Finding] = []
        with self._guard("look for leaks"):
            measure = partial(figures, self.model, host=self._watch_host)
            findings = watch.after_step(number, measure)
            self._log.add_findings(findings, self.findings)
        for finding in findings:
            warn(finding.text)

    def _is_in_fit(self) -> bool:
        return self._fitted is not None and is_fitting(self._fitted)

    def _open(self) -> None:
        model = self.model
        self._steps_per_execution = model.steps_per_execution
        self._close()
        earlier_reason, self.unavailable = self.unavailable, None
        with self._guard("determine the available memory measurements"):
            self._log.find_process(model)
            self._others = self._other_processes()
            self._reader = self._new_reader(model)
            self.unavailable = _why_unavailable()
        if self.unavailable and not earlier_reason:
            # Not an error, so the training continues even if warnings are errors.
            with suppress(KerasMemWarning):
                warnings.warn(self.unavailable, KerasMemWarning, stacklevel=2)
        self._log.begin(model)

    def _other_processes(self) -> RunFolderReader | None:
        process, processes = self._log.process, self._log.processes
        if process or self._log_dir is None or processes == 1:
            return None
        return RunFolderReader(self._log_dir, process, processes)

    def _new_reader(self, model: Model) -> MemoryReader:
        is_needed = partial(is_running, model, threading.get_ident())
        # In a custom loop, the call stack does not show the end of the training.
        is_over = (lambda: not is_needed()) if is_needed() else (lambda: False)
        host = host_peak(is_needed) if self._watch_host else None
        return MemoryReader(host, self._log.process, is_over)

    def _close(self) -> None:
        with self._lock, self._guard("stop the measurement"):
            reader, self._reader = self._reader, None
            if reader:
                reader.close()

    def _with_reader(self, do: Callable[[MemoryReader], None]) -> None:
        with self._lock, self._guard("read the memory"):
            if self._reader:
                do(self._reader)

    def _read_if_due(self, batch: int, phase: Phase) -> None:
        if self._interval is None:
            return
        # Only from the index: on JAX and torch, calls may come out of order.
        before, after = batch + 1 - self._steps_per_execution, batch + 1
        if after // self._interval > before // self._interval:
            self._read(batch, phase)

    def _read(
        self, batch: int | None, phase: Phase, logs: Mapping[str, Any] | None = None
    ) -> MemoryRecord | None:
        record = None
        with self._lock:  # keeps lines and records in one order
            with self._guard("read the memory"):
                if self._reader:
                    record = self._reader.record(self._epoch, batch, phase)
                    record = replace(record, **epoch_figures(logs))
                    self.records.append(record)
            if record:
                with self._guard("write memory.jsonl"):
                    self._log.append("memory", record)
        return record

    def _series(self, record: MemoryRecord) -> dict[str, float]:
        records: dict[int, MemoryRecord | None] = {self._log.process: record}
        with self._guard("read the memory of the other processes"):
            if self._others:
                records |= self._others.newest()
        with self._guard("sum up the memory"):
            return series(records)
        return {}


def _why_unavailable() -> str | None:
    backend = backends.current()
    return None if backend.device_memory() else backend.why_no_device_memory()


def _interval(every: str | int) -> int | None:
    if every == "epoch":
        return None
    if every == "batch":
        return 1
    rule = Whole(1, what="'epoch', 'batch' or a number of batches")
    return rule.check("MemoryMonitor", "every", every)
