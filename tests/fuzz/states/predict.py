"""The folder of an interrupted `km.predict`, and its surroundings."""

import os
import resource
import shutil
import stat
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.files.mutate import changed_folder, damage
from tests.fuzz.graphs.operation import Draw
from tests.fuzz.outcome import WrongResultError

ROWS, SIZE, SAVED = 40, 4, 6
_OUTPUTS = ("single", "several")
_MAGIC = b'{"kerasmem.predict": 1, '
_RECORD = struct.Struct("<QI")


@cache
def _model_class() -> Any:
    import keras

    class Affine(keras.Model):
        """`factor * x`, in NumPy: a forked child needs no backend."""

        def __init__(self, outputs: str, factor: float, hidden: float, dtype: str):
            super().__init__()
            self.outputs_form, self.factor = outputs, factor
            self.hidden, self.output_dtype = hidden, dtype
            self.calls, self.stop_after = 0, None

        def get_config(self) -> dict[str, Any]:
            return {"factor": self.factor}

        def predict_on_batch(self, x: Any) -> Any:
            if self.calls == self.stop_after:
                raise InterruptedByTestError
            self.calls += 1
            y = (x * self.factor + self.hidden).astype(self.output_dtype)
            return y if self.outputs_form == "single" else {"../a": y, "b": y[:, 0]}

    return Affine


class InterruptedByTestError(Exception):
    """Ends a run as Ctrl-C does."""


def _x() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")


def _interrupted(room: Path, outputs: str, factor: float) -> None:
    from kerasmem.memory.predict import predict

    model = _model_class()(outputs, factor, 0.0, "float32")
    model.stop_after = SAVED
    try:
        predict(model, _x(), output=room / outputs, batch_size=SIZE)
    except InterruptedByTestError:
        return
    raise RuntimeError("The run was not interrupted.")


def prepare(room: Path) -> None:
    """Write a folder of six of ten batches per form of output, and another model's."""
    for outputs in _OUTPUTS:
        _interrupted(room, outputs, 3.0)
        (room / f"{outputs}.part").rename(room / f"{outputs}.other")
        _interrupted(room, outputs, 2.0)


def drawn(draw: Draw) -> dict[str, Any]:
    """Return a model, data, and the way of a call; half of them as in `prepare`."""
    request = {"outputs": draw.choice(_OUTPUTS), "factor": 2.0, "hidden": 0.0,
               "dtype": "float32", "batch_size": SIZE, "first_changed": ROWS,
               "rows": ROWS, "form": "array", "full_at": None}  # fmt: skip
    others = {"factor": 3.0, "hidden": 1.0, "dtype": draw.choice(("float16", "int32")),
              "batch_size": 5, "first_changed": draw.randrange(ROWS),
              "rows": draw.randrange(1, ROWS), "form": "generator",
              "full_at": draw.randrange(1, 600)}  # fmt: skip
    if draw.flag():
        name = draw.choice(list(others))
        request[name] = others[name]
    return request


def change(room: Path, request: dict[str, Any], draw: Draw) -> None:
    """Change the folder of the run, a file of it, or the output."""
    draw.choice(_WAYS)(room / f"{request['outputs']}.part", draw)


def own(room: Path, request: dict[str, Any]) -> set[Path]:
    """Return the output and the files of the run, if they are those of a run."""
    target = room / request["outputs"]
    part = room / f"{request['outputs']}.part"
    names = ("outputs.json", "new.json", "batches.bin", *map("{}.npy".format, range(9)))
    paths: set[Path] = set()
    if not os.path.lexists(part) or _is_of_run(part):
        paths |= {part, *(part / name for name in names)}
    is_link, is_several = target.is_symlink(), request["outputs"] == "several"
    is_new = not os.path.lexists(target)
    if not is_link and not is_several and (is_new or target.is_file()):
        paths.add(target)
    is_empty = target.is_dir() and not any(target.iterdir())
    if not is_link and is_several and (is_new or is_empty):
        paths |= {target, *(target / name for name in names)}
    return paths


def _is_of_run(part: Path) -> bool:
    """Return whether a folder is empty, or has a manifest and regular files only."""
    if part.is_symlink() or not part.is_dir():
        return False
    status = [path.lstat() for path in part.iterdir()]
    if not all(stat.S_ISREG(s.st_mode) and s.st_nlink == 1 for s in status):
        return False
    manifest = part / "outputs.json"
    if not manifest.exists():
        return not status
    with manifest.open("rb") as file:  # It may have 8 GiB.
        return file.read(len(_MAGIC)) == _MAGIC


