"""What a memory monitor has read and noticed: kept, written down, summed up."""

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from kerasmem import backends
from kerasmem.callbacks.attachment import is_running
from kerasmem.callbacks.guard import Guard, tell
from kerasmem.callbacks.leak_watch import LeakWatch, figures
from kerasmem.callbacks.learning_rate import epoch_losses
from kerasmem.callbacks.run_folder import begin_run, complete_run
from kerasmem.errors import KerasMemWarning
from kerasmem.files.run_dir import Journal, file_name
from kerasmem.memory.card import read_card
from kerasmem.memory.peaks import Peaks, series
from kerasmem.memory.workers import RunFolderReader, WorkerReader
from kerasmem.processes.host import HostPeak, host_peak
from kerasmem.records import DeviceReading, Finding, MemoryRecord

Phase = Literal["train", "validation", "evaluate", "predict"]

_LATER = "later"


class MemoryReader:
    """Reads the memory in use, with the peaks of an epoch and of what lies in it.

    The peaks are the process's: before anybody else resets them, such as another
    monitor or the user's own code, the reader takes them over. It does so until it is
    closed or gone, or its model no longer runs.

    Args:
        host: the process's own peak, None to leave it out; closed with the reader.
        process: index of this process.
        is_over: whether the run that is measured has ended without a word.
    """

    def __init__(
        self, host: HostPeak | None, process: int, is_over: Callable[[], bool]
    ) -> None:
        backend = backends.current()
        self._backend = backend
        self._peaks = Peaks(backend.device_memory, backend.reset_device_peak, host)
        self._process = process
        self._ordinals = backend.cuda_ordinals()
        self._first_step_peaks: dict[str, int] = {}
        self._is_over = is_over
        self._failure: Exception | None = None
        observer = partial(_take_over, weakref.ref(self))
        self._unobserve = weakref.finalize(self, backend.observe_peak_resets(observer))
        self._unobserve.atexit = False

    def begin(self, phase: Phase) -> None:
        """Start the peaks of a phase; of `"train"` at every epoch's begin."""
        self._failure = None
        if phase == "train":
            self._first_step_peaks = {}
            self._peaks.end(_LATER)
        self._peaks.begin(phase)

    def end(self, phase: Phase) -> None:
        """Forget a phase."""
        self._peaks.end(phase)

    def end_first_step(self) -> None:
        """Keep the peaks so far apart from those of the epoch's later steps."""
        devices, _ = self._peaks.read("train")
        self._peaks.begin(_LATER)
        self._first_step_peaks = {device.name: device.peak_bytes for device in devices}

    def record(self, epoch: int, batch: int | None, phase: Phase) -> MemoryRecord:
        """Return what is in use now, and the peaks since the phase began."""
        if self._failure:
            raise self._failure
        devices, host = self._peaks.read(phase)
        if phase == "train" and self._first_step_peaks:
            later, _ = self._peaks.read(_LATER)
            devices = tuple(map(self._apart, devices, later))
        if host:
            host = replace(host, input_bytes=self._backend.input_bytes())
        return MemoryRecord(
            epoch=epoch,
            batch=batch,
            devices=tuple(map(self._with_card, devices)),
            host=host,
            phase=phase,
            process=self._process,
            time=time.time(),
        )

    def close(self) -> None:
        """End the measurement."""
        self._unobserve()
        self._peaks.close()

    def take_over(self) -> None:
        """Keep the peaks so far: somebody else is about to start them anew."""
        if self._is_over():
            self.close()
            return
        try:
            self._peaks.take_over()
        except Exception as error:  # noqa: BLE001 - told by the next reading
            self._failure = error

    def _apart(self, device: DeviceReading, later: DeviceReading) -> DeviceReading:
        return replace(
            device,
            first_step_peak_bytes=self._first_step_peaks.get(device.name),
            later_peak_bytes=later.peak_bytes if later.peak_was_reset else None,
        )

    def _with_card(self, device: DeviceReading) -> DeviceReading:
        ordinal = self._ordinals.get(device.name)
        card = None if ordinal is None else read_card(ordinal)
        if card is None:
            return device
        return replace(
            device, card_used_bytes=card.used_bytes, card_total_bytes=card.total_bytes
        )


def _take_over(reader: "weakref.ref[MemoryReader]") -> None:
    alive = reader()
    if alive is not None:
        alive.take_over()


