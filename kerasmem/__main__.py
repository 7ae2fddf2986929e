"""`python -m kerasmem`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # prevents imports from the current folder

from kerasmem.cli import main

if __name__ == "__main__":
    sys.exit(main())
