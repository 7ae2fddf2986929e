"""Maps operation names of a framework to a layer and a phase."""

import re
from dataclasses import dataclass

from kerasmem.memory.timeline.watched import LayerNode, Watched

_UNIQUE = re.compile(r"_\d+$")
_INPUT = re.compile(
    r"^(optional|Optional\w*|_EagerConst|MemcpyHtoD|\w*Recv\w*)$|Iterator|Dataset"
)
_WRAPPED = re.compile(r"^(transpose|jvp|vmap|checkpoint)\((.*)\)$")


@dataclass(frozen=True)
class Origin:
    """Origin of an operation.

    `phase` is one of `records.PHASES`. `place` is the index of an optimizer operation
    among operations of one type, such as 5 for `adam/Square_5`.
    """

    layer: str | None
    phase: str
    place: int | None = None


_PLAIN = frozenset(["xla", "given"])
"""Styles in which the scope of a layer has no numeric suffix."""


class Names:
    """Parses the names of operations.

    Args:
        model: Layers and optimizers to search for.
        style: `"tensorflow"` (`gradient_tape/outer_1/dense_1_2/MatMul`) or `"xla"`
            (`jit(step)/transpose(jvp(outer))/dense_1/dot_general`).
    """

    def __init__(self, model: Watched, style: str) -> None:
        self._root = model.root
        self._model = model.name
        self._optimizers = frozenset(model.optimizers)
        self._style = style
        self._trained = model.trained_sizes()
        self._known: dict[str, Origin] = {}

    def origin(self, operation: str) -> Origin:
        """Return the origin of an operation, as far as its name contains it."""
        if operation not in self._known:
            self._known[operation] = self._read(operation)
        return self._known[operation]

    def place(self, operation: str, nbytes: int) -> tuple[str, str | None]:
        """Return the category and the layer of an operation's output.

        In the backward pass, an output of the size of a trained weight is a gradient.
        """
        origin = self.origin(operation)
        if origin.phase == "forward":
            return "activation", origin.layer
        is_gradient = origin.phase == "backward" and nbytes in self._trained
        return "gradient" if is_gradient else "temporary", origin.layer

    def _read(self, operation: str) -> Origin:
        tokens, is_backward = _tokens(operation, self._style)
        layer = self._layer(tokens)
        if is_backward:
            return Origin(layer, "backward")
        for token in tokens[:-1]:
            if token == "gradient_tape":
                return Origin(layer, "backward")
            if not self._optimizers.isdisjoint(self._candidates(token)):
                return Origin(None, "optimizer", _place(tokens[-1]))
            if token in {"compile_loss", "compile_metrics"}:
                return Origin(None, "forward")
            if self._step(self._root, token):
                return Origin(layer, "forward")
        return Origin(None, "input" if _INPUT.search(operation) else "unknown")

    def _layer(self, tokens: list[str]) -> str | None:
        node: LayerNode = self._root
        for token in tokens[:-1]:
            # A loop repeats the whole path: `lstm/while/body/model/lstm/while/cell`.
            node = self._step(node, token) or self._step(self._root, token) or node
        return None if node is self._root else node.path

    def _step(self, node: LayerNode, token: str) -> LayerNode | None:
        for name in self._candidates(token):
            if name in node.inside:
                return node.inside[name]
            if node is self._root and name == self._model:
                return self._root
        return None

    def _candidates(self, token: str) -> tuple[str, ...]:
        if self._style in _PLAIN:
            return (token,)
        # TensorFlow makes names unique. Keras enters the scope of a layer twice per
        # call, so the scope of the computation always has a numeric suffix: `dense_1`
        # is the layer `dense`, even if a layer `dense_1` exists.
        return (_UNIQUE.sub("", token), token)


def _tokens(operation: str, style: str) -> tuple[list[str], bool]:
    tokens = operation.split("/")
    if style in _PLAIN:
        return [_unwrapped(token) for token in tokens], "transpose(" in operation
    return tokens, False


def _unwrapped(token: str) -> str:
    while match := _WRAPPED.match(token):
        token = match[2]
    return token


def _place(last: str) -> int:
    number = _UNIQUE.search(last)
    return int(number[0][1:]) if number else 0
