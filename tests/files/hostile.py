"""Files that were made to exhaust whoever opens them, or to lead elsewhere.

Each is written by a function into a folder that `ordinary` has filled with a sound
model, data, a recipe and a run. Command and message are what opening it comes to.
"""

import gzip
import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import keras
import numpy as np

import kerasmem as km
from kerasmem.files.coding.stream import StreamWriter
from kerasmem.files.run_dir import add_timelines
from tests.report.runs import small_run

WEIGHTS = "model.weights.h5"
DEEP = "[" * 100_000
MIB = 1 << 20


@dataclass(frozen=True)
class Hostile:
    """One file, and what becomes of it.

    Args:
        command: line of `kerasmem`, in the folder.
        message: part of the one line that it ends in; exit code 2.
        write: writes it into the folder, the current one, from sound files.
    """

    command: str
    message: str
    write: Callable[[], None]


def ordinary():
    """Fill the current folder with what is sound."""
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(3)(keras.layers.Dense(32, activation="relu")(inputs))
    model = keras.Model(inputs, outputs)
    model.compile("adam", "mse")
    model.save("model.keras")
    model.save("model.h5")
    km.save_model(model, "coded.keras", coding="entropy")
    x = np.random.default_rng(0).normal(size=(40, 6)).astype("float32")
    np.savez("data.npz", x=x, y=x[:, :3])
    Path("recipe.yaml").write_text("- {technique: prune, sparsity: 0.5}\n")
    write_run(Path("run"))


def write_run(folder):
    """Write a run's folder with every kind of record."""
    run = small_run()
    folder.mkdir()
    (folder / "run.json").write_text(run.info.to_json())
    for stem in ("memory", "gradients", "findings", "post_mortems"):
        lines = "".join(f"{record.to_json()}\n" for record in getattr(run, stem))
        (folder / f"{stem}.jsonl").write_text(lines)
    add_timelines(folder, run.timelines)


# Models


