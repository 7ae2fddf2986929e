"""Child side of `run_in_child`: `python -m kerasmem.processes ORDER ANSWER`."""

import sys
from pathlib import Path

from kerasmem.processes import work

if __name__ == "__main__":
    work(Path(sys.argv[1]), Path(sys.argv[2]))
