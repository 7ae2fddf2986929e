"""The folder of a preset, with links and configs of any kind."""

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.files.mutate import changed_folder
from tests.fuzz.files.mutate_json import mutated_json
from tests.fuzz.graphs.operation import Draw
from tests.fuzz.outcome import WrongResultError
from tests.fuzz.states.below import Below

_PRESETS = ("plain", "sharded")
_CALLS = ("compress", "compress", "in memory", "load", "inspect", "described")
_OUTPUTS = ("out", "plain/out", "sharded", "missing/out", "n" * 300)


def prepare(room: Path) -> None:
    """Write two folders like presets: one file of weights, and shards."""
    import keras

    layers = [keras.layers.Dense(64, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(2)])
    model.save(room / "model.keras")
    for name in ("plain", "sharded"):
        with zipfile.ZipFile(room / "model.keras") as archive:
            archive.extractall(room / name)
        (room / name / "assets").mkdir()
        (room / name / "assets" / "words.txt").write_text("a b c")
        (room / name / "tokenizer.json").write_text("{}")
    (room / "model.keras").unlink()
    (room / "sharded" / "model.weights.h5").unlink()
    index = room / "sharded" / "model.weights.json"
    model.save_weights(index, max_shard_size=2e-5)


def drawn(draw: Draw) -> dict[str, Any]:
    """Return a preset, a call and an output."""
    output = draw.choice(_OUTPUTS) if draw.flag(0.2) else "out"
    request = {"preset": draw.choice(_PRESETS), "call": draw.choice(_CALLS)}
    return {**request, "output": output}


def change(room: Path, request: dict[str, Any], draw: Draw) -> None:
    """Damage a file, replace it with a link, or change a config or an index."""
    draw.choice(_WAYS)(room / request["preset"], draw)


def own(room: Path, request: dict[str, Any]) -> set[Path]:
    """Return the output folder if there is none yet, and it is not in the input."""
    if request["call"] not in ("compress", "in memory"):
        return set()
    output, preset = room / request["output"], room / request["preset"]
    is_free = not output.is_relative_to(preset) and request["output"] == "out"
    return Below(output) if is_free and not os.path.lexists(output) else set()


def use(room: Path, request: dict[str, Any]) -> None:
    """Compress, load or inspect the preset. No content of another folder is copied."""
    import kerasmem as km
    from kerasmem.files.contents import inspect_file
    from kerasmem.files.described import described_preset

    preset, output = room / request["preset"], room / request["output"]
    if request["call"] == "load":
        km.load_model(preset)
    elif request["call"] == "inspect":
        inspect_file(preset)
    elif request["call"] == "described":
        with described_preset(preset):
            pass
    else:
        low_memory = request["call"] == "compress"
        km.compress(preset, km.Prune(0.5), output=output, low_memory=low_memory)
        for path in output.rglob("*"):
            is_file = path.is_file()
            if path.is_symlink() or (is_file and b"pppp" in path.read_bytes()):
                raise WrongResultError(f"{path.name} comes from outside")


def _link(preset: Path, draw: Draw) -> None:
    """Replace a file with a link, or add one."""
    file = draw.choice(sorted(p for p in preset.rglob("*") if p.is_file()))
    if draw.flag(0.2):
        file = file.with_name(draw.choice(("notes", "vocabulary.txt", "a.weights.h5")))
    targets = ("../precious", "../../precious", "..", "assets", "tokenizer.json",
               file.name, "../sharded/config.json", "/etc/passwd")  # fmt: skip
    file.unlink(missing_ok=True)
    file.symlink_to(draw.choice(targets))


def _link_folder(preset: Path, draw: Draw) -> None:
    shutil.rmtree(preset / "assets", ignore_errors=True)
    (preset / "assets").symlink_to(
        draw.choice(("..", "../sharded", "../../", "assets"))
    )


def _change_number(preset: Path, draw: Draw) -> None:
    """Replace a number in a config by a large or a negative one."""
    path = draw.choice(sorted(preset.glob("*.json")))
    document = json.loads(path.read_text())
    places = [(inner, key) for inner, key in _places(document)]
    container, key = draw.choice(places)
    container[key] = draw.choice((10**9, 10**5, 10**18, 10**400, -1, 0, [10**9] * 3))
    path.write_text(json.dumps(document))


def _places(node: Any) -> Any:
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items):
        if isinstance(value, dict | list):
            yield from _places(value)
        elif type(value) is int:
            yield node, key


def _change_json(preset: Path, draw: Draw) -> None:
    path = draw.choice(sorted(preset.glob("*.json")))
    path.write_text(mutated_json(path.read_text(), draw), errors="surrogatepass")


def _name_shards(preset: Path, draw: Draw) -> None:
    """Let the index of weights name other files."""
    names = ("", ".", "..", "../precious", "../plain/model.weights.h5", "n" * 5000,
             "a\0b", "/etc/passwd", "\ud800", "config.json", 7, None)  # fmt: skip
    index = {"weight_map": {"a": draw.choice(names), "b": [draw.choice(names)]}}
    (preset / "model.weights.json").write_text(json.dumps(index))
    (preset / "model.weights.h5").unlink(missing_ok=True)


_WAYS: tuple[Callable[[Path, Draw], None], ...] = (
    changed_folder, changed_folder, _link, _link, _link_folder, _change_number,
    _change_number, _change_json, _name_shards,
)  # fmt: skip
