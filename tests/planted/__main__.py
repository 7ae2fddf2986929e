"""Plants faults in copies of kerasmem and runs the tests that should find them.

The exit code is 1 if a fault is not found or its place in the code is gone.
"""

import os
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.planted.faults import Fault, faults, plant


def result(fault: Fault) -> tuple[bool, str]:
    """Return whether a test finds a fault, and the test or the reason."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        try:
            plant(fault, Path(folder))
        except ValueError as error:
            return False, str(error)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        environment = os.environ | {
            "PYTHONPATH": folder,
            "KERAS_BACKEND": fault.backend,
        }
        run = subprocess.run(
            [*command, *fault.tests],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if run.returncode == pytest.ExitCode.TESTS_FAILED:
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
        return True, failed[1] if failed else "tests/conftest.py"
    if run.returncode == pytest.ExitCode.OK:
        return False, f"{' '.join(fault.tests)} pass. {fault.breaks}"
    return False, run.stdout[-2000:] + run.stderr[-2000:]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the faults, print a line for each, and return the exit code."""
    every = {fault.name: fault for fault in faults()}
    parser = ArgumentParser("python -m tests.planted", description=__doc__)
    parser.add_argument("--only", metavar="NAME", choices=[*every], help="one fault")
    name = parser.parse_args(arguments).only
    are_found = []
    for fault in [every[name]] if name else every.values():
        is_found, text = result(fault)
        are_found.append(is_found)
        word = "found" if is_found else "NOT FOUND"
        print(f"{word} {fault.name}: {text}", flush=True)
    print(f"{sum(are_found)} of {len(are_found)} faults found")
    return 0 if all(are_found) else 1


if __name__ == "__main__":
    sys.exit(main())