def use(room: Path, request: dict[str, Any]) -> None:
    """Predict, once more after a full disk, and compare all rows with NumPy."""
    from kerasmem.errors import KerasMemError
    from kerasmem.memory.predict import predict

    output, outputs = room / request["outputs"], request["outputs"]
    x = _x()[: request["rows"]]
    x[request["first_changed"] :] += 1
    values = [request[name] for name in ("factor", "hidden", "dtype")]
    model = _model_class()(outputs, *values)

    def call() -> Any:
        size = request["batch_size"]
        batches = ((x[i : i + size], None) for i in range(0, len(x), size))
        data = batches if request["form"] == "generator" else x
        return predict(model, data, output=output, batch_size=size)

    if request["full_at"] is not None:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["full_at"], limits[1]))
        try:
            call()
        except KerasMemError:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        else:
            return  # Everything was written before the disk was full.
    result = call()
    y = (x * request["factor"] + request["hidden"]).astype(request["dtype"])
    expected = [y] if outputs == "single" else [y, y[:, 0]]
    paths = [output] if outputs == "single" else [output / "0.npy", output / "1.npy"]
    arrays = [result] if outputs == "single" else [result["../a"], result["b"]]
    for rows, array, path in zip(expected, arrays, paths, strict=True):
        for actual in (array, np.load(path)):
            if actual.dtype != rows.dtype or not np.array_equal(actual, rows):
                raise WrongResultError(f"{path.name}: {actual.dtype}{actual.shape}")


def _damage_rows(part: Path, draw: Draw) -> None:
    damage(draw.choice(sorted(part.glob("*.npy"))), draw.getrandbits(31))


def _change_entries(part: Path, draw: Draw) -> None:
    """Change, move or repeat an entry of the journal."""
    path = part / "batches.bin"
    content = path.read_bytes()
    entries = [content[i : i + _RECORD.size] for i in range(0, len(content), 12)]
    place, other = draw.randrange(len(entries)), draw.randrange(len(entries))
    rows, checksum = _RECORD.unpack(entries[place])
    way = draw.choice(("rows", "rows", "checksum", "swap", "repeat", "remove", "zeros"))
    if way == "rows":
        rows = draw.choice((0, rows - 1, rows + 1, 2 * rows, 1 << 33, (1 << 64) - 1))
        entries[place] = _RECORD.pack(rows, checksum)
    elif way == "checksum":
        entries[place] = _RECORD.pack(rows, checksum ^ 1 << draw.randrange(32))
    elif way == "swap":
        entries[place], entries[other] = entries[other], entries[place]
    elif way == "repeat":
        entries.insert(other, entries[place])
    elif way == "remove":
        del entries[place]
    else:
        entries.append(bytes(draw.choice((12, 24, 4096))))
    path.write_bytes(b"".join(entries))


def _replace_part(part: Path, draw: Draw) -> None:
    """Replace the folder of the run."""
    shutil.move(part, part.with_suffix(".moved"))
    _create(part, draw)


def _occupy_output(part: Path, draw: Draw) -> None:
    """Create something at the path of the output."""
    _create(part.with_suffix(""), draw)


def _create(path: Path, draw: Draw) -> None:
    outside = draw.choice((path.parent, path.parent.parent)) / "precious"
    way = draw.choice(("file", "full", "empty", "link", "folder link", "fifo", "lost"))
    if way == "file":
        path.write_bytes(b"precious")
    elif way == "fifo":
        os.mkfifo(path)
    elif way in ("full", "empty"):
        path.mkdir()
    else:
        moved = path.with_suffix(".moved")
        target = {"link": outside, "folder link": moved, "lost": path.parent / "lost"}
        path.symlink_to(target[way])
    if way == "full":
        (path / draw.choice(("0.npy", "outputs.json", "thesis.txt"))).write_text("mine")


def _link_to_outside(part: Path, draw: Draw) -> None:
    file = draw.choice(sorted(part.iterdir()))
    file.unlink()
    os.link(part.parent / "precious", file)


def _mix(part: Path, draw: Draw) -> None:
    """Copy a file of another model's run."""
    other = draw.choice(sorted(part.with_suffix(".other").iterdir()))
    shutil.copy(other, part / other.name)


def _add(part: Path, draw: Draw) -> None:
    name = draw.choice(
        ("thesis.txt", "2.npy", "new.json", "0.npy.bak", "x\n", "é" * 90)
    )
    (part / name).write_bytes(draw.randbytes(draw.randrange(300)))


def _take_from_other_output(part: Path, draw: Draw) -> None:
    """Copy a file of the run with the other form of output."""
    others = [part.with_name(f"{name}.part") for name in _OUTPUTS]
    file = draw.choice([file for other in others for file in sorted(other.iterdir())])
    if file.parent != part:
        shutil.copy(file, part / file.name)


_WAYS: tuple[Callable[[Path, Draw], None], ...] = (
    changed_folder, changed_folder, changed_folder, changed_folder, _damage_rows,
    _change_entries, _change_entries, _replace_part, _occupy_output, _link_to_outside,
    _mix, _add, _take_from_other_output,
)  # fmt: skip
