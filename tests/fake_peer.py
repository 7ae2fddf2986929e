"""A peer for test_peers.py: one job works, one fails, one ends its process."""

import os

from tests.benchmarks.peers.row import Row, sizes

TOOL, PACKAGE = "Fake", "numpy"


def works(task, name, job):
    path = task.path("file.bin")
    path.write_bytes(bytes(10_000))
    yield Row(name, job, form=".keras", accuracy=0.5, **sizes(path))


def fails(task, name, job):
    raise ValueError("no such layer\nand more")


def dies(task, name, job):
    os._exit(3)


JOBS = {"float": works, "prune": fails, "int8": dies}
