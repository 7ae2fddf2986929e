"""The table of kinds and verbs: run, continued where it stopped, and printed.

    KERAS_BACKEND=tensorflow python -m tests.zoo run zoo.jsonl [--only KIND] [--share 4]
    python -m tests.zoo table zoo.jsonl > docs/models.md

Each kind has a process of its own, which ends after 300 seconds without a result. A
second call runs the cells that have no result yet.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "row", "table"))
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", default="", help="kinds with this in their name")
    parser.add_argument("--verb", default="", help="verbs with this in their name")
    parser.add_argument("--share", type=int, default=1, help="one kind in N")
    options = parser.parse_args()
    if options.what == "table":
        from tests.zoo.table import table

        sys.stdout.write(table(read(options.results)))
        return
    from tests.zoo.kinds import KINDS
    from tests.zoo.verbs import VERBS

    verbs = [name for name in VERBS if options.verb in name]
    if options.what == "row":
        from tests.zoo.row import run_row

        done = {
            row["verb"] for row in read(options.results) if is_of(row, options.only)
        }
        run_row(options.only, [v for v in verbs if v not in done], options.results)
        return
    for name in [n for n in list(KINDS)[:: options.share] if options.only in n]:
        for _ in verbs:  # a process that dies costs one cell
            known = {r["verb"] for r in read(options.results) if is_of(r, name)}
            missing = [verb for verb in verbs if verb not in known]
            if not missing:
                break
            call = [sys.executable, "-m", "tests.zoo", "row", str(options.results)]
            call += ["--only", name, "--verb", options.verb]
            code = subprocess.run(call, check=False).returncode
            if code:
                write(options.results, name, missing[0], f"the process died ({code})")


def backend() -> str:
    import keras

    return keras.backend.backend()


def is_of(row: dict, name: str) -> bool:
    return (row["kind"], row["backend"]) == (name, backend())


def read(path: Path) -> list[dict]:
    """Returns the results, a dict a cell."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def write(path: Path, kind: str, verb: str, result: str, **figures: object) -> None:
    """Appends one cell."""
    row = {"kind": kind, "verb": verb, "backend": backend(), "result": result}
    with path.open("a") as file:
        file.write(json.dumps({**row, **figures}) + "\n")


if __name__ == "__main__":
    main()
