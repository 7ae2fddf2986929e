"""Saving a model as a `.keras` file that is really smaller.

Keras stores the members of a `.keras` archive uncompressed, so a pruned model's zeros
take their full size. Deflated members are read by stock `keras.models.load_model` just
as well, bit for bit.
"""

import json
import shutil
import struct
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, get_args

import h5py
import keras

from kerasmem.errors import ConfigError, KerasMemError, OutputError, as_received
from kerasmem.files.atomic import replacing
from kerasmem.files.coded_model import CodedModel
from kerasmem.files.load import first_reason
from kerasmem.files.members import WEIGHTS, opened_weights
from kerasmem.files.opens import check_opens
from kerasmem.files.weights import (
    ALIGNMENT_BYTES,
    check_same,
    rewrite,
    store_coded,
    store_deflated,
    store_plain,
)
from kerasmem.graph.clone import fresh_optimizer

Coding = Literal["deflate", "entropy", "stored"]

_STORES = {"deflate": store_deflated, "entropy": store_coded, "stored": store_plain}
_DATED = "metadata.json"
_CONFIG = "config.json"
_PIECE = 1 << 20

_MOST_DEFLATED_TWICE = 4 << 20
"""In a larger file of small arrays it is little that HDF5 writes of each; in a smaller
one that is deflated once more, with all else."""


def repack(source: Path, target: Path, *, coding: Coding) -> None:
    """Write an archive anew.

    Args:
        source: the archive as Keras wrote it.
        target: where to, in a folder with room for the weights.
        coding: how they are written.
    """
    with (
        opened_weights(source) as old,
        zipfile.ZipFile(source) as stored,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made,
    ):
        for member in stored.infolist():
            if member.filename == WEIGHTS and old is not None:
                _write_weights(old, made, target.with_suffix(".h5"), coding)
            elif member.filename == _CONFIG and coding == "entropy":
                config = CodedModel.wrap(json.loads(stored.read(member)))
                made.writestr(_CONFIG, json.dumps(config))
            elif member.filename == _DATED:
                # As it is: deflated, its size would change with the second.
                made.writestr(_DATED, stored.read(member), zipfile.ZIP_STORED)
            else:
                _copy(stored, made, member)


def _write_weights(
    old: h5py.File, made: zipfile.ZipFile, new: Path, coding: Coding
) -> None:
    rewrite(old, new, _STORES[coding])
    if coding == "stored" or new.stat().st_size > _MOST_DEFLATED_TWICE:
        _write_aligned(made, new)
    else:
        made.write(new, WEIGHTS)
    new.unlink()


def _write_aligned(made: zipfile.ZipFile, new: Path) -> None:
    """Write the weights as they are, where arrays in them lie well in the archive."""
    member = zipfile.ZipInfo.from_file(new, WEIGHTS)
    member.compress_type = zipfile.ZIP_STORED
    # Before the bytes of a member come 30 and its name, and what it says of sizes that
    # do not fit; the rest is made up by an entry that means nothing.
    large = member.file_size >= 1 << 31
    start = made.start_dir + 30 + len(WEIGHTS) + (20 if large else 0) + 4
    # Never a multiple of 512, where HDF5 would take the archive for one of its files.
    missing = (ALIGNMENT_BYTES - start) % (2 * ALIGNMENT_BYTES)
    member.extra = struct.pack("<HH", 0xD935, missing) + bytes(missing)
    with new.open("rb") as reader, made.open(member, "w", force_zip64=large) as writer:
        shutil.copyfileobj(reader, writer, _PIECE)


def check_repacked(source: Path, target: Path, *, coding: Coding) -> None:
    """Read an archive that `repack` wrote, and compare it with its source.

    Raises:
        OutputError: if anything was not read back as it was written.
    """
    with zipfile.ZipFile(target) as written:
        damaged = written.testzip()
    if damaged is not None:
        raise OutputError(f"the member {damaged!r} was not read back as it was written")
    with opened_weights(source) as old, opened_weights(target) as found:
        if old is not None and found is not None:
            check_same(old, found, coded=coding == "entropy")


