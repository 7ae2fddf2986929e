"""A file killed while it is written.

Run by hand, an hour on two cores:

    KERAS_BACKEND=jax python -m tests.benchmarks.bench_kills [KILLS]

`kill -9` while a model is saved again and again over itself, in every coding; what is
there must always be a whole file, of one save and none before the last.
"""

import sys
import tempfile
from pathlib import Path

from tests.files.test_killed import killed


def main():
    kills = (*sys.argv[1:], "50")[0]
    with tempfile.TemporaryDirectory() as folder:
        numbers = killed(Path(folder) / "target.keras", int(kills))
        print(f"{len(numbers)} kills, {numbers[-1]} saves, always a whole file")


if __name__ == "__main__":
    main()
