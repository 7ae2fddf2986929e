"""Runs a LiteRT file in a process without Keras and prints its resident bytes.

    python -P kerasmem/extras/litert/resident_child.py FILE INPUTS THREADS NAME...

FILE is the `.tflite` file. INPUTS is an `.npz` file with one array per input NAME, in
order. The output is JSON with two keys: `before`, the resident bytes before loading the
file, and `peak`, the maximum of the process. Both are null on systems other than Linux.
The script does not import kerasmem, because kerasmem imports Keras.
"""

import json
import re
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_PASSES = 3


def _kibibytes(name: str) -> int | None:
    try:
        text = _STATUS.read_text(encoding="ascii")
    except OSError:
        return None
    match = re.search(rf"{name}:\s*(\d+) kB", text)
    return int(match[1]) if match else None


def main() -> None:
    """Run the file three times."""
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    path, inputs, threads, *names = sys.argv[1:]
    with np.load(inputs) as file:
        arrays = {name: file[f"arr_{number}"] for number, name in enumerate(names)}
    before = _kibibytes("VmRSS")
    run = Interpreter(model_path=path, num_threads=int(threads)).get_signature_runner()
    for _ in range(_PASSES):
        run(**arrays)
    peak = _kibibytes("VmHWM")
    kibibytes = {"before": before, "peak": peak}
    bytes_of = {name: size and size * 1024 for name, size in kibibytes.items()}
    sys.stdout.write(json.dumps(bytes_of))


if __name__ == "__main__":
    main()
