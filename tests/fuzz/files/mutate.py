"""Every way to damage a file or a folder, each decided by a number alone."""

import gzip
import io
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.fuzz.files.mutate_hdf5 import changed_hdf5
from tests.fuzz.files.mutate_json import mutated_json, mutated_yaml, strange
from tests.fuzz.graphs.operation import Draw


def flipped(content: bytes, draw: Draw) -> bytes:
    """Return bytes with a few bits flipped."""
    found = bytearray(content)
    for _ in range(draw.choice((1, 2, 8, 40)) if found else 0):
        found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)
    return bytes(found)


def _cut(content: bytes, draw: Draw) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _zeroed(content: bytes, draw: Draw) -> bytes:
    start = draw.randrange(len(content) + 1)
    size = draw.choice((8, 512, 4096))
    return (
        content[:start]
        + bytes(min(size, len(content) - start))
        + content[start + size :]
    )


def _grown(content: bytes, draw: Draw) -> bytes:
    return content + draw.choice((b"\0" * 4096, content, b"PK\x05\x06" + b"\0" * 18))


_RAW = {"flipped": flipped, "cut": _cut, "zeroed": _zeroed, "grown": _grown}


def damaged_bytes(path: Path, draw: Draw) -> None:
    """Change a file's bytes without regard for what they mean."""
    way = draw.choice(list(_RAW.values()))
    path.write_bytes(way(path.read_bytes(), draw))


def changed_text(path: Path, draw: Draw) -> None:
    """Change JSON, lines of JSON, or YAML."""
    text = path.read_text()
    if path.suffix == ".yaml":
        made = mutated_yaml(text, draw)
    elif path.suffix == ".jsonl":
        made = _changed_lines(text, draw)
    else:
        made = mutated_json(text, draw)
    path.write_text(made, errors="surrogatepass")


def _changed_lines(text: str, draw: Draw) -> str:
    lines = text.splitlines() or ["{}"]
    place = draw.randrange(len(lines))
    lines[place] = mutated_json(lines[place], draw)
    if draw.flag(0.1):
        lines *= draw.choice((2, 50))
    return "\n".join(lines) + "\n"


def changed_gzip(path: Path, draw: Draw) -> None:
    """Change the JSON in a gzipped file, or make it a bomb."""
    text = gzip.decompress(path.read_bytes()).decode()
    if draw.flag(0.1):
        made = draw.choice((b" ", b"[", b"0")) * draw.choice(
            (1 << 20, 1 << 26, 1 << 28)
        )
    else:
        made = _changed_lines(text, draw).encode(errors="surrogatepass")
    path.write_bytes(gzip.compress(made, 1))


def changed_archive(path: Path, draw: Draw) -> None:
    """Change the members of a zip archive, checksums put right."""
    with zipfile.ZipFile(path) as archive:
        members = [
            (i.filename, archive.read(i), i.compress_type) for i in archive.infolist()
        ]
    number = draw.randrange(len(members))
    name, content, packing = members[number]
    way = draw.choice((*_MEMBER_WAYS, "inside", "inside", "inside", "inside"))
    if way == "inside":
        members[number] = (name, _inside(name, content, draw), packing)
    else:
        _MEMBER_WAYS[way](members, number, draw)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content, packing in members:
            archive.writestr(name, content, packing)


def _inside(name: str, content: bytes, draw: Draw) -> bytes:
    if draw.flag(0.25):
        return draw.choice(list(_RAW.values()))(content, draw)
    if name.endswith(".json"):
        return mutated_json(content.decode(), draw).encode(errors="replace")
    if name.endswith(".h5"):
        return changed_hdf5(content, draw)
    if name.endswith(".npy"):
        return _changed_npy(content, draw)
    return flipped(content, draw)


def _changed_npy(content: bytes, draw: Draw) -> bytes:
    array = np.load(io.BytesIO(content))
    how = draw.choice(("shape", "shape", "type", "objects", "values"))
    out = io.BytesIO()
    if how == "objects":
        np.save(
            out, np.array([{"a": 1}, strange(draw)], dtype=object), allow_pickle=True
        )
    elif how == "type":
        kind = draw.choice(("complex128", "S5", "U3", "M8[s]", "bool", "float16", "V7"))
        np.save(out, np.zeros(array.shape, kind))
    elif how == "values":
        np.save(out, np.full(array.shape, draw.choice((np.nan, np.inf, -1, 1e300))))
    else:
        shape = draw.choice(
            (
                "(1099511627776, 4)",
                "(-1, 4)",
                "()",
                "(0, 4)",
                "(4611686018427387904,)",
                "8",
                "('a',)",
            )
        )
        before = str(array.shape).encode()
        return content.replace(before, shape.encode().ljust(len(before)), 1)
    return out.getvalue()


