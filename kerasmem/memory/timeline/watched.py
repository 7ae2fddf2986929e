"""Collects the layers of a model and the locations of its variables for timelines."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras

from kerasmem.backends.profile import Followed, Storage
from kerasmem.graph.layers import own_variables, sublayers
from kerasmem.graph.values import nbytes, optimizers
from kerasmem.records import Block
from kerasmem.types import Layer, Model, Variable


@dataclass(frozen=True)
class LayerNode:
    """A layer and its direct sublayers by name."""

    path: str
    inside: dict[str, "LayerNode"] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownVariable:
    """A variable of the model or of its optimizer.

    `layer` is `None` for counters of the optimizer. `shape` is a text such as
    `"[64,128]"`.
    """

    layer: str | None
    name: str
    category: str
    shape: str
    dtype: str
    nbytes: int
    is_trained: bool = False


@dataclass(frozen=True)
class Watched:
    """Layers, variables and optimizer names of a model.

    Trained variables are in the order of the optimizer.
    """

    name: str
    root: LayerNode
    variables: tuple[KnownVariable, ...]
    optimizers: tuple[str, ...]

    def bytes_by_place(self) -> dict[tuple[str, str | None], int]:
        """Return the bytes of the variables by category and layer, by default 0."""
        sums: dict[tuple[str, str | None], int] = defaultdict(int)
        for variable in self.variables:
            sums[variable.category, variable.layer] += variable.nbytes
        return sums

    def trained_sizes(self) -> set[int]:
        """Return the sizes in bytes of the trained weights."""
        return {v.nbytes for v in self.variables if v.is_trained}


def watched(model: Model) -> tuple[Watched, Followed]:
    """Return the timeline data of a built and compiled model."""
    pairs = list(_known_variables(model))
    layers: dict[int, tuple[Any, str]] = {id(model): (model, "")}
    data = Watched(
        name=model.name,
        root=_node(model, model.name, layers),
        variables=tuple(plain for plain, _ in pairs),
        optimizers=tuple(optimizer.name for optimizer in _optimizers(model)),
    )
    variables = [variable for _, variable in pairs]
    return data, Followed(model, [*layers.values()], variables)


def watched_again(before: Watched, followed: Followed) -> Watched:
    """Return the timeline data of the model at the end of the window.

    On TensorFlow, optimizer slots and the weights of models without an `Input` are
    created in the first step. They are appended to `followed`. `before` and `followed`
    are the results of `watched`.
    """
    after, now = watched(followed.model)
    plain = dict(zip(map(id, followed.variables), before.variables, strict=True))
    new = [variable for variable in now.variables if id(variable) not in plain]
    plain |= zip(map(id, now.variables), after.variables, strict=True)
    followed.variables.extend(new)
    return replace(after, variables=tuple(plain[id(v)] for v in followed.variables))


def shape_text(shape: Any) -> str:
    """Format a shape for timelines.

    Example:
        >>> shape_text((64, 128)), shape_text(())
        ('[64,128]', '[]')
    """
    return f"[{','.join(str(size) for size in shape)}]"


def _known_variables(model: Model) -> Iterator[tuple[KnownVariable, Any]]:
    layer_of = {
        id(variable): layer.path or layer.name
        for layer in sublayers(model)
        for variable in own_variables(layer)
    }
    trainable_ids = {id(variable) for variable in model.trainable_variables}
    ids: set[int] = set()
    for variable in (*model.trainable_variables, *model.variables):
        if id(variable) not in ids:
            ids.add(id(variable))
            layer = layer_of.get(id(variable)) or variable.path.rpartition("/")[0]
            is_trained = id(variable) in trainable_ids
            entry = _known(variable, layer or None, "parameter", is_trained=is_trained)
            yield entry, variable
    for variable in (v for each in optimizers(model) for v in each.variables):
        if id(variable) not in ids:
            ids.add(id(variable))
            layer = _layer_of_slot(variable, model.trainable_variables, layer_of)
            yield _known(variable, layer, "optimizer_state"), variable


def _known(
    variable: Variable, layer: str | None, category: str, *, is_trained: bool = False
) -> KnownVariable:
    return KnownVariable(
        layer=layer,
        name=variable.path,
        category=category,
        shape=shape_text(variable.shape),
        dtype=keras.backend.standardize_dtype(variable.dtype),
        nbytes=nbytes(variable),
        is_trained=is_trained,
    )


def _layer_of_slot(
    slot: Any, trained: list[Any], layer_of: dict[int, str]
) -> str | None:
    # Keras names a slot `adam/sequential_dense_kernel_momentum` for the variable
    # `sequential/dense/kernel`. The longest matching name is the variable.
    name = slot.path.rpartition("/")[2]
    fitting = [
        variable
        for variable in trained
        if name.startswith(variable.path.replace("/", "_") + "_")
    ]
    if not fitting:
        return None
    # Quantized and factored slots have other shapes than their variable.
    alike = [v for v in fitting if tuple(v.shape) == tuple(slot.shape)]
    longest = max(alike or fitting, key=lambda variable: len(variable.path))
    return layer_of.get(id(longest))


def _optimizers(model: Model) -> Iterator[Any]:
    # A model that was never compiled has no attribute `optimizer`.
    inner = model.optimizer if model.compiled else None
    while inner is not None:
        yield inner
        yield from getattr(inner, "optimizers", ())
        inner = getattr(inner, "inner_optimizer", None)


def _node(layer: Layer, path: str, layers: dict[int, tuple[Any, str]]) -> LayerNode:
    layers.setdefault(id(layer), (layer, path))
    # Keras has no public function for the direct sublayers of a layer.
    direct = list(layer._flatten_layers(include_self=False, recursive=False))
    prefix = _prefix(direct, path)
    inside: dict[str, LayerNode] = {}
    for inner in direct:
        node = _node(inner, inner.path or f"{prefix}{inner.name}", layers)
        inside.setdefault(inner.name, node)
    return LayerNode(path, inside)


def _prefix(siblings: list[Any], parent: str) -> str:
    for layer in siblings:
        if layer.path and layer.path.endswith(layer.name):
            return layer.path.removesuffix(layer.name)
    return f"{parent}/"


class HeldVariables:
    """Maps blocks to the variables that they hold.

    `opening` and `closing` contain the locations at the start and the end of the
    window.
    """

    def __init__(
        self,
        model: Watched,
        device: str,
        opening: Sequence[Storage],
        closing: Sequence[Storage],
    ) -> None:
        self.variables = model.variables
        self._waiting = [place for place in opening if place.device == device]
        self.replicas = _most_copies(self._waiting)
        """Number of copies of a variable on the device."""
        self._closing = {
            place.address: place for place in closing if place.device == device
        }

    def taken_from_opening(self, address: int, nbytes: int) -> KnownVariable | None:
        """Return and remove the variable of a block older than the window."""
        fitting = [
            place
            for place in self._waiting
            if place.nbytes == nbytes and place.address in {address, None}
        ]
        if not fitting:
            return None
        self._waiting.remove(fitting[0])
        return self._at(fitting[0])

    def at_closing(self, address: int, nbytes: int) -> KnownVariable | None:
        """Return the variable in a block after the window."""
        place = self._closing.get(address)
        if place is None or place.nbytes != nbytes:
            return None
        return self._at(place)

    def still_there(self, opening_bytes: int, rounding: int) -> list[Block]:
        """Return blocks for `opening_bytes` that stayed in use during the window.

        Sizes of variables are rounded up. The last block contains the remaining bytes.
        """
        blocks, rest = [], opening_bytes
        for place in sorted(self._waiting, key=lambda place: -place.nbytes):
            block_bytes = -(-place.nbytes // rounding) * rounding
            if block_bytes <= rest:
                rest -= block_bytes
                variable = self._at(place)
                blocks.append(
                    Block(
                        requested_bytes=variable.nbytes,
                        given_bytes=block_bytes,
                        address=place.address or 0,
                        allocated_at=None,
                        freed_at=None,
                        operation=variable.name,
                        layer=variable.layer,
                        phase="unknown",
                        category=variable.category,
                        shape=variable.shape,
                        dtype=variable.dtype,
                    )
                )
        if rest > 0:
            blocks.append(Block(rest, rest, 0, None, None, "", None, *_UNKNOWN))
        return blocks

    def _at(self, place: Storage) -> KnownVariable:
        if place.variable is not None:
            return self.variables[place.variable]
        # Other memory referenced by Python is the data of `fit`.
        return KnownVariable(None, "", "input", "", "", place.nbytes)


def _most_copies(places: Sequence[Storage]) -> int:
    copies = Counter(place.variable for place in places if place.variable is not None)
    return max(copies.values(), default=1)


_UNKNOWN = ("unknown", "unknown")
