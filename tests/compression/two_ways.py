"""What is written from file to file beside what the way through memory writes."""

import io
import json
import re
import zipfile

import h5py

import kerasmem as km


def members(path):
    """Return the members of a file but the date: arrays by their bits, plain config."""
    with zipfile.ZipFile(path) as archive:
        found = {n: archive.read(n) for n in archive.namelist() if "metadata" not in n}
    arrays = {}

    def keep(name, item):
        # The parts of a layer are numbered as Keras makes them in this process.
        attributes = {k: re.sub(r"_\d+$", "", str(v)) for k, v in item.attrs.items()}
        data = item[()].tobytes() if isinstance(item, h5py.Dataset) else None
        form = (item.shape, str(item.dtype), item.compression) if data else None
        arrays[name] = (attributes, form, data)

    with h5py.File(io.BytesIO(found.pop("model.weights.h5"))) as file:
        file.visititems(keep)
    return {"arrays": arrays, "config": told(found.pop("config.json")), **found}


def told(config):
    """Return a config without the numbers that Keras takes of addresses in memory."""

    def kept(pairs):
        return {key: value for key, value in pairs if key != "shared_object_id"}

    return json.loads(config, object_pairs_hook=kept)


def both(path, steps, tmp_path, **options):
    """Return the results of both ways, and compare their files."""
    expected = km.compress(path, steps, output=tmp_path / "a.keras", **options)
    found = km.compress(
        path, steps, output=tmp_path / "b.keras", low_memory=True, **options
    )
    ours, theirs = (members(tmp_path / f"{name}.keras") for name in "ba")
    assert ours["arrays"].keys() == theirs["arrays"].keys()
    assert [n for n, a in ours["arrays"].items() if a != theirs["arrays"][n]] == []
    assert ours == theirs
    return expected, found
