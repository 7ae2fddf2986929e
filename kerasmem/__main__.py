"""`python -m kerasmem`."""

import sys

from kerasmem.cli import main

if __name__ == "__main__":
    sys.exit(main())
