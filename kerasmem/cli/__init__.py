"""The command `kerasmem`: one file per command, and what all of them share."""

from kerasmem.cli.main import main

__all__ = ["main"]
