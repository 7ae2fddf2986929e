"""Applies low-rank factorization to a model."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kerasmem.compression.account import (
    account,
    check_every_pattern_matches,
    decibels,
    matches,
)
from kerasmem.compression.factorize import Factorize
from kerasmem.compression.factorize.inside import factorize_inside, why_not_inside
from kerasmem.compression.factorize.replacements import FactorChain, chain, why_not
from kerasmem.compression.technique import Context
from kerasmem.errors import ModelError
from kerasmem.graph.clone import compile_as
from kerasmem.graph.kernels import is_kernel
from kerasmem.graph.layers import Weight, operations, readers, weights
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import to_numpy
from kerasmem.records import WeightChange
from kerasmem.types import Model, Node

NAME = "factorize"
_NO_KERNEL = "is not a kernel"
_TOO_LARGE = "would not have fewer weights"
_ADVICE = " Next: reduce the rank."


def factorize(
    model: Model, config: Factorize, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Factorizes the kernels of a model.

    Layers in the graph are replaced in a new model. Layers inside of other layers are
    changed in place.

    Raises:
        ModelError: If no kernel becomes smaller.
        ConfigError: If a pattern matches no weight.
    """
    del context
    everything = list(weights(model))
    patterns = {"include": config.include, "exclude": config.exclude}
    check_every_pattern_matches(model.name, everything, patterns)
    in_graph = {id(layer) for layer in operations(model)}
    shared_weights = readers(model)
    chains: dict[int, FactorChain] = {}
    reasons: dict[int, str] = {}
    for weight in everything:
        reason = _why_not(weight, config, in_graph)
        if reason is None and id(weight.variable) in shared_weights:
            reason = f"is read by {shared_weights[id(weight.variable)]} too"
        if reason is None:
            candidate = chain(weight.owner, config)
            if candidate.size < weight.size:
                chains[id(weight.variable)] = candidate
                continue
            reason = _TOO_LARGE
        reasons[id(weight.variable)] = reason
    if not chains:
        of_kernels = [why for why in reasons.values() if why != _NO_KERNEL]
        ((commonest, _),) = Counter(of_kernels or [_NO_KERNEL]).most_common(1)
        raise ModelError(
            f"The model {model.name!r} has nothing to factorize: none of its "
            f"{len(everything)} weights is a kernel that becomes smaller. Most "
            f"frequent reason: {commonest}. Received: "
            f"{config!r}.{_ADVICE * (_TOO_LARGE in reasons.values())}"
        )
    changes = [_change(weight, chains, reasons) for weight in everything]
    thick = [weight for weight in everything if id(weight.variable) in chains]
    inside = [weight for weight in thick if id(weight.owner) not in in_graph]
    factorize_inside((w, chains[id(w.variable)].inside(w.owner)) for w in inside)
    outer = {
        id(weight.owner): chains[id(weight.variable)]
        for weight in thick
        if id(weight.owner) in in_graph
    }
    if not outer:
        return model, changes
    smaller = Rebuild(_Thinner(outer)).run(model)
    compile_as(smaller, model)
    return smaller, changes


class _Thinner(Rewrite):
    """Replaces layers by their factors."""

    def __init__(self, chains: dict[int, FactorChain]) -> None:
        self._chains = chains

    def replacement(self, node: Node) -> Sequence[Any]:
        thin_chain = self._chains.get(id(node.operation))
        return () if thin_chain is None else thin_chain.layers()

    def values(self, old: Any, new: Any) -> Iterable[tuple[Any, Any]]:
        thin_chain = self._chains.get(id(old))
        if thin_chain is None:
            return super().values(old, new)
        values = [
            (layer.kernel, kernel)
            for layer, kernel in zip(new.layers, thin_chain.kernels, strict=True)
        ]
        if old.bias is not None:
            values.append((new.layers[-1].bias, to_numpy(old.bias)))
        return values


def _why_not(weight: Weight, config: Factorize, in_graph: set[int]) -> str | None:
    if not is_kernel(weight):
        return _NO_KERNEL
    if matches(config.exclude, weight):
        return "is excluded"
    if config.include and not matches(config.include, weight):
        return "is not included"
    if not np.isfinite(to_numpy(weight.variable)).all():
        return "has entries that are NaN or infinite"
    is_outer = id(weight.owner) in in_graph
    return (None if is_outer else why_not_inside(weight)) or why_not(weight.owner)


def _change(
    weight: Weight, chains: dict[int, FactorChain], reasons: dict[int, str]
) -> WeightChange:
    thin_chain = chains.get(id(weight.variable))
    if thin_chain is None:
        return account(weight, NAME, reasons[id(weight.variable)], changed=False)
    shapes = [str(tuple(kernel.shape)) for kernel in thin_chain.kernels]
    return account(
        weight,
        NAME,
        f"now {' and '.join(shapes)}, {thin_chain.energy:.1%} of its energy",
        changed=True,
        after_bytes=weight.nbytes * thin_chain.size // weight.size,
        sqnr_db=decibels(1.0, 1.0 - thin_chain.energy),
    )
