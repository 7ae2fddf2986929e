"""Saving a model as a `.keras` file that is really smaller, and that opens.

Keras stores the members of a `.keras` archive uncompressed, so a pruned model's zeros
take their full size. Deflated members are read by stock `keras.models.load_model` just
as well, bit for bit.

Keras saves many a model that it cannot load: one whose config lacks an argument, or
whose layers are not where its constructor puts them. So a file is opened before it is
said to be there. Mostly that is its structure alone, and the weights stay in the file.
"""

import gc
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from weakref import WeakSet

import keras
import numpy as np

from kerasmem.backends import current
from kerasmem.backends.lazy import first_value, lazy_variables
from kerasmem.backends.mapped import MappedArray
from kerasmem.backends.seeding import generators_kept
from kerasmem.checks import invalid
from kerasmem.errors import OutputError
from kerasmem.files.archive import OPTIMIZER, WEIGHTS, opened_weights
from kerasmem.files.atomic import replacing
from kerasmem.files.chunks import not_read_back
from kerasmem.files.load import first_reason
from kerasmem.files.skeleton import described_array, skeleton
from kerasmem.files.weights import CODINGS, Coding, check_weights, same_bits
from kerasmem.files.write import WrittenModel, write_model
from kerasmem.graph.clone import objects_of
from kerasmem.graph.layers import own_variables, sublayers
from kerasmem.graph.values import to_numpy
from kerasmem.types import Layer, Model

_PIECE = 1 << 20

Weights = list[tuple[Any, Any]]
"""Weights, each behind the layer that created it."""


def save_model(
    model: Model,
    path: str | Path,
    *,
    include_optimizer: bool = False,
    coding: Coding = "deflate",
) -> None:
    """Save `model` as a `.keras` file, whole or not at all.

    What was written is read back, and opened, before it takes the place of a file: its
    config has to give this model, and each weight has to find its entry in the file,
    with its shape, type and value. That takes the memory of one weight at a time; but
    a model with a layer or model of a class of your own that this process has not saved
    before is loaded whole, once. Classes and functions are those of `model`, registered
    or not.

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

    Example:
        >>> import kerasmem as km
        >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        >>> sparse = km.compress(model, km.Prune(0.9, include="kernel")).model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "model.keras")
        ...     km.save_model(sparse, path)
        ...     path.stat().st_size < model.count_params() * 4
        True
    """
    path = Path(path)
    if not isinstance(model, keras.Model):
        raise invalid("save_model", "model", model, "a keras.Model")
    if path.suffix != ".keras":
        raise invalid("save_model", "path", str(path), "a file that ends in .keras")
    CODINGS.check("save_model", "coding", coding)
    with replacing(path) as file:
        record = write_model(model, file, coding, include_optimizer=include_optimizer)
        check(model, file, record)


_OPENED: WeakSet[type] = WeakSet()
"""Classes of the user's own of which this process has opened a file whole."""


def check(model: Model, path: Path, written: WrittenModel) -> None:
    """Read what was written of a model back, and open it.

    The weights stay in the file. Only where the model has a class of the user's own
    that this process has opened no file of, or it cannot be told without, it is loaded
    whole.

    Args:
        model: the one that was saved; its own classes are those of the file.
        path: the file.
        written: what went there.

    Raises:
        ModelError: if two classes of the model have one name.
        OutputError: if the file is not as it was written, cannot be opened, or gives
            other weights.
    """
    _check_content(path, written)
    layers = sublayers(model)
    classes = set(map(type, layers))
    # What a model with a `save` of its own saves may be another one.
    is_own = type(model).save is keras.Model.save
    weights = _owners_and_weights(layers) if is_own else []
    is_lazy = current().lazy_values().why_not() is None
    with _apart(), keras.saving.custom_object_scope(objects_of(layers)):
        is_known = is_lazy and all(map(_is_known, classes))
        if not (is_known and _is_in_place(weights, path, written)):
            _check_whole(weights, path)
    _OPENED.update(classes)


def _check_content(path: Path, written: WrittenModel) -> None:
    with zipfile.ZipFile(path) as archive:
        for name in {*archive.namelist()} - {WEIGHTS}:
            try:
                with archive.open(name) as reader:
                    while reader.read(_PIECE):
                        pass
            except zipfile.BadZipFile as error:
                raise OutputError(
                    f"the member {name!r} was not read back as it was written"
                ) from error
    with opened_weights(path) as weights:
        if weights is not None:
            check_weights(weights, written.arrays, written.coding)
            for name, words in written.words.items():
                if not same_bits(words, weights[name][()]):
                    raise not_read_back(name)


def _is_known(cls: type) -> bool:
    package = cls.__module__.partition(".")[0]
    return cls in _OPENED or package in ("keras", "keras_hub", "kerasmem")


