"""`python -m kerasmem`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder, whose files are not to be imported

from kerasmem.cli import main

if __name__ == "__main__":
    sys.exit(main())
