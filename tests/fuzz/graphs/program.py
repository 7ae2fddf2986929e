"""A random graph as a list of steps, any of which may be skipped.

A step is `[id, kind, ids of its tensors, number]`: the number alone decides everything
else about it. A step of the kind `skip` makes nothing, its first tensor stands for what
it made; one that then fits no more is as if skipped. So any step may become one.
"""

from contextlib import contextmanager
from typing import Any

import keras

from tests.fuzz.graphs import function_kinds, layer_kinds
from tests.fuzz.graphs.operation import MOST_ENTRIES, Draw, Operation

L = keras.layers
KINDS: dict[str, Operation] = {**layer_kinds.KINDS, **function_kinds.KINDS}
"""Beside these, `again` calls a layer a second time and `nested` a model as a layer."""

SKIP = "skip"
_SHAPES = {
    "vector": [(6,), (4,), (9,)],
    "sequence": [(4, 5), (6, 3), (3, 8)],
    "image": [(4, 4, 3), (5, 6, 2), (4, 5, 4)],
    "volume": [(2, 3, 3, 2), (3, 2, 2, 3)],
    "tokens": [(4,), (6,)],
}
VOCABULARY = 7
POLICIES = ("float32",) * 8 + ("mixed_float16", "mixed_bfloat16")
FORMS = ("functional",) * 6 + ("sequential", "constructor", "constructor", "subclassed")
_MAKERS = ("dense", "conv", "einsum", "normed", "residual", "separable", "lstm", "gru")
_ONE_INPUT_FORMS = ("sequential",)


class Builder:
    """Tensors by the id of their step.

    Args:
        program: its inputs are made at once, its steps by `apply`.
    """

    def __init__(self, program: dict[str, Any]) -> None:
        self.named = program["named"]
        self.tensors: dict[str, Any] = {}
        self.layers: dict[str, Any] = {}
        self.alias: dict[str, str] = {}
        self.inputs = {}
        for name, kind, shape in program["inputs"]:
            kinds = {"dtype": "int32"} if kind == "tokens" else {}
            x = self.inputs[name] = keras.Input(shape, name=name, **kinds)
            if kind == "tokens":
                masks = program["masks"]
                x = L.Embedding(VOCABULARY, 4, mask_zero=masks, name=f"{name}_table")(x)
            self.tensors[name] = x

    def apply(self, step: list[Any]) -> bool:
        """Make one step; False where it does not fit."""
        name, kind, sources, number = step
        sources = [self._known(source) for source in sources]
        self.alias[name] = sources[0]
        if kind == SKIP:
            return False
        try:
            layer, y = self._made(name, kind, sources, number)
        except Exception:  # noqa: BLE001 - Keras refuses in many ways what does not fit
            return False
        if not _is_small(y):
            return False
        self.tensors[name] = y
        del self.alias[name]
        if layer is not None:
            self.layers[name] = layer
        return True

    def _known(self, name: str) -> str:
        while name in self.alias:
            name = self.alias[name]
        return name

    def _made(
        self, name: str, kind: str, sources: list[str], number: int
    ) -> tuple[Any, Any]:
        draw = Draw(number)
        if kind == "again":
            layer = self.layers[sources[1]]
            return None, layer(self.tensors[sources[0]])
        tensors = [self.tensors[source] for source in sources]
        if kind == "nested":
            layer = nested(tensors[0], number, self.named and name)
            return layer, layer(tensors[0])
        operation = KINDS[kind]
        _check_fits(operation, tensors)
        made = operation.make(draw, *tensors)
        if not isinstance(made, keras.layers.Layer):
            return None, made
        if self.named:
            made.name = f"{kind}_{name}"
        if kind in ("multi_head", "grouped_query"):
            return made, made(*tensors)
        return made, made(tensors[0] if len(tensors) == 1 else tensors)


def _check_fits(operation: Operation, tensors: list[Any]) -> None:
    if len(tensors[0].shape) - 1 not in operation.ranks:
        raise ValueError("another number of axes")
    if operation.alike and len({tuple(x.shape) for x in tensors}) > 1:
        raise ValueError("other shapes")


def _is_small(y: Any) -> bool:
    if not keras.backend.is_float_dtype(y.dtype) or not 2 <= len(y.shape) <= 5:
        return False
    entries = 1
    for size in y.shape[1:]:
        entries *= 4 if size is None else size
    return 0 < entries <= MOST_ENTRIES and None not in y.shape[2:]


def nested(x: Any, number: int, name: str | bool) -> Any:
    """Return a small model that takes what `x` is."""
    draw = Draw(number)
    inner = keras.Input(x.shape[1:], dtype=x.dtype)
    y = inner
    for index in range(draw.size(1, 3)):
        fitting = [
            kind
            for kind, operation in KINDS.items()
            if operation.takes == 1 and len(y.shape) - 1 in operation.ranks
        ]
        made = KINDS[draw.choice(fitting)].make(draw, y)
        if isinstance(made, keras.layers.Layer):
            if name:
                made.name = f"inner_{index}"
            made = made(y)
        if _is_small(made):
            y = made
    more = {"name": f"nested_{name}"} if name else {}
    if y is inner:
        y = L.Dense(3)(y)
    return keras.Model(inner, y, **more)