def _swap(members: list, number: int, draw: Draw) -> None:
    other = draw.randrange(len(members))
    one, two = members[number], members[other]
    members[number], members[other] = (one[0], *two[1:]), (two[0], *one[1:])


def _rename(members: list, number: int, draw: Draw) -> None:
    name = draw.choice(
        ("../SENTINEL", "/tmp/SENTINEL_ABS", "x", "a/../b", "assets/x", "C:\\x")
    )
    members[number] = (name, *members[number][1:])


def _bomb(members: list, number: int, draw: Draw) -> None:
    piece = draw.choice((b"\0", b"[", b"{},", b" "))
    size = draw.choice((1 << 20, 1 << 24, 1 << 28))
    members[number] = (
        members[number][0],
        piece * (size // len(piece)),
        zipfile.ZIP_DEFLATED,
    )


_MEMBER_WAYS: dict[str, Callable[[list, int, Draw], None]] = {
    "remove": lambda members, number, draw: members.pop(number),
    "repeat": lambda members, number, draw: members.append(members[number]),
    "empty": lambda members, number, draw: members.__setitem__(
        number, (members[number][0], b"", members[number][2])
    ),
    "pack": lambda members, number, draw: members.__setitem__(
        number,
        (
            *members[number][:2],
            draw.choice((0, 8, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)),
        ),
    ),
    "swap": _swap,
    "rename": _rename,
    "bomb": _bomb,
}


def changed_hdf5_file(path: Path, draw: Draw) -> None:
    """As `changed_hdf5`, of a file."""
    path.write_bytes(changed_hdf5(path.read_bytes(), draw))


def changed_folder(path: Path, draw: Draw) -> None:
    """Put something else in the place of a file in a folder, or damage it."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink())
    if not files:
        return
    file = draw.choice(files)
    way = draw.choice((*_FILE_WAYS, "content", "content", "content", "content"))
    if way == "content":
        damage(file, draw.getrandbits(31))
    else:
        _FILE_WAYS[way](file, draw)


def _replace(make: Callable[[Path, Draw], None]) -> Callable[[Path, Draw], None]:
    def way(file: Path, draw: Draw) -> None:
        file.unlink()
        make(file, draw)

    return way


def _link(file: Path, draw: Draw) -> None:
    target = draw.choice(
        (file.name, "/etc/passwd", "/dev/zero", "../precious", "nothing")
    )
    file.symlink_to(target)


_NAMES = ("kerasmem-step-abc.json", "kerasmem-step-99.json", "memory-p1.jsonl",
          "memory-p99999999999999999999.jsonl", "timeline-9.json.gz", "x", "run.json",
          "keys.bin", "answer_9.bin", "\udcff")  # fmt: skip
_FILE_WAYS: dict[str, Callable[[Path, Draw], None]] = {
    "link": _replace(_link),
    "fifo": _replace(lambda file, draw: os.mkfifo(file)),
    "folder": _replace(lambda file, draw: file.mkdir()),
    "gone": lambda file, draw: file.unlink(),
    "empty": lambda file, draw: file.write_bytes(b""),
    "copy": lambda file, draw: (
        file.stat().st_size < 1 << 24
        and shutil.copy(file, file.with_name(draw.choice(_NAMES)))
    ),
    "sparse": lambda file, draw: os.truncate(file, draw.choice((1 << 24, 1 << 33))),
}


def damage(path: Path, number: int) -> None:
    """Damage a file or a folder in the way that a number says."""
    draw = Draw(number)
    if path.is_dir() and not path.is_symlink():
        changed_folder(path, draw)
    elif path.is_file() and path.stat().st_size < 1 << 29:
        raw = draw.flag(0.25)
        (damaged_bytes if raw else _BY_NAME.get(path.suffix, damaged_bytes))(path, draw)


_BY_NAME: dict[str, Callable[[Path, Draw], None]] = {
    ".keras": changed_archive,
    ".npz": changed_archive,
    ".h5": changed_hdf5_file,
    ".json": changed_text,
    ".jsonl": changed_text,
    ".yaml": changed_text,
    ".gz": changed_gzip,
}
