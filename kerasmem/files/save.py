"""Saves models as small `.keras` files that are verified by loading.

Keras stores the members of a `.keras` archive uncompressed, so the zeros of a pruned
model take their full size. Stock `keras.models.load_model` reads deflated members
equally well, bit for bit.

Keras can save models that it cannot load. For example, a config may lack an argument,
or layers may be missing from the constructor. Therefore, each file is opened before it
replaces another file. Usually, only the structure is loaded and the weights stay in the
file.
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
from kerasmem.graph.saving import cached_skip_sets
from kerasmem.graph.values import to_numpy
from kerasmem.types import Layer, Model, Variable

_PIECE = 1 << 20

Weights = list[tuple[Any, Any]]
"""Pairs of the layer that created a weight, and the weight."""


def save_model(
    model: Model,
    path: str | Path,
    *,
    include_optimizer: bool = False,
    coding: Coding = "deflate",
) -> None:
    """Saves a model as a `.keras` file, in full or not at all.

    The written file is verified before it replaces an existing file. Its config must
    produce this model, and each weight must match in shape, type and value. The
    verification takes the memory of one weight at a time. A model with a custom class
    that this process has not saved before is loaded completely, once. Custom classes
    and functions are taken from `model`, whether registered or not.

    Args:
        model: A built Keras model.
        path: Output path with the suffix `.keras`. An existing file is replaced.
        include_optimizer: Whether to save the optimizer state (two floats per weight
            with Adam). If `False`, only the settings of the optimizer are saved.
            Defaults to `False`.
        coding: `"deflate"` writes a file that stock Keras opens if all layers are
            known. `"entropy"` writes a smaller file that Keras opens after `import
            kerasmem`. `"stored"` writes uncompressed weights for `km.load_model(path,
            memory_map=True)`. Defaults to `"deflate"`.

    Raises:
        ConfigError: If the suffix of `path` is not `.keras`, `model` is no model, or
            the coding is unknown.
        ModelError: If the optimizer cannot be recreated.
        OutputError: If the file cannot be written or fails the verification.

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
"""Custom classes in files that this process has loaded completely."""


def check(model: Model, path: Path, written: WrittenModel) -> None:
    """Reads a written file back and opens the model.

    The weights stay in the file. The model is loaded completely if it has a custom
    class that this process has not loaded before, or if the structure is not
    sufficient.

    Raises `OutputError` if the file differs from the written data, cannot be opened, or
    has other weights. Raises `ModelError` if two classes have the same name.
    """
    _check_content(path, written)
    layers = sublayers(model)
    classes = set(map(type, layers))
    # A custom `save` may write another model.
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
                    f"the stored content of the member {name!r} differs"
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

    def compare(weight: Variable, opened: Any) -> bool:
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
    except OutputError:  # also if a layer computes with its weights: load completely
        return False
    return True


def _same_value(weight: Variable, opened: Any) -> bool:
    return same_bits(to_numpy(weight), to_numpy(first_value(opened)))


def _check_whole(weights: Weights, path: Path) -> None:
    # Unpacked, because Keras may read all weights of an archive first.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        try:
            _compare(weights, _opened(Path(folder), {}), _same_value)
        finally:
            gc.collect()  # a model is a reference cycle that keeps its weights


def _opened(path: Path, objects: dict[str, Any]) -> Any:
    try:
        # The file was written here, so a lambda in it belongs to the caller.
        with cached_skip_sets():
            return keras.models.load_model(
                path, custom_objects=objects, compile=False, safe_mode=False
            )
    except Exception as error:  # a custom class may raise anything
        raise OutputError(
            f"the file could not be opened: {first_reason(error)}"
        ) from error


def _compare(ours: Weights, opened: Any, is_same: Callable[[Any, Any], bool]) -> None:
    """Compares the weights of the saved and the opened model.

    The opened model may have more weights: one for each layer that shares a weight.
    Then, weights are compared by path.
    """
    theirs = _owners_and_weights(sublayers(opened))
    if len(ours) > len(theirs):
        ours = [pair for pair in ours if not _is_merged(*pair)]
    by_path = {other.path: other for _, other in theirs}
    if len(ours) > len(theirs):
        lost_paths = [weight.path for _, weight in ours if weight.path not in by_path]
        raise OutputError(
            f"the opened model lacks {len(ours) - len(theirs)} weights"
            f"{f', such as {lost_paths[0]!r}' if lost_paths else ''}: its config does "
            "not contain layers that were added later. Next: add these layers in the "
            "graph or in the constructor"
        )
    if len(ours) == len(theirs):
        pairs = [(one, other) for one, (_, other) in zip(ours, theirs, strict=True)]
    else:
        pairs = [(one, by_path[one[1].path]) for one in ours if one[1].path in by_path]
    for (owner, weight), other in pairs:
        _compare_weights(owner, weight, other, is_same)


def _is_merged(owner: Layer, weight: Variable) -> bool:
    return getattr(owner, "lora_enabled", False) and weight.name.startswith("lora_")


def _owners_and_weights(layers: list[Any]) -> Weights:
    by_id: dict[int, tuple[Any, Any]] = {}
    for layer in layers:
        for variable in own_variables(layer):
            by_id.setdefault(id(variable), (layer, variable))
    return list(by_id.values())


def _compare_weights(
    owner: Layer, weight: Variable, opened: Any, is_same: Callable[[Any, Any], bool]
) -> None:
    form, opened_form = ((tuple(each.shape), each.dtype) for each in (weight, opened))
    if form != opened_form:
        raise OutputError(
            f"the weight {weight.path!r} of shape and type {form} is opened as "
            f"{opened_form}"
        )
    if is_saved_as_it_is(owner) and not is_same(weight, opened):
        raise OutputError(
            f"the weight {weight.path!r} is opened with another value. Keras finds "
            "only layers in attributes of a layer or model, and in lists, tuples and "
            "dicts there"
        )


def is_saved_as_it_is(layer: Layer) -> bool:
    """Returns whether a layer saves exactly its variables."""
    cls = type(layer)
    saves = (cls.save_own_variables, cls.load_own_variables)
    is_keras = all(
        f.__module__.partition(".")[0] in ("keras", "kerasmem") for f in saves
    )
    # Keras merges LoRA weights into the saved weight.
    return is_keras and not vars(layer).get("lora_enabled")


@contextmanager
def _apart() -> Iterator[None]:
    """Isolates the loading of a model for verification.

    Restores random generators and hides warnings, which were already issued when the
    model was created. Loading uses the CPU, because the model may fill the accelerator.
    Loading ignores the distribution, because each process opens its own file.
    """
    distribution = keras.distribution.distribution()
    # With several processes, JAX's first "cpu" belongs to the first process.
    on_cpu = keras.device("cpu") if distribution is None else nullcontext()
    keras.distribution.set_distribution(None)
    try:
        with generators_kept(), on_cpu, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        keras.distribution.set_distribution(distribution)