@contextmanager
def policy(name: str):
    """A scope in which layers have a dtype policy."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def structures(program: dict[str, Any]) -> tuple[Any, Any]:
    """Return the inputs and outputs of a program's graph, as a model takes them."""
    with policy(program["policy"]):
        builder = Builder(program)
        for step in program["steps"]:
            builder.apply(step)
        outputs = {}
        for number, name in enumerate(program["outputs"]):
            y = builder.tensors[builder._known(name)]
            outputs[f"out_{number}"] = _headed(y, program, number)
    inputs = builder.inputs
    if program["structure"] == "list":
        return list(inputs.values()), list(outputs.values())
    if program["structure"] == "dict":
        return inputs, outputs
    one = len(outputs) == 1
    return (
        next(iter(inputs.values())) if len(inputs) == 1 else list(inputs.values()),
        next(iter(outputs.values())) if one else list(outputs.values()),
    )


def _headed(y: Any, program: dict[str, Any], number: int) -> Any:
    head = program["heads"][number]
    name = {"name": f"head_{number}"} if program["named"] else {}
    if head == "flat" and None not in y.shape[1:]:
        y = L.Flatten()(y) if len(y.shape) > 2 else y
    if head in ("flat", "dense"):
        y = L.Dense(2, **name)(y)
    return y


def generate(seed: int) -> dict[str, Any]:
    """Return the program of a seed."""
    draw = Draw(seed)
    form = draw.choice(FORMS)
    chain = form in _ONE_INPUT_FORMS
    kinds = [k for k in _SHAPES if not (chain and k == "tokens")]
    inputs = []
    for number in range(1 if chain else draw.choice((1, 1, 1, 2, 3))):
        kind = draw.choice(kinds)
        shape = list(draw.choice(_SHAPES[kind]))
        if kind in ("sequence", "tokens") and draw.flag(0.08):
            shape[0] = None
        inputs.append([f"in_{number}", kind, shape])
    program = {
        "form": form,
        "policy": draw.choice(POLICIES),
        "structure": "plain" if chain else draw.choice(("plain", "list", "dict")),
        "named": draw.flag(0.8),
        "masks": draw.flag(),
        "compiled": draw.choice((None, None, "adam", "sgd")),
        "inputs": inputs,
        "steps": [],
        "outputs": [],
        "heads": [],
    }
    with policy(program["policy"]):
        _grow(program, draw, chain=chain)
    return program


def _grow(program: dict[str, Any], draw: Draw, *, chain: bool) -> None:
    builder = Builder(program)
    used: set[str] = set()
    wanted, steps = draw.size(2, 10), program["steps"]
    for attempt in range(3 * wanted):
        if len(steps) == wanted:
            break
        step = _drawn(builder, draw, f"s{attempt}", chain=chain)
        if step is not None and builder.apply(step):
            steps.append(step)
            used |= set(step[2])
    loose = [name for name in builder.tensors if name not in used]
    program["outputs"] = loose[-1:] if chain else loose[-3:]
    heads = ("none",) if chain else ("flat", "flat", "dense", "none")
    program["heads"] = [draw.choice(heads) for _ in program["outputs"]]


def _drawn(builder: Builder, draw: Draw, name: str, *, chain: bool) -> Any:
    known = list(builder.tensors)
    source = known[-1] if chain or draw.flag(0.6) else draw.choice(known)
    rank = len(builder.tensors[source].shape) - 1
    number = draw.getrandbits(31)
    if not chain and builder.layers and draw.flag(0.04):
        return [name, "again", [source, draw.choice(list(builder.layers))], number]
    if draw.flag(0.05):
        return [name, "nested", [source], number]
    table = layer_kinds.KINDS if chain or draw.flag(0.6) else function_kinds.KINDS
    fitting = [
        kind
        for kind, operation in table.items()
        if rank in operation.ranks and not (chain and operation.takes > 1)
    ]
    if draw.flag(0.3):  # what has channels of its own, or there is nothing to do
        fitting = [kind for kind in fitting if kind.startswith(_MAKERS)] or fitting
    kind = draw.choice(fitting)
    sources = [source]
    if KINDS[kind].takes > 1:
        sources.append(_other(builder, draw, source, alike=KINDS[kind].alike))
    return [name, kind, sources, number]


def _other(builder: Builder, draw: Draw, source: str, *, alike: bool) -> str:
    x = builder.tensors[source]
    fitting = [
        name
        for name, y in builder.tensors.items()
        if (tuple(y.shape) == tuple(x.shape) if alike else len(y.shape) == len(x.shape))
    ]
    others = [name for name in fitting if name != source]
    return draw.choice(others or fitting)
