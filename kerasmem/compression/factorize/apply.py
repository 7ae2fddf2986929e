"""The model anew, with chains of thin layers in the place of thick ones."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasmem.compression.account import account, decibels
from kerasmem.compression.factorize.chains import Chain, chain, why_not
from kerasmem.compression.regular_expressions import (
    check_every_pattern_matches,
    matches,
)
from kerasmem.compression.technique import Context
from kerasmem.errors import ModelError
from kerasmem.graph.clone import compile_as
from kerasmem.graph.kernels import is_kernel
from kerasmem.graph.layers import Weight, listed_graph, nodes_in_order, weights
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange

if TYPE_CHECKING:
    from kerasmem.compression.factorize.config import Factorize

NAME = "factorize"
_NO_KERNEL = "is no kernel"
_TOO_LARGE = "would have as many weights or more"
_ADVICE = " Next: keep less of the rank."


def factorize(
    model: Any, config: "Factorize", context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return a model of thinner layers, and what became of every weight.

    It is a new model, whoever owns the one that it is made of.

    Raises:
        ModelError: if the model has no graph, or nothing in it becomes smaller.
        ConfigError: if a pattern matches no weight.
    """
    del context
    if listed_graph(model) is None:
        raise ModelError(
            f"The model {model.name!r} has no graph in which layers could take the "
            "place of others. Expected a Sequential or Functional model. Received: "
            f"{type(model).__name__}."
        )
    everything = list(weights(model))
    patterns = {"include": config.include, "exclude": config.exclude}
    check_every_pattern_matches(model, everything, patterns)
    in_graph = {id(layer) for layer in _layers(model)}
    chains: dict[int, Chain] = {}
    reasons: dict[int, str] = {}
    for weight in everything:
        reason = _why_not(weight, config, in_graph)
        if reason is None:
            found = chain(weight.owner, config)
            if found.size < weight.size:
                chains[id(weight.owner)] = found
                continue
            reason = _TOO_LARGE
        reasons[id(weight.variable)] = reason
    if not chains:
        raise ModelError(
            f"The model {model.name!r} has nothing to factorize: of its "
            f"{len(everything)} weights none is a kernel in its graph that becomes "
            f"smaller; the commonest reason: {_commonest(reasons.values())}. Received: "
            f"{config!r}.{_ADVICE * (_TOO_LARGE in reasons.values())}"
        )
    smaller = Rebuild(_Thinner(chains)).run(model)
    compile_as(smaller, model)
    return smaller, [_told(weight, chains, reasons) for weight in everything]


class _Thinner(Rewrite):
    """Chains in the place of layers."""

    def __init__(self, chains: dict[int, Chain]) -> None:
        self._chains = chains

    def replacement(self, node: Any) -> Sequence[Any]:
        found = self._chains.get(id(node.operation))
        return () if found is None else found.layers()

    def values(self, old: Any, new: Any) -> Iterable[tuple[Any, Any]]:
        found = self._chains.get(id(old))
        if found is None:
            return super().values(old, new)
        values = [
            (layer.kernel, kernel)
            for layer, kernel in zip(new.layers, found.kernels, strict=True)
        ]
        if old.bias is not None:
            values.append((new.layers[-1].bias, to_numpy(old.bias)))
        return values


def _layers(model: Any) -> list[Any]:
    """Return the operations that graphs call, those of nested models among them."""
    graph = listed_graph(model)
    if graph is None:
        return []
    called = [node.operation for node in nodes_in_order(graph)]
    return [*called, *(inner for one in called for inner in _layers(one))]


def _why_not(weight: Weight, config: "Factorize", in_graph: set[int]) -> str | None:
    if not is_kernel(weight):
        return _NO_KERNEL
    if id(weight.owner) not in in_graph:
        return "is inside of a layer, which would need another layer in its place"
    if matches(config.exclude, weight):
        return "is excluded"
    if config.include and not matches(config.include, weight):
        return "is not included"
    if not np.isfinite(to_numpy(weight.variable)).all():
        return "has entries that are NaN or infinite"
    return why_not(weight.owner)


def _commonest(reasons: Iterable[str]) -> str:
    of_kernels = [reason for reason in reasons if reason != _NO_KERNEL]
    return Counter(of_kernels or [_NO_KERNEL]).most_common(1)[0][0]


def _told(
    weight: Weight, chains: dict[int, Chain], reasons: dict[int, str]
) -> WeightChange:
    found = chains.get(id(weight.owner))
    if found is None or id(weight.variable) in reasons:
        return account(weight, NAME, reasons[id(weight.variable)], changed=False)
    shapes = [str(tuple(kernel.shape)) for kernel in found.kernels]
    return account(
        weight,
        NAME,
        f"now {' and '.join(shapes)}, {found.energy:.1%} of its energy",
        changed=True,
        after_bytes=weight.nbytes * found.size // weight.size,
        sqnr_db=decibels(1.0, 1.0 - found.energy),
    )
