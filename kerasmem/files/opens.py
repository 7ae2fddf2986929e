"""Whether a file that was just written gives back the model that it was written of.

Keras saves many a model that it cannot load: one whose config lacks an argument, or
whose layers are not where its constructor puts them. So a file is opened before it is
said to be there. Mostly that is its structure alone, and the weights stay in the file.
"""

import gc
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from weakref import WeakSet

import keras

from kerasmem.backends import current
from kerasmem.backends.lazy import MappedArray, first_value
from kerasmem.backends.seeding import generators_kept
from kerasmem.errors import OutputError
from kerasmem.files.load import first_reason
from kerasmem.files.memory_map import MappedWeights
from kerasmem.files.weights import same_bits
from kerasmem.graph.clone import live_objects
from kerasmem.graph.layers import own_variables, sublayers
from kerasmem.graph.values import to_numpy

_OPENED: WeakSet[type] = WeakSet()
"""Classes of layers and models of which this process has opened a file whole."""


def check_opens(model: Any, path: Path, stored: Path) -> None:
    """Open a file, and compare the weights that it gives with those of its model.

    The weights stay in the file, one at a time is read. Only where the model has a
    class that this process has opened no file of, or variables cannot be without a
    value, it is loaded whole.

    Args:
        model: the model that was saved; its own classes are those of the file.
        path: the file.
        stored: the same file as Keras wrote it, so that its weights can be mapped.

    Raises:
        ModelError: if two classes of the model have one name.
        OutputError: if the file cannot be opened, or gives other weights.
    """
    classes = {type(layer) for layer in sublayers(model)}
    is_new = any(each not in _OPENED for each in classes)
    with (
        _apart(),
        keras.saving.custom_object_scope(live_objects(model, compiled=False)),
    ):
        if is_new or current().lazy_values().why_not():
            _check_whole(model, path)
        else:
            with MappedWeights(stored, used=False).skeleton() as (small, objects):
                _compare(model, _opened(small, objects))
    _OPENED.update(classes)


def _check_whole(model: Any, path: Path) -> None:
    # Unpacked: from an archive Keras may read all weights before it makes one.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        try:
            _compare(model, _opened(Path(folder), {}))
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


def check_described(model: Any, path: Path) -> None:
    """Open a file, and compare the shapes and types of weights with those of its model.

    No weight is read.

    Args:
        model: a described model that was saved; its own classes are those of the file.
        path: the file as Keras would have written it.

    Raises:
        OutputError: if the file cannot be opened, or gives other weights.
    """
    with (
        _apart(),
        keras.saving.custom_object_scope(live_objects(model, compiled=False)),
        MappedWeights(path, described=True).skeleton() as (small, objects),
    ):
        _compare(model, _opened(small, objects), values=False)


def _compare(model: Any, opened: Any, *, values: bool = True) -> None:
    """Compare the weights of two models.

    The second one may have more of them: what the first has in several layers. Then
    those of one path are compared.
    """
    # What a model with a `save` of its own saves may be another one.
    if type(model).save is not keras.Model.save:
        return
    ours, theirs = _owners_and_weights(model), _owners_and_weights(opened)
    by_path = {found.path: found for _, found in theirs}
    if len(ours) > len(theirs):
        lost = [weight.path for _, weight in ours if weight.path not in by_path]
        raise OutputError(
            f"the file would be opened without {len(ours) - len(theirs)} of its "
            f"weights{f', {lost[0]!r} for one' if lost else ''}: its config does not "
            "tell of layers that were added to it. Next: make them part of its graph "
            "or of its constructor"
        )
    if len(ours) == len(theirs):
        pairs = [(one, found) for one, (_, found) in zip(ours, theirs, strict=True)]
    else:
        pairs = [(one, by_path[one[1].path]) for one in ours if one[1].path in by_path]
    for (owner, weight), found in pairs:
        _compare_weights(owner, weight, found, values=values)


def _owners_and_weights(model: Any) -> list[tuple[Any, Any]]:
    """Return every weight once, also of layers that a model with a graph has beside."""
    found: dict[int, tuple[Any, Any]] = {}
    for layer in sublayers(model):
        for variable in own_variables(layer):
            found.setdefault(id(variable), (layer, variable))
    return list(found.values())


def _compare_weights(owner: Any, weight: Any, found: Any, *, values: bool) -> None:
    expected, given = ((tuple(each.shape), each.dtype) for each in (weight, found))
    if expected != given:
        raise OutputError(
            f"the weight {weight.path!r} of shape and type {expected} would be opened "
            f"as one of {given}"
        )
    if not values or not is_saved_as_it_is(owner):
        return
    value = first_value(found)
    in_file = isinstance(value, MappedArray)
    if not same_bits(to_numpy(weight), value if in_file else to_numpy(value)):
        raise OutputError(
            f"the weight {weight.path!r} would not be opened with its value. Keras "
            "finds no layer that is not in an attribute of a layer or model, or in a "
            "list, tuple or dict there"
        )
    if in_file:
        value.release()


def is_saved_as_it_is(layer: Any) -> bool:
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
