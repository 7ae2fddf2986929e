"""Memory of the devices and of the process, epoch by epoch."""

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
from kerasmem.memory.workers import RunFolderReader, WorkerReader, series
from kerasmem.processes.host import host_peak
from kerasmem.records import Finding, MemoryRecord, Run
from kerasmem.report.plots import Plot, panels_plot
from kerasmem.report.run import notebook_html
from kerasmem.report.run.memory import memory_panels
from kerasmem.types import Logs, Model


class MemoryMonitor(keras.callbacks.Callback):
    """A callback that writes the memory in use, and its peak, into `logs` every epoch.

    List it before the callbacks that shall see its keys: `EarlyStopping` (with
    `mode="min"`, which Keras cannot guess), `CSVLogger`, `TensorBoard`. `History` and
    the progress bar see them anyway.

    | key in `logs` | what it is, in MiB |
    |---|---|
    | `device_peak_mib` | most bytes in use in the epoch, on the fullest device |
    | `device_mib` | bytes in use at the epoch's end, on the fullest device |
    | `host_peak_mib` | most resident memory of the process in the epoch |

    Device figures are those of the framework's own allocator. The peak starts anew
    at every epoch's begin, on JAX at the process's begin; it takes in the validation
    of the epoch, which has a record of its own besides. Of the first epoch of a fit
    the records tell the peak of the first step apart from the later ones (not on
    JAX; on torch the second step may have begun). On JAX and torch, records of batches
    may come out of order. TensorFlow's CPU allocator leaves requests under 256 KiB
    out unless `TF_CPU_ALLOCATOR_USE_BFC=1` is set before TensorFlow is imported: an
    epoch without a larger one has no device keys. JAX and torch give no figures on a
    CPU. Then the device keys are absent and `unavailable` says why. `CSVLogger` writes
    an empty `val_` twin for every key, Keras's own too, if there is no validation.

    Given to `evaluate` or `predict` it keeps records of them.

    With several devices there are sums over them too, such as
    `device_peak_sum_mib`. With several processes each keeps its own records, and in
    the `logs` of process 0 the keys are taken over all of them, sums of the host's
    memory included: from the `log_dir` if they share one, else from `workers`. Nobody
    is waited for: of a process that is behind, the record of its epoch before counts,
    and as long as one has told nothing the sums are NaN.

    Memory that rises from epoch to epoch, over at least eight epochs after the first
    two, is told once: a warning and a finding, with the slope, what else rises (a
    device, the process, Python objects, traces of the training step), the kinds of
    objects, arrays and tensors that pile up, and who holds them.

    Cost: a fifth of a millisecond per reading, about one an epoch. Where the kernel's
    peak cannot be reset, a thread looks every 5 milliseconds. If something seems to
    pile up, objects are counted by kind, and again when a rise is told; then garbage
    is collected and up to three of them are followed to who holds them: some tenths
    of a second each.

    Args:
        every: `"epoch"`, `"batch"`, or a number of batches after which one more
            record is kept. `logs` are written at the end of an epoch only.
        host: whether to read the resident memory of the process too.
        log_dir: folder in which `memory.jsonl` gets a line per record as it comes and
            `findings.jsonl` one per finding; existing files are appended to.

    Attributes:
        records: a `MemoryRecord` per reading, in whole bytes, over all runs.
        findings: a `Finding` per rise.
        unavailable: one sentence on why there is no device series, or None.
        workers: a `WorkerReader` to be set before `fit`, where several processes
            share no `log_dir`.

    Raises:
        ConfigError: if `every` is none of these.

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
        self.workers: WorkerReader | None = None
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
        self._others: WorkerReader | None = None
        self._fitted: Any = None
        self._epoch = 0
        self._is_first_step = False
        self._test_phase: Phase = "evaluate"
        self._steps_per_execution = 1

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy keeps: Keras Tuner copies callbacks for every trial."""
        return vars(self) | {"_lock": None, "_reader": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy that measures nothing yet."""
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def _repr_html_(self) -> str:
        return notebook_html(
            Run(memory=tuple(self.records), findings=tuple(self.findings))
        )

    def plot(self) -> Plot:
        """Return a picture of the memory by epoch: `.save(path)` writes it.

        Returns:
            A picture that a notebook shows; `.figure` is matplotlib's.

        Raises:
            ConfigError: if nothing was recorded yet.
        """
        return panels_plot(memory_panels(self.records))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Find out what can be read."""
        self._open()
        self._fitted = self.model
        self._is_first_step = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start new peaks."""
        self._epoch = epoch
        self._with_reader(lambda reader: reader.begin("train"))

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Keep a record if it is time for one."""
        if self._is_first_step:
            self._is_first_step = False
            self._with_reader(MemoryReader.end_first_step)
        self._read_if_due(batch, "train")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keep a record, write it into `logs`, and look for what rises."""
        self._epoch = epoch
        record = self._read(None, "train", logs)
        if record is not None and logs is not None:
            logs.update(self._series(record))
        model = self.model
        self._log.complete(model)
        self._look_for_leaks(self._leaks, epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stop sampling."""
        self._close()
        self._fitted = None

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start the peaks of a validation, or of `evaluate`."""
        self._test_phase = "validation" if self._is_in_fit() else "evaluate"
        self._begin_pass(self._test_phase)

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Keep a record if it is time for one."""
        self._read_if_due(batch, self._test_phase)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keep a record."""
        self._end_pass(self._test_phase)

    def on_predict_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start the peaks of `predict`."""
        self._begin_pass("predict")

    def on_predict_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Keep a record if it is time for one."""
        self._read_if_due(batch, "predict")

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keep a record."""
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
        with self._guard("find out what memory can be read"):
            self._log.find_process(model)
            self._others = self._other_processes()
            self._reader = self._new_reader(model)
            self.unavailable = _why_unavailable()
        if self.unavailable and not earlier_reason:
            # Nothing is wrong, so it may not end a run that has warnings as errors.
            with suppress(KerasMemWarning):
                warnings.warn(self.unavailable, KerasMemWarning, stacklevel=2)
        self._log.begin(model)

    def _other_processes(self) -> WorkerReader | None:
        process, processes = self._log.process, self._log.processes
        if process:
            return None
        if self.workers is None and self._log_dir is not None and processes > 1:
            return RunFolderReader(self._log_dir, process, processes)
        return self.workers

    def _new_reader(self, model: Model) -> MemoryReader:
        is_needed = partial(is_running, model, threading.get_ident())
        # In a loop written by hand nothing runs that could be seen to end.
        is_over = (lambda: not is_needed()) if is_needed() else (lambda: False)
        host = host_peak(is_needed) if self._watch_host else None
        return MemoryReader(host, self._log.process, is_over)

    def _close(self) -> None:
        with self._lock, self._guard("end the measurement"):
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
        # From the index alone: on JAX and torch the calls may come out of order.
        before, after = batch + 1 - self._steps_per_execution, batch + 1
        if after // self._interval > before // self._interval:
            self._read(batch, phase)

    def _read(
        self, batch: int | None, phase: Phase, logs: Mapping[str, Any] | None = None
    ) -> MemoryRecord | None:
        record = None
        with self._lock:  # for both, so that lines stand in the order of the records
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