def rewritten(source, change, deflate=True):
    """Write `bad.keras`: an archive whose members `change` has changed in a dict."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    how = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    with zipfile.ZipFile("bad.keras", "w", how, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def zeros_in(member, size, beginning=b""):
    """Write `bad.keras`, one member of which is zeros, in pieces."""

    def write():
        with (
            zipfile.ZipFile("model.keras") as old,
            zipfile.ZipFile("bad.keras", "w", zipfile.ZIP_DEFLATED) as new,
        ):
            for name in old.namelist():
                if name != member:
                    new.writestr(name, old.read(name))
            with new.open(member, "w", force_zip64=True) as target:
                target.write(beginning)
                for _ in range(size // MIB):
                    target.write(bytes(MIB))

    return write


def zeros_behind_weights(size):
    """Write `bad.keras` with a sound HDF5 file, and zeros that are none of it."""
    with zipfile.ZipFile("model.keras") as archive:
        zeros_in(WEIGHTS, size, archive.read(WEIGHTS))()


def zeros_as_weights(size):
    """Write `bad.keras`, whose first kernel is as large as the zeros in its file."""
    with zipfile.ZipFile("model.keras") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    Path("bad.h5").write_bytes(members.pop(WEIGHTS))
    with h5py.File("bad.h5", "r+") as weights:
        del kernel_of(weights)["0"]
        kernel = kernel_of(weights).create_dataset("0", (size // 4,), "f4")
        for start in range(0, size // 4, MIB):
            kernel[start : start + MIB] = 0
    how = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    with zipfile.ZipFile("bad.keras", "w", **how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.write("bad.h5", WEIGHTS)
    Path("bad.h5").unlink()


def config(content):
    """Write `bad.keras` with another config."""
    return lambda: rewritten(
        "model.keras", lambda members: members.update({"config.json": content})
    )


def metadata(content):
    """Write `bad.keras` with other metadata."""
    return lambda: rewritten(
        "model.keras", lambda members: members.update({"metadata.json": content})
    )


def changed_config(change):
    """Write `bad.keras`, whose config `change` has changed."""

    def apply(members):
        plain = json.loads(members["config.json"])
        change(plain)
        members["config.json"] = json.dumps(plain)

    return lambda: rewritten("model.keras", apply)


def in_weights(source, change):
    """Write `bad.keras`, in whose weights `change` has changed an open `h5py.File`."""

    def apply(members):
        file = io.BytesIO(members[WEIGHTS])
        with h5py.File(file, "r+") as weights:
            change(weights)
        members[WEIGHTS] = file.getvalue()

    return lambda: rewritten(source, apply)


def alike(dtype, *shape):
    """Return the code of an array whose entries are all alike."""
    out = StreamWriter()
    out.block(dtype)
    for number in (len(shape), *shape, 2):
        out.number(number)
    out.raw(bytes(np.dtype(dtype.decode()).itemsize))
    content = out.content()
    return b"KMC1" + zlib.crc32(content).to_bytes(4, "little") + content


def kernel_of(weights):
    return weights["layers/dense/vars"]


def coded(code):
    """Return a change of weights: the first kernel is a code."""

    def change(weights):
        del kernel_of(weights)["0"]
        kernel_of(weights)["0"] = np.frombuffer(code, np.uint8)

    return change


def hollow(weights):
    """Make the first kernel an array of 4 GiB of which nothing is stored."""
    del kernel_of(weights)["0"]
    kernel_of(weights).create_dataset("0", (1 << 15, 1 << 15), "f4", chunks=(256, 256))


def no_symbols(weights_file):
    """Damage every table of symbols of an HDF5 file."""
    return weights_file.replace(b"SNOD", b"XNOD")


def damaged_symbols():
    def apply(members):
        # All but the first: the file opens, its groups do not.
        content = members[WEIGHTS]
        first = content.index(b"SNOD") + 4
        members[WEIGHTS] = content[:first] + no_symbols(content[first:])

    rewritten("model.keras", apply, deflate=False)


def wide(plain):
    plain["config"]["layers"][1]["config"]["units"] = 1_000_000_000


def no_weights(plain):
    wide(plain)
    plain["compile_config"] = None


def only_a_layer():
    dense = keras.saving.serialize_keras_object(keras.layers.Dense(3))
    config(json.dumps(dense))()


def keras_2(layers, *, functional=False, **more):
    """Write `bad.h5` as Keras 2 would have written it, without weights."""

    def write():
        inner = {"name": "m", "layers": layers, **more}
        name = "Functional" if functional else "Sequential"
        with h5py.File("bad.h5", "w") as file:
            file.attrs["keras_version"] = "2.15.0"
            file.attrs["model_config"] = json.dumps(
                {"class_name": name, "config": inner}
            )
            file.create_group("model_weights").attrs["layer_names"] = []

    return write


def layer_2(class_name, **settings):
    return {"class_name": class_name, "config": settings}


def h5_with(name, text):
    """Write `bad.h5` with another attribute."""

    def write():
        Path("bad.h5").write_bytes(Path("model.h5").read_bytes())
        with h5py.File("bad.h5", "r+") as file:
            file.attrs[name] = text
            if name == "model_config":
                file.attrs["keras_version"] = "2.15.0"

    return write


def hollow_h5():
    Path("bad.h5").write_bytes(Path("model.h5").read_bytes())
    with h5py.File("bad.h5", "r+") as file:
        file["model_weights"].create_dataset(
            "x", (1 << 15, 1 << 15), "f4", chunks=(256, 256)
        )


# Recipes, data, runs


def text(name, content):
    return lambda: Path(name).write_text(content)


def aliases(levels):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        again = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{again}]")
    return "\n".join(lines) + "\n"


def npy_header(shape):
    """Write `bad.npy`, whose header declares more entries than there are."""

    def write():
        with Path("bad.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<i4", "fortran_order": False, "shape": shape}
            )
            file.write(bytes(64))

    return write


def npz_header(shape):
    """Write `bad.npz`, whose `x` says that it is larger than it is."""

    def write():
        file = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": shape}
        )
        with zipfile.ZipFile("bad.npz", "w") as archive:
            archive.writestr("x.npy", file.getvalue() + bytes(64))

    return write


def npz(**arrays):
    return lambda: np.savez_compressed("bad.npz", **arrays)


def alone_in_run(name, content):
    """Write `bad`, a run's folder with one file."""

    def write():
        Path("bad").mkdir()
        (Path("bad") / name).write_bytes(content)

    return write


def fifo_in_run():
    Path("bad").mkdir()
    os.mkfifo("bad/memory.jsonl")


def link_in_run():
    Path("bad").mkdir()
    Path("bad/memory.jsonl").symlink_to(Path("run/memory.jsonl").resolve())


