"""Look for graphs that break a law, and for files and folders that do harm."""

import argparse
import sys
import time
from pathlib import Path

from tests.fuzz.driver import Tally, look

_WORKERS = {lane: f"tests.fuzz.{lane}.worker" for lane in ("graphs", "files", "states")}
_CORPUS = Path(__file__).parent / "corpus"


def main() -> int:
    """Look for failures, print what was found, return 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("lane", choices=_WORKERS)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--cases", type=int, default=1 << 40, help="most to try")
    parser.add_argument(
        "--state", type=Path, help="file that a later call goes on from"
    )
    parser.add_argument(
        "--keep", type=Path, default=_CORPUS, help="folder for failures"
    )
    options = parser.parse_args()
    tally = Tally.read(options.state, options.seed)
    print(f"{options.lane}: from seed {tally.next_seed}", flush=True)
    look(
        _WORKERS[options.lane],
        tally,
        until=time.monotonic() + 60 * options.minutes,
        cases=options.cases,
        corpus=options.keep,
        state=options.state,
    )
    print(tally.table())
    print(f"Next: --seed {tally.next_seed}")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
