"""`python -m kerasmem.memory.child ORDER ANSWER`: the other end of `run_in_child`."""

import sys
from pathlib import Path

from kerasmem.memory.child import work

if __name__ == "__main__":
    work(Path(sys.argv[1]), Path(sys.argv[2]))
