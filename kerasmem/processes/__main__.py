"""`python -m kerasmem.processes ORDER ANSWER`: the other end of `run_in_child`."""

import sys
from pathlib import Path

from kerasmem.processes import work

if __name__ == "__main__":
    work(Path(sys.argv[1]), Path(sys.argv[2]))
