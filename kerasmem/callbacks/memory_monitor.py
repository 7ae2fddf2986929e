"""Memory of the devices and of the process, epoch by epoch."""

import os
from typing import Any

import keras

from kerasmem.callbacks.attachment import is_fitting
from kerasmem.callbacks.memory_watch import MemoryWatch, Phase
from kerasmem.errors import ConfigError
from kerasmem.memory.workers import WorkerReader
from kerasmem.records import Finding, MemoryRecord, Run
from kerasmem.report.run import notebook_html


class MemoryMonitor(keras.callbacks.Callback):
    """Writes the memory in use, and its peak, into `logs` at the end of every epoch.

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
        self.workers: WorkerReader | None = None
        self._interval = _interval(every)
        self._watch = MemoryWatch("MemoryMonitor", log_dir, host=host)
        self._fitted: Any = None
        self._epoch = 0
        self._is_first_step = False
        self._test_phase: Phase = "evaluate"
        self._steps_per_execution = 1

    @property
    def records(self) -> list[MemoryRecord]:
        """A `MemoryRecord` per reading, over all runs."""
        return self._watch.records

    @property
    def findings(self) -> list[Finding]:
        """A `Finding` per rise."""
        return self._watch.findings

    @property
    def unavailable(self) -> str | None:
        """One sentence on why there is no device series, or None."""
        return self._watch.unavailable

    def _repr_html_(self) -> str:
        """Return the page of what was recorded, for a notebook."""
        return notebook_html(
            Run(memory=tuple(self.records), findings=tuple(self.findings))
        )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Find out what can be read."""
        self._open()
        self._fitted = self.model
        self._is_first_step = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start new peaks."""
        self._epoch = epoch
        self._watch.begin("train")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep a record if it is time for one."""
        if self._is_first_step:
            self._is_first_step = False
            self._watch.end_first_step()
        self._read_if_due(batch, "train")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keep a record, write it into `logs`, and look for what rises."""
        record = self._watch.read(epoch, None, "train", logs)
        if record is not None and logs is not None:
            logs.update(self._watch.series(record))
        self._watch.end_epoch(self.model, epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stop sampling."""
        self._watch.close()
        self._fitted = None

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start the peaks of a validation, or of `evaluate`."""
        self._test_phase = "validation" if self._is_in_fit() else "evaluate"
        self._begin_pass(self._test_phase)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep a record if it is time for one."""
        self._read_if_due(batch, self._test_phase)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keep a record."""
        self._end_pass(self._test_phase)

    def on_predict_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start the peaks of `predict`."""
        self._begin_pass("predict")

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep a record if it is time for one."""
        self._read_if_due(batch, "predict")

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        """Keep a record."""
        self._end_pass("predict")

    def _open(self) -> None:
        model = self.model
        self._steps_per_execution = model.steps_per_execution
        self._watch.open(model, self.workers)

    def _begin_pass(self, phase: Phase) -> None:
        if not self._is_in_fit():
            self._open()
        self._watch.begin(phase)

    def _end_pass(self, phase: Phase) -> None:
        self._watch.read(self._epoch, None, phase)
        self._watch.end(phase)
        if not self._is_in_fit():
            self._watch.close()

    def _is_in_fit(self) -> bool:
        return self._fitted is not None and is_fitting(self._fitted)

    def _read_if_due(self, batch: int, phase: Phase) -> None:
        if self._interval is None:
            return
        # From the index alone: on JAX and torch the calls may come out of order.
        before, after = batch + 1 - self._steps_per_execution, batch + 1
        if after // self._interval > before // self._interval:
            self._watch.read(self._epoch, batch, phase)


def _interval(every: str | int) -> int | None:
    if every == "epoch":
        return None
    if every == "batch":
        return 1
    if isinstance(every, int) and not isinstance(every, bool) and every >= 1:
        return every
    raise ConfigError(
        "`every` is 'epoch', 'batch' or a number of batches from 1. Received: "
        f"every={every!r}."
    )
