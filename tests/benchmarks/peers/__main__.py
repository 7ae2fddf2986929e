"""`python -m tests.benchmarks.peers DATA.npz -o peers.md`, see the package."""

import argparse
import datetime as dt
import json
import platform
import tempfile
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.benchmarks.peers.page import page
from tests.benchmarks.peers.run import PEERS, measured
from tests.benchmarks.peers.task import Task

PACKAGES = ("kerasmem", "keras", "tensorflow", "tf-keras", "ai-edge-litert", "numpy")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers")
    parser.add_argument("data", help="Fashion-MNIST or the like, as `.npz`")
    parser.add_argument("-o", "--out", type=Path, default=Path("peers.md"))
    parser.add_argument(
        "--folder", type=Path, help="kept, to go on there with the peers not yet run"
    )
    parser.add_argument("--time-limit", type=int, default=1200, help="s for a peer")
    parser.add_argument("--samples", type=int, default=Task.samples)
    parser.add_argument("--epochs", type=int, default=Task.epochs)
    parser.add_argument("--more-epochs", type=int, default=Task.more_epochs)
    parser.add_argument("--networks", nargs="+", default=Task.networks)
    parser.add_argument("--only", nargs="+", choices=PEERS[1:], default=PEERS[1:])
    parser.add_argument(
        "--python",
        nargs="+",
        default=[],
        metavar="PEER=PYTHON",
        help="interpreter of a peer that is installed elsewhere",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.folder:
            options.folder.mkdir(parents=True, exist_ok=True)
        task = Task(
            str((options.folder or Path(folder)).resolve()),
            str(Path(options.data).resolve()),
            options.samples,
            options.epochs,
            options.more_epochs,
            tuple(options.networks),
        )
        pythons = dict(pair.split("=", 1) for pair in options.python)
        rows = measured(task, (PEERS[0], *options.only), pythons, options.time_limit)
    about = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "versions": {name: _version(name) for name in PACKAGES},
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "samples": task.samples,
        "epochs": task.epochs,
        "more_epochs": task.more_epochs,
    }
    content = {**about, "rows": [asdict(row) for row in rows]}
    options.out.with_suffix(".json").write_text(json.dumps(content, indent=1))
    options.out.write_text(page(about, rows, task.networks))
    print(options.out.read_text())


def _version(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
