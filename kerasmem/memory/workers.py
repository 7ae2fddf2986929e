"""What the other processes of a training have in use."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from kerasmem.errors import InputError
from kerasmem.files.run_dir import file_name
from kerasmem.records import MemoryRecord
from kerasmem.records.regular import open_regular


class WorkerReader(Protocol):
    """A way to the newest record of every other process.

    Set one as `MemoryMonitor().workers` if the processes share no folder.
    """

    def newest(self) -> Mapping[int, MemoryRecord | None]:
        """Return the newest record by process, None where there is none yet.

        Process 0 asks at the end of every epoch. The others may be behind, and should
        not be waited for.
        """
        ...


class RunFolderReader:
    """Reads what the other processes write into the run's folder from now on.

    Nobody waits for anybody, so nothing can lock. Of a process that is behind, the
    record of the epoch before is the newest.

    Args:
        log_dir: the folder, which all processes see.
        process: index of this process.
        processes: number of processes.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str], process: int, processes: int
    ) -> None:
        self._files = {
            index: _Growing(Path(log_dir) / file_name("memory", ".jsonl", index))
            for index in range(processes)
            if index != process
        }

    def newest(self) -> dict[int, MemoryRecord | None]:
        """Return the newest record of an epoch's end by process."""
        return {index: file.newest() for index, file in self._files.items()}


class _Growing:
    """A file of records that another process appends to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = path.stat().st_size if path.exists() else 0
        self._newest: MemoryRecord | None = None

    def newest(self) -> MemoryRecord | None:
        for line in self._new_lines():
            # A worker whose disk was full may have left half a line behind.
            with suppress(InputError):
                record = MemoryRecord.from_json(line)
                if record.batch is None and record.phase == "train":
                    self._newest = record
        return self._newest

    def _new_lines(self) -> list[str]:
        if not self._path.exists():
            return []
        with open_regular(self._path) as file:
            file.seek(self._read_bytes)
            new = file.read()
        # What stands behind the last line break is being written at this moment.
        whole = new[: new.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.decode(errors="replace").splitlines()