def _is_in_place(weights: Weights, path: Path, written: WrittenModel) -> bool:
    arrays = {
        name: described_array(array.shape, array.dtype, name)
        for name, array in written.arrays.items()
        if not name.startswith(OPTIMIZER)
    }
    arrays |= {name: np.asarray(words) for name, words in written.words.items()}

    def compare(weight: Any, opened: Any) -> bool:
        value = first_value(opened)
        if isinstance(value, MappedArray):
            return written.variables.get(value.name or "") is weight
        return _same_value(weight, opened)

    try:
        with (
            skeleton(path, [*arrays], lambda name, _: arrays[name]) as (file, objects),
            lazy_variables(current().lazy_values(), described=True),
        ):
            _compare(weights, _opened(file, objects), compare)
    except OutputError:  # or a layer computes with its weights: the whole file tells
        return False
    return True


def _same_value(weight: Any, opened: Any) -> bool:
    return same_bits(to_numpy(weight), to_numpy(first_value(opened)))


def _check_whole(weights: Weights, path: Path) -> None:
    # Unpacked: from an archive Keras may read all weights before it makes one.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        try:
            _compare(weights, _opened(Path(folder), {}), _same_value)
        finally:
            gc.collect()  # a model is a cycle, and this one holds its weights


def _opened(path: Path, objects: dict[str, Any]) -> Any:
    try:
        # The file is our own, made of a live object: a lambda in it is the caller's.
        return keras.models.load_model(
            path, custom_objects=objects, compile=False, safe_mode=False
        )
    except Exception as error:  # what a class of the user's own raises has no limit
        raise OutputError(
            f"the file could not be opened: {first_reason(error)}"
        ) from error


def _compare(ours: Weights, opened: Any, is_same: Callable[[Any, Any], bool]) -> None:
    """Compare weights with those of an opened model.

    The opened model may have more of them: one for each layer that shares a weight.
    Then those of one path are compared.

    Args:
        ours: The owners and weights of the saved model.
        opened: The model in the file.
        is_same: Returns whether two weights are the same.
    """
    theirs = _owners_and_weights(sublayers(opened))
    if len(ours) > len(theirs):
        ours = [pair for pair in ours if not _is_merged(*pair)]
    by_path = {other.path: other for _, other in theirs}
    if len(ours) > len(theirs):
        lost_paths = [weight.path for _, weight in ours if weight.path not in by_path]
        raise OutputError(
            f"the file would be opened without {len(ours) - len(theirs)} of its "
            f"weights{f', {lost_paths[0]!r} for one' if lost_paths else ''}: its "
            "config does not tell of layers that were added to it. Next: make them "
            "part of its graph or of its constructor"
        )
    if len(ours) == len(theirs):
        pairs = [(one, other) for one, (_, other) in zip(ours, theirs, strict=True)]
    else:
        pairs = [(one, by_path[one[1].path]) for one in ours if one[1].path in by_path]
    for (owner, weight), other in pairs:
        _compare_weights(owner, weight, other, is_same)


def _is_merged(owner: Any, weight: Any) -> bool:
    return getattr(owner, "lora_enabled", False) and weight.name.startswith("lora_")


def _owners_and_weights(layers: list[Any]) -> Weights:
    by_id: dict[int, tuple[Any, Any]] = {}
    for layer in layers:
        for variable in own_variables(layer):
            by_id.setdefault(id(variable), (layer, variable))
    return list(by_id.values())


def _compare_weights(
    owner: Any, weight: Any, opened: Any, is_same: Callable[[Any, Any], bool]
) -> None:
    form, opened_form = ((tuple(each.shape), each.dtype) for each in (weight, opened))
    if form != opened_form:
        raise OutputError(
            f"the weight {weight.path!r} of shape and type {form} would be opened "
            f"as one of {opened_form}"
        )
    if is_saved_as_it_is(owner) and not is_same(weight, opened):
        raise OutputError(
            f"the weight {weight.path!r} would not be opened with its value. Keras "
            "finds no layer that is not in an attribute of a layer or model, or in a "
            "list, tuple or dict there"
        )


def is_saved_as_it_is(layer: Layer) -> bool:
    """Return whether what a layer saves are its variables, all of them."""
    cls = type(layer)
    saves = (cls.save_own_variables, cls.load_own_variables)
    is_keras = all(
        f.__module__.partition(".")[0] in ("keras", "kerasmem") for f in saves
    )
    # Keras adds the low rank to the weight that it saves.
    return is_keras and not vars(layer).get("lora_enabled")


@contextmanager
def _apart() -> Iterator[None]:
    """Return a scope after which random numbers go on as if it had not been.

    What a class warns of when it is made was said when the model was. An accelerator
    has no part in it: the model may fill that. Nor have other processes: each opens
    what it wrote by itself, on its own device.
    """
    distribution = keras.distribution.distribution()
    # With several processes JAX's first "cpu" is that of the first.
    on_cpu = keras.device("cpu") if distribution is None else nullcontext()
    keras.distribution.set_distribution(None)
    try:
        with generators_kept(), on_cpu, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        keras.distribution.set_distribution(distribution)
