"""HDF5 that says something else: shapes, types, links, attributes."""

import io
from typing import Any

import h5py
import numpy as np

from tests.fuzz.files.mutate_json import mutated_json
from tests.fuzz.graphs.operation import Draw


def changed_hdf5(content: bytes, draw: Draw) -> bytes:
    """Change what an HDF5 file says: shapes, types, links, attributes."""
    file_like = io.BytesIO(content)
    with h5py.File(file_like, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        for _ in range(draw.choice((1, 1, 3)) if names else 0):
            name = draw.choice(names)
            if name in file:
                _change_object(file, name, draw)
    return file_like.getvalue()


def _change_object(file: Any, name: str, draw: Draw) -> None:
    item = file[name]
    how = draw.choice(("shape", "type", "link", "remove", "attribute", "move", "fill"))
    if how == "attribute":
        _change_attribute(draw.choice((file, item)), draw)
    elif how == "remove":
        del file[name]
    elif how == "move":
        file.move(name, f"{name}_{draw.choice(('x', '1'))}")
    elif how == "link":
        del file[name]
        file[name] = draw.choice(
            (h5py.SoftLink("/"), h5py.SoftLink(f"/{name}"), h5py.SoftLink("/nothing"),
             h5py.ExternalLink("/etc/passwd", "/"), h5py.ExternalLink("plain.h5", "/"))
        )  # fmt: skip
    elif isinstance(item, h5py.Dataset):
        _change_dataset(file, name, how, draw)


def _change_dataset(file: Any, name: str, how: str, draw: Draw) -> None:
    shape, kind = file[name].shape, file[name].dtype
    del file[name]
    if how == "shape":
        large = draw.choice(
            ((0,), (), (3,), (1 << 40,), (1 << 15, 1 << 15), (2, *shape))
        )
        chunks = {"chunks": True, "compression": "gzip"} if large else {}
        file.create_dataset(name, large, dtype=kind, **chunks)
    elif how == "type":
        made = draw.choice(
            ("S4", "float64", "int8", "complex64", "bool", h5py.string_dtype())
        )
        file.create_dataset(name, shape, dtype=made)
    else:
        value = draw.choice((np.nan, np.inf, 0, 1e30))
        numbers = value if kind.kind == "f" else draw.choice((0, 1, -1))
        file.create_dataset(name, data=np.full(shape, numbers).astype(kind))


def _change_attribute(item: Any, draw: Draw) -> None:
    names = list(item.attrs)
    if not names:
        item.attrs["weight_names"] = draw.choice((b"x", 3, [b"a", b"b"]))
        return
    name = draw.choice(names)
    value = item.attrs[name]
    if isinstance(value, str) and value.startswith("{"):
        made = mutated_json(value, draw).encode(errors="replace")
        if len(made) < 60_000:  # more does not fit into an attribute
            item.attrs[name] = made.decode(errors="replace")
    elif draw.flag(0.3):
        del item.attrs[name]
    else:
        item.attrs[name] = draw.choice((b"", "x", -1, 3.5, [b"kernel:0"], np.zeros(3)))