def _copy(
    stored: zipfile.ZipFile, made: zipfile.ZipFile, member: zipfile.ZipInfo
) -> None:
    large = member.file_size >= 1 << 31
    with (
        stored.open(member) as reader,
        made.open(member.filename, "w", force_zip64=large) as writer,
    ):
        shutil.copyfileobj(reader, writer, _PIECE)


def save_model(
    model: Any,
    path: str | Path,
    *,
    include_optimizer: bool = False,
    coding: Coding = "deflate",
) -> None:
    """Save `model` as a `.keras` file, whole or not at all.

    What was written is read back, and opened, before it takes the place of a file: its
    config has to give this model, and each weight has to find its entry in the file,
    with its shape, type and value. That takes the memory of one weight at a time; but
    a model with a class of layer or model that this process has not saved before is
    loaded whole, once. Classes and functions are those of `model`, registered or not.

    Args:
        model: a built Keras model.
        path: where to; ends in `.keras`. A file that is there is replaced.
        include_optimizer: False saves the optimizer as it was before the first step:
            its settings are kept, what it has learned (two floats per weight with
            Adam) is not.
        coding: `"deflate"` for a file that stock Keras opens wherever it knows the
            layers; `"entropy"` for a smaller one, each weight near its entropy, that
            Keras opens after `import kerasmem`; `"stored"` for one as large as its
            weights, which `km.load_model(path, memory_map=True)` need not read.

    Raises:
        ConfigError: if `path` does not end in `.keras`, `model` is no model, or the
            coding is not known.
        ModelError: if the optimizer cannot be made anew.
        OutputError: if the file cannot be written, or could not be opened.
    """
    path = Path(path)
    if not isinstance(model, keras.Model):
        raise ConfigError(
            f"Expected a keras.Model. Received: model={as_received(model)}."
        )
    if path.suffix != ".keras":
        raise ConfigError(
            "A model is saved as a file that ends in .keras. "
            f"Received: path={str(path)!r}."
        )
    check_coding(coding)
    with replacing(path) as written:
        stored = write_small(model, written, coding, include_optimizer)
        check_repacked(stored, written, coding=coding)
        check_opens(model, written, stored)


def write_small(
    model: Any,
    path: Path,
    coding: Coding,
    include_optimizer: bool = False,  # noqa: FBT001, FBT002
) -> Path:
    """Write the file that `save_model` writes, and do not look at it again.

    Args:
        model: a built Keras model.
        path: where to, in a folder with room for another such file.
        coding: as in `save_model`.
        include_optimizer: as in `save_model`.

    Returns:
        The path of the file as Keras wrote it, beside the other.
    """
    stored = path.with_name("stored.keras")
    with ExitStack() as scope:
        if not include_optimizer:
            # Built all the same: stock Keras warns about a file whose optimizer
            # has no slots, and slots of zeros deflate to next to nothing.
            slots = model.trainable_variables
            scope.enter_context(fresh_optimizer(model, built_for=slots))
        save_by_keras(model, stored)
    repack(stored, path, coding=coding)
    return stored


def check_coding(coding: Any) -> None:
    """Raise `ConfigError` if there is no such coding."""
    if coding not in get_args(Coding):
        raise ConfigError(
            f"coding is one of {get_args(Coding)}. Received: coding={coding!r}."
        )


def save_stored(model: Any, path: Path) -> None:
    """Save `model` as Keras itself does, without any state of the optimizer.

    Its size is what a smaller file is fairly compared with.
    """
    with fresh_optimizer(model):
        save_by_keras(model, path)


def save_by_keras(model: Any, path: Path) -> None:
    """Save a model as Keras itself does.

    Raises:
        OutputError: if it cannot.
    """
    try:
        model.save(path)
    except KerasMemError:
        raise
    except OSError:
        raise  # of the disk, and told as that
    except Exception as error:  # what a class of the user's own raises has no limit
        raise OutputError(
            f"Keras cannot save the model {model.name!r}: {first_reason(error)}"
        ) from error
