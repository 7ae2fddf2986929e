"""What a memory monitor has read and noticed: kept, written down, summed up."""

import os
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from kerasmem import backends
from kerasmem.callbacks.epoch_losses import epoch_losses
from kerasmem.callbacks.guard import Guard, tell
from kerasmem.callbacks.leak_watch import LeakWatch, figures
from kerasmem.callbacks.memory_reader import MemoryReader, Phase
from kerasmem.callbacks.run_folder import begin_run, complete_run
from kerasmem.callbacks.running import is_running
from kerasmem.errors import KerasMemWarning
from kerasmem.files.journal import Journal
from kerasmem.files.run_dir import file_name
from kerasmem.memory.series import series
from kerasmem.memory.workers import RunFolderReader, WorkerReader
from kerasmem.processes.host import host_peak
from kerasmem.records import Finding, MemoryRecord


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
