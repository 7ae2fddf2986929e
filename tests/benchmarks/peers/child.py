"""One peer in this process: `python -m ... FOLDER MODULE OUT.jsonl`, a row a line."""

import importlib
import json
import sys
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks.peers.row import Row
from tests.benchmarks.peers.task import Task


def rows(task, peer):
    """Yield every row of a peer's module; a job that fails is a row that says so."""
    tool = f"{peer.TOOL} {version(peer.PACKAGE)}"
    for network in task.networks:
        for job, measure in peer.JOBS.items():
            try:
                for row in measure(task, network, job):
                    yield replace(row, tool=row.tool or tool)
            except Exception as error:  # noqa: BLE001 - a row, not a crash
                yield Row(network, job, tool, note=f"failed: {first_line(error)}")


def first_line(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]


def main(folder, module, out):
    task, peer = Task.read(folder), importlib.import_module(module)
    with Path(out).open("w") as file:
        for row in rows(task, peer):
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