class MemoryWatch:
    """Reads on demand; whatever goes wrong is one warning and no exception.

    Args:
        monitor: class name of the callback, for warnings and findings.
        log_dir: the run's folder, None for none.
        host: whether to read the resident memory of the process too.
    """

    def __init__(
        self, monitor: str, log_dir: str | os.PathLike[str] | None, *, host: bool
    ) -> None:
        self.records: list[MemoryRecord] = []
        self.findings: list[Finding] = []
        self.unavailable: str | None = None
        self._log_dir = log_dir
        self._watch_host = host
        self._guard = Guard(monitor)
        self._leaks = LeakWatch(monitor)
        self._lock = threading.Lock()  # Keras may call batch hooks in several threads
        self._reader: MemoryReader | None = None
        self._workers: WorkerReader | None = None
        self._process = 0
        self._is_size_unknown = False
        self._open_journals()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy keeps: Keras Tuner copies callbacks for every trial."""
        return vars(self) | {"_lock": None, "_reader": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy that measures nothing yet."""
        vars(self).update(state)
        self._lock = threading.Lock()

    def open(self, model: Any, workers: WorkerReader | None) -> None:
        """Find out what can be read.

        Args:
            model: the model that is about to run.
            workers: reads the other processes; None to look into the run's folder.
        """
        self.close()
        told, self.unavailable = self.unavailable, None
        with self._guard("find out what memory can be read"):
            self._process, processes = backends.current().processes(model)
            self._open_journals()
            if workers is None and self._log_dir is not None and processes > 1:
                workers = RunFolderReader(self._log_dir, self._process, processes)
            self._workers = None if self._process else workers
            self._reader = self._new_reader(model)
            self.unavailable = _why_unavailable()
        if self.unavailable and not told:
            # Nothing is wrong, so it may not end a run that has warnings as errors.
            with suppress(KerasMemWarning):
                warnings.warn(self.unavailable, KerasMemWarning, stacklevel=2)
        with self._guard("write run.json"):
            begin_run(self._log_dir, model)
        self._is_size_unknown = not model.built

    def begin(self, phase: Phase) -> None:
        """Start the peaks of a phase."""
        with self._lock, self._guard("read the memory"):
            if self._reader:
                self._reader.begin(phase)

    def end(self, phase: Phase) -> None:
        """Forget the peaks of a phase."""
        with self._lock, self._guard("read the memory"):
            if self._reader:
                self._reader.end(phase)

    def end_first_step(self) -> None:
        """Keep the peaks of the first step apart."""
        with self._lock, self._guard("read the memory"):
            if self._reader:
                self._reader.end_first_step()

    def read(
        self,
        epoch: int,
        batch: int | None,
        phase: Phase,
        logs: Mapping[str, Any] | None = None,
    ) -> MemoryRecord | None:
        """Keep a record, with the losses in `logs`; None if nothing could be read."""
        record = None
        with self._lock:  # for both, so that lines stand in the order of the records
            with self._guard("read the memory"):
                if self._reader:
                    record = self._reader.record(epoch, batch, phase)
                    record = replace(record, **epoch_losses(logs))
                    self.records.append(record)
            if record:
                with self._guard("write memory.jsonl"):
                    self._memory_journal.append(record.to_json())
        return record

    def series(self, record: MemoryRecord) -> dict[str, float]:
        """Return what `logs` get: `record` and, in process 0, the others' newest."""
        records: dict[int, MemoryRecord | None] = {self._process: record}
        with self._guard("read the memory of the other processes"):
            if self._workers:
                records |= self._workers.newest()
        with self._guard("sum up the memory"):
            return series(records)
        return {}

    def end_epoch(self, model: Any, epoch: int) -> None:
        """Keep, write and warn of what has been rising from epoch to epoch."""
        if self._is_size_unknown:
            self._is_size_unknown = False
            with self._guard("write run.json"):
                complete_run(self._log_dir, model)
        found: list[Finding] = []
        with self._guard("look for leaks"):
            found = self._leaks.after_epoch(
                epoch, lambda: figures(model, host=self._watch_host)
            )
            self.findings += found
            for finding in found:
                self._findings_journal.append(finding.to_json())
        for finding in found:
            tell(finding.text)

    def close(self) -> None:
        """End the measurement."""
        with self._lock, self._guard("end the measurement"):
            reader, self._reader = self._reader, None
            if reader:
                reader.close()

    def _new_reader(self, model: Any) -> MemoryReader:
        thread = threading.get_ident()
        is_needed = partial(is_running, model, thread)
        # In a loop written by hand nothing runs that could be seen to end.
        is_over = (lambda: not is_needed()) if is_needed() else (lambda: False)
        host = host_peak(is_needed) if self._watch_host else None
        return MemoryReader(host, self._process, is_over)

    def _open_journals(self) -> None:
        names = [file_name(stem, ".jsonl", self._process) for stem in _STEMS]
        self._memory_journal, self._findings_journal = (
            Journal(self._log_dir, name) for name in names
        )


_STEMS = ("memory", "findings")


def _why_unavailable() -> str | None:
    backend = backends.current()
    return None if backend.device_memory() else backend.why_no_device_memory()