def timeline(size):
    """Write `bad`, a run's folder whose timeline is one line of that size."""

    def write():
        Path("bad").mkdir()
        with gzip.open("bad/timeline-0000.json.gz", "wb", compresslevel=1) as file:
            file.write(b'{"texts": "')
            for _ in range(size // MIB):
                file.write(b"x" * MIB)

    return write


def quits():
    Path("quitting.py").write_text("import sys\nsys.exit(7)\n")


def leads_round():
    Path("round.keras").symlink_to("round.keras")


INSPECT, INSPECT_H5 = "inspect bad.keras", "inspect bad.h5"
COMPRESS = "compress model.keras -o out.keras"
REPORT, NOTHING = "report bad -o out.html", "folder contains no records of a monitor"
DAMAGED = "is damaged and was left out"
IRREGULAR = "is no regular file and was left out"
LONG = "a/" * 2500


def hostile(scale=1):
    """Return the files by name.

    Args:
        scale: 1 for files that are quickly made, 64 for those of the attack.
    """
    large = 64 * MIB * scale
    return {
        "a code of 2^30 entries that are alike": Hostile(
            INSPECT,
            "are damaged: invalid size",
            in_weights("coded.keras", coded(alike(b"|u1", 1 << 30))),
        ),
        "a code of 2^14 x 2^14 floats that are alike": Hostile(
            INSPECT,
            "are damaged: invalid size",
            in_weights("coded.keras", coded(alike(b"<f4", 1 << 14, 1 << 14))),
        ),
        "a config of zeros": Hostile(
            INSPECT, "No model does that", zeros_in("config.json", large)
        ),
        "a config of 16 MiB of nothing": Hostile(
            INSPECT, "The JSON is too large", config("[" + "{}," * 5_500_000 + "{}]")
        ),
        "a deep config": Hostile(INSPECT, "damaged config.json", config(DEEP)),
        "deep metadata": Hostile(INSPECT, "damaged metadata.json", metadata(DEEP)),
        "weights of zeros": Hostile(
            INSPECT, "is no HDF5 file", zeros_in(WEIGHTS, large)
        ),
        "weights with zeros behind them": Hostile(
            INSPECT, "is no HDF5 file", lambda: zeros_behind_weights(large)
        ),
        "zeros that are a weight of another model": Hostile(
            INSPECT, "would take", lambda: zeros_as_weights(5 * large)
        ),
        "weights of 4 GiB of which none is stored": Hostile(
            INSPECT, "would take 4294967296 bytes", in_weights("model.keras", hollow)
        ),
        "coded weights of 4 GiB of which none is stored": Hostile(
            INSPECT, "would take 4294967296 bytes", in_weights("coded.keras", hollow)
        ),
        "a damaged table of symbols": Hostile(INSPECT, "bad.keras", damaged_symbols),
        "a layer of 10^9 units": Hostile(
            INSPECT, "No memory is allocated", changed_config(wide)
        ),
        "a layer of 10^9 units, not compiled": Hostile(
            "estimate bad.keras --batch-size 1",
            "No memory is allocated",
            changed_config(no_weights),
        ),
        "a layer in the place of a model": Hostile(
            "estimate bad.keras --batch-size 1", "it contains a Dense", only_a_layer
        ),
        "a deep config in HDF5": Hostile(
            INSPECT_H5, "bad.h5", h5_with("model_config", "[" * 60_000)
        ),
        "HDF5 of 4 GiB of which none is stored": Hostile(
            INSPECT_H5, "but the file has 0", hollow_h5
        ),
        "a layer of 10^9 units by Keras 2": Hostile(
            "convert bad.h5 -o out.keras",
            "No memory is allocated",
            keras_2(
                [
                    layer_2("Dense", name="d", units=1_000_000_000),
                ],
                build_input_shape=[None, 10],
            ),
        ),
        "a function of TensorFlow in a Sequential": Hostile(
            "convert bad.h5 -o out.keras",
            "TensorFlow functions are invalid in a Sequential",
            keras_2(
                [layer_2("TFOpLambda", name="f", function="no.such")],
                build_input_shape=[None, 10],
            ),
        ),
        "a model that is a fifo": Hostile(
            INSPECT, "There is no file", lambda: os.mkfifo("bad.keras")
        ),
        "an output that links to itself": Hostile(
            "compress model.keras -o round.keras --prune 0.5",
            "The output path is invalid: Symlink loop",
            leads_round,
        ),
        "a path of 5,000 characters": Hostile(
            f"inspect {LONG}model.keras", "...", lambda: None
        ),
        "a recipe with aliases": Hostile(
            f"{COMPRESS} --recipe bad.yaml",
            "aliases are not supported",
            text("bad.yaml", aliases(9)),
        ),
        "a deep recipe": Hostile(
            f"{COMPRESS} --recipe bad.yaml", "is not valid YAML", text("bad.yaml", DEEP)
        ),
        "a deep recipe of JSON": Hostile(
            f"{COMPRESS} --recipe bad.json", "is not valid JSON", text("bad.json", DEEP)
        ),
        "a recipe without an end": Hostile(
            f"{COMPRESS} --recipe bad.yaml",
            "too large",
            text("bad.yaml", "- " * 200_000),
        ),
        "a recipe that is a fifo": Hostile(
            f"{COMPRESS} --recipe bad.yaml",
            "Cannot read the recipe",
            lambda: os.mkfifo("bad.yaml"),
        ),
        "an integer of 100,000 digits": Hostile(
            f"{COMPRESS} --recipe bad.yaml",
            "is not valid YAML: It cannot be read",
            text("bad.yaml", f"- {{technique: prune, sparsity: {'9' * 100_000}}}"),
        ),
        "a hexadecimal integer of 100,000 digits": Hostile(
            f"{COMPRESS} --recipe bad.yaml",
            "is not valid YAML: It cannot be read",
            text("bad.yaml", f"- {{technique: prune, sparsity: 0x{'9' * 100_000}}}"),
        ),
        "a date that there is not": Hostile(
            f"{COMPRESS} --recipe bad.yaml",
            "is not valid YAML: It cannot be read",
            text("bad.yaml", "- {technique: prune, sparsity: 2001-99-99}"),
        ),
        "a date": Hostile(
            f"{COMPRESS} --recipe bad.yaml",
            "is not valid YAML: It cannot be read",
            text("bad.yaml", "- {technique: prune, sparsity: 2001-01-01}"),
        ),
        "token ids of 14.6 TiB in their header alone": Hostile(
            "evaluate model.keras --data bad.npy",
            "it declares an array of",
            npy_header((4_000_000_000_000,)),
        ),
        "an output of 300 letters": Hostile(
            f"compress model.keras -o {'a' * 300}.keras --prune 0.5",
            "File name too long",
            lambda: None,
        ),
        "10^8 rounds": Hostile(
            f"{COMPRESS} --recipe bad.yaml",
            "a whole number from 1 to 1000",
            text(
                "bad.yaml",
                "- {technique: prune_channels, ratio: 0.5, rounds: 100000000}",
            ),
        ),
        "a dict as a list": Hostile(
            f"{COMPRESS} --recipe bad.yaml",
            "must be a list of regular expressions",
            text("bad.yaml", "- {technique: prune, sparsity: 0.5, scope: {a: b}}"),
        ),
        "10^23 bytes": Hostile(
            f"{COMPRESS} --recipe bad.yaml",
            "to 9223372036854775807",
            text(
                "bad.yaml",
                "- {technique: quantize, scheme: mixed, budget: {max_bytes: "
                "99999999999999999999999}}",
            ),
        ),
        "a group of 10^9": Hostile(
            f"{COMPRESS} --recipe bad.yaml",
            "Invalid pattern of Prune",
            text(
                "bad.yaml",
                "- {technique: prune, sparsity: 0.5, pattern: 2:1000000000}",
            ),
        ),
        "an array of 14.6 TiB in its header alone": Hostile(
            "evaluate model.keras --data bad.npz",
            "it declares an array of",
            npz_header((4_000_000_000_000,)),
        ),
        "complex samples": Hostile(
            "evaluate model.keras --data bad.npz",
            "with entries of type complex",
            npz(x=np.ones((4, 6), complex), y=np.ones((4, 3))),
        ),
        "samples of zeros": Hostile(
            "evaluate model.keras --data bad.npz",
            "bytes, but has",
            lambda: np.savez_compressed(
                "bad.npz", x=np.zeros((12_000_000 * min(scale, 8), 6), "f4")
            ),
        ),
        "a module that quits": Hostile(
            "inspect model.keras --import quitting", "SystemExit: 7", quits
        ),
        "data whose module quits": Hostile(
            "evaluate model.keras --data quitting:f", "SystemExit: 7", quits
        ),
        "a timeline of one line": Hostile(REPORT, DAMAGED, timeline(large)),
        "a deep timeline": Hostile(
            REPORT,
            DAMAGED,
            alone_in_run("timeline-0000.json.gz", gzip.compress(DEEP.encode())),
        ),
        **{
            f"a deep record in {name}": Hostile(
                REPORT, NOTHING, alone_in_run(name, DEEP.encode())
            )
            for name in (
                "run.json",
                "memory.jsonl",
                "gradients.jsonl",
                "findings.jsonl",
                "post_mortems.jsonl",
            )
        },
        "a fifo in a run": Hostile(REPORT, IRREGULAR, fifo_in_run),
        "a link in a run": Hostile(REPORT, IRREGULAR, link_in_run),
    }
