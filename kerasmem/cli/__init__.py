"""The command line `kerasmem`, one file per command."""

from kerasmem.cli.main import main

__all__ = ["main"]
