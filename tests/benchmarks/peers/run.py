"""Starts the children, one after the other, and gathers their rows."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.peers.row import Row

ROOT = Path(__file__).parents[3]
PACKAGE = "tests.benchmarks.peers"
PEERS = ("base", "keras_itself", "litert", "tfmot", "pquantml", "ours", "distillers")
"""Modules of the package; `base` is first, because it trains what the others get."""


def measured(task, peers=PEERS, pythons=None, time_limit=1200):
    """Return the rows of all peers, each run in a process of its own.

    A peer that has ended well in this folder before is not run again.

    Args:
        task: what they are given; is written to its folder.
        peers: modules, by their name in this package or in full.
        pythons: interpreters of peers that live in another environment, by name.
        time_limit: seconds that a peer may take.
    """
    task.write()
    rows = []
    for peer in peers:
        python = (pythons or {}).get(peer, sys.executable)
        rows += _rows_of(task, peer, python, time_limit)
    return rows


def _rows_of(task, peer, python, time_limit):
    module = peer if "." in peer else f"{PACKAGE}.{peer}"
    done, out = task.path(f"{module}.jsonl"), task.path(f"{module}.part")
    if done.exists():
        return _read(done)
    out.write_text("")
    command = [python, "-m", f"{PACKAGE}.child", task.folder, module, str(out)]
    print(f"{peer} ...", file=sys.stderr, flush=True)
    try:
        ended = subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            env={**os.environ, "KERAS_BACKEND": "tensorflow"},
            capture_output=True,
            text=True,
            timeout=time_limit,
        )
        reason = (ended.stderr.strip().splitlines() or ["no reason given"])[-1]
        failed = f"ended with {ended.returncode}: {reason}" if ended.returncode else ""
    except subprocess.TimeoutExpired:
        failed = f"took more than {time_limit} s"
    except OSError as error:
        failed = str(error)
    if failed:
        return [*_read(out), Row("", "", peer, note=failed)]
    return _read(out.rename(done))


def _read(path):
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()]
