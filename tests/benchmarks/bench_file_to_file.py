"""Time and memory of `kerasmem compress --low-memory`, of a model of any size.

    python -m tests.benchmarks.bench_file_to_file --millions 547
    python -m tests.benchmarks.bench_file_to_file --millions 547 --dtype bfloat16
    python -m tests.benchmarks.bench_file_to_file --millions 1000 --data-limit 2GiB
    python -m tests.benchmarks.bench_file_to_file --millions 60 --kills 50

Each command runs in a process of its own; its peak is that of all processes that it
starts, less that of `python -c "import kerasmem"`, and its time is given without the
imports too. The model is written piece by piece, so that making it takes no more.
"""

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from kerasmem.units import MIB, format_bytes, parse_bytes

WIDTH, INNER, LENGTH = 1536, 6144, 32
IMPORT = [sys.executable, "-c", "import kerasmem, keras; keras.Model"]
COMMANDS = {
    "inspect": ["inspect", "{model}"],
    "int8": ["compress", "{model}", "--quantize", "int8"],
    "int4": ["compress", "{model}", "--quantize", "int4"],
    "prune": ["compress", "{model}", "--prune", "0.8"],
    "cluster": ["compress", "{model}", "--recipe", "{folder}/cluster.json"],
    "mixed": ["compress", "{model}", "--recipe", "{folder}/mixed.json"],
}
LOADS = {
    "load": "import sys, kerasmem as km; km.load_model(sys.argv[1])",
    "Keras's load": "import sys, keras, kerasmem; keras.models.load_model(sys.argv[1])",
}


def make_model(path: Path, weights: int, dtype: str) -> None:
    """Write a model of about so many weights, one of them in memory at a time."""
    import keras

    from kerasmem.backends import current
    from kerasmem.backends.at_rest import offloaded
    from kerasmem.backends.lazy import lazy_variables
    from kerasmem.files.write import write_model

    layers, values = keras.layers, current().lazy_values()
    block = 2 * WIDTH * INNER
    rows = max(weights // 4 // WIDTH, 16)
    count = max(round((weights - rows * WIDTH) / block), 1)
    with (
        tempfile.TemporaryDirectory(dir=path.parent) as folder,
        offloaded(values, Path(folder)) as files,
        lazy_variables(values, at_rest=files),
    ):
        keras.config.set_dtype_policy(dtype)
        inputs = keras.Input((LENGTH,), dtype="int32")
        x = layers.Embedding(rows, WIDTH)(inputs)
        for _ in range(count):
            inner = layers.Dense(INNER, "relu")(x)
            x = layers.Add()([x, layers.Dense(WIDTH)(inner)])
        model = keras.Model(inputs, layers.LayerNormalization()(x))
        write_model(model, Path(folder) / "m.keras", "stored")
        (Path(folder) / "m.keras").replace(path)


def run(command: list[str], limit: int | None = None) -> dict[str, float]:
    """Run a command; return its seconds, and the peak bytes of it and its children."""

    def bounded() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    begin = time.perf_counter()
    process = subprocess.Popen(
        command,
        preexec_fn=bounded,  # noqa: PLW1509
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    peak = [0]
    watch = threading.Thread(target=_watch, args=(process.pid, peak), daemon=True)
    watch.start()
    _, errors = process.communicate()
    seconds = time.perf_counter() - begin
    watch.join()
    if process.returncode:
        raise SystemExit(errors.decode()[-2000:])
    return {"seconds": seconds, "peak_bytes": peak[0]}


def _watch(pid: int, peak: list[int]) -> None:
    try:
        parent = psutil.Process(pid)
        while parent.is_running() and parent.status() != psutil.STATUS_ZOMBIE:
            held = 0
            for each in [parent, *parent.children(recursive=True)]:
                info = each.memory_info()
                held += info.rss
            peak[0] = max(peak[0], held)
            time.sleep(0.01)
    except psutil.Error:
        return


def kill_at_random(command: list[str], output: Path, times: int) -> int:
    """Kill a command at random moments; return how often a new file was there, whole.

    Raises:
        SystemExit: if the old file was ever gone or damaged, or litter stays.
    """
    from kerasmem.files.archive import check_archive

    whole = run(command)["seconds"]
    output.write_bytes(b"old")
    new = 0
    for _ in range(times):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(random.uniform(0, 1.05 * whole))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if output.read_bytes() != b"old":
            check_archive(output)
            new += 1
            output.write_bytes(b"old")
    for folder in output.parent.glob(".kerasmem-saving-*"):
        os.utime(folder, (0, 0))  # as if a minute had passed
    run(command)
    left = [*output.parent.glob(".kerasmem-saving-*")]
    if left:
        raise SystemExit(f"left behind: {left}")
    return new


def write_recipes(folder: Path, budget: int) -> None:
    """Write the recipes of the commands."""
    mixed = {"scheme": "mixed", "budget": {"max_bytes": budget}}
    mixed |= {"granularity": "channel"}
    steps = {
        "cluster": {"technique": "cluster", "n": 16},
        "mixed": {"technique": "quantize", **mixed},
    }
    for name, step in steps.items():
        (folder / f"{name}.json").write_text(json.dumps([step]))


def main() -> None:
    """Make the model, run the commands, print a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=float, default=20.0, help="weights (20)")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--data-limit", type=parse_bytes, help="RLIMIT_DATA")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument(
        "--only", nargs="*", default=[*COMMANDS], choices=[*COMMANDS, *LOADS]
    )
    options = parser.parse_args()
    for line in measured(options):
        print(json.dumps(line), flush=True)


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what each command took."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        model, output = Path(folder) / "model.keras", Path(folder) / "small.keras"
        make_model(model, round(options.millions * 1e6), options.dtype)
        write_recipes(Path(folder), round(0.8e6 * options.millions))
        base = run(IMPORT)
        yield {"model": format_bytes(model.stat().st_size), "import": base}
        for name in options.only:
            places = {"model": model, "folder": folder}
            if name in LOADS:
                words, command = [name], [sys.executable, "-c", LOADS[name], str(model)]
            else:
                words = [word.format(**places) for word in COMMANDS[name]]
                command = [sys.executable, "-m", "kerasmem", *words]
            if words[0] == "compress":
                command += ["-o", str(output), "--low-memory"]
            found = run(command, options.data_limit)
            yield {
                "command": name,
                "seconds": round(found["seconds"], 2),
                "without_imports": round(found["seconds"] - base["seconds"], 2),
                "peak_mib_over_import": round(
                    (found["peak_bytes"] - base["peak_bytes"]) / MIB
                ),
                "file": output.stat().st_size if output.exists() else None,
            }
            if options.kills and words[0] == "compress":
                new = kill_at_random(command, output, options.kills)
                yield {"command": name, "kills": options.kills, "new_files": new}


if __name__ == "__main__":
    main()
