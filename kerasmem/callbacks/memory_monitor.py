"""Memory of the devices and of the process, epoch by epoch."""

import os
import threading
from dataclasses import replace
from typing import Any

import keras

from kerasmem import backends
from kerasmem.callbacks.guard import Guard
from kerasmem.callbacks.journal import Journal
from kerasmem.callbacks.running import is_fitting
from kerasmem.errors import ConfigError
from kerasmem.memory.host import HostPeak, host_peak
from kerasmem.records import DeviceReading, MemoryRecord
from kerasmem.units import to_mib


class MemoryMonitor(keras.callbacks.Callback):
    """Writes the memory in use, and its peak, into `logs` at the end of every epoch.

    List it before the callbacks that shall see its keys: `EarlyStopping`,
    `CSVLogger`, `TensorBoard`. `History` and the progress bar see them anyway.

    | key in `logs` | what it is, in MiB |
    |---|---|
    | `device_peak_mib` | most bytes in use in the epoch, on the fullest device |
    | `device_mib` | bytes in use at the epoch's end, on the fullest device |
    | `host_peak_mib` | most resident memory of the process in the epoch |

    Device figures are those of the framework's own allocator. The peak starts anew
    at every epoch's begin, on JAX at the process's begin; it takes in the validation
    of the epoch. TensorFlow's CPU allocator leaves requests under 256 KiB out unless
    `TF_CPU_ALLOCATOR_USE_BFC=1` is set before TensorFlow is imported; JAX and torch
    give no figures on a CPU. Then the device keys are absent and `unavailable` says
    why. `CSVLogger` writes an empty `val_` twin for every key, Keras's own too, if
    there is no validation.

    Cost: microseconds per reading. Where the kernel's peak cannot be reset, a thread
    looks every 5 milliseconds.

    Args:
        every: `"epoch"`, `"batch"`, or a number of batches after which one more
            record is kept. `logs` are written at the end of an epoch only.
        host: whether to read the resident memory of the process too.
        log_dir: folder in which `memory.jsonl` gets a line per record as it comes;
            an existing file is appended to.

    Attributes:
        records: a `MemoryRecord` per reading, in whole bytes, over all fits.
        unavailable: one sentence on why there is no device series, or None.

    Raises:
        ConfigError: if `every` is none of these.

    Example:
        >>> monitor = MemoryMonitor(every=100)
        >>> monitor.records
        []
    """

    async_safe = True  # the batch hook touches neither the model nor the logs

    def __init__(
        self,
        *,
        every: str | int = "epoch",
        host: bool = True,
        log_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__()
        self.records: list[MemoryRecord] = []
        self.unavailable: str | None = None
        self._interval = _interval(every)
        self._watch_host = host
        self._journal = Journal(log_dir, "memory.jsonl")
        self._guard = Guard("MemoryMonitor")
        self._lock = threading.Lock()  # Keras may call batch hooks in several threads
        self._host: HostPeak | None = None
        self._epoch = 0
        self._steps_per_execution = 1
        self._peak_was_reset = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Find out what can be read."""
        self._close()
        model, thread = self.model, threading.get_ident()
        self._steps_per_execution = model.steps_per_execution
        with self._guard("find out what memory can be read"):
            if self._watch_host:
                self._host = host_peak(lambda: is_fitting(model, thread))
            backend = backends.current()
            self.unavailable = None
            if not backend.device_memory():
                self.unavailable = backend.why_no_device_memory()
                self._guard.warn(self.unavailable)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start new peaks."""
        self._epoch = epoch
        self._peak_was_reset = False
        with self._guard("reset the peak"):
            self._peak_was_reset = backends.current().reset_device_peak()
            if self._host:
                self._host.reset()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep a record if it is time for one."""
        if self._interval is None:
            return
        # From the index alone: on JAX and torch the calls may come out of order.
        before, after = batch + 1 - self._steps_per_execution, batch + 1
        if after // self._interval > before // self._interval:
            self._read(batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Keep a record and write it into `logs`."""
        record = self._read(None)
        if record is not None and logs is not None:
            logs.update(_series(record))

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stop sampling."""
        self._close()

    def _read(self, batch: int | None) -> MemoryRecord | None:
        record = None
        with self._lock, self._guard("read the memory"):
            record = MemoryRecord(
                epoch=self._epoch,
                batch=batch,
                devices=tuple(
                    replace(device, peak_was_reset=self._peak_was_reset)
                    for device in backends.current().device_memory()
                ),
                host=self._host.read() if self._host else None,
            )
            self.records.append(record)
            self._journal.append(record.to_json())
        return record

    def _close(self) -> None:
        if self._host:
            self._host.close()
        self._host = None


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


def _series(record: MemoryRecord) -> dict[str, float]:
    series: dict[str, float] = {}
    if record.devices:
        series["device_peak_mib"] = _largest(record.devices, "peak_bytes")
        series["device_mib"] = _largest(record.devices, "current_bytes")
    if record.host:
        series["host_peak_mib"] = to_mib(record.host.peak_bytes)
    return series


def _largest(devices: tuple[DeviceReading, ...], figure: str) -> float:
    return to_mib(max(getattr(device, figure) for device in devices))
