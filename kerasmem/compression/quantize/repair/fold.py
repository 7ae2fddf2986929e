"""Folding BatchNormalization into the layers before it.

In inference it multiplies each channel and adds to it, which the kernel and the bias of
the layer before can do as well.

Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient inference:
A whitepaper", 2018.
"""

from collections.abc import Iterable
from typing import Any

import keras

from kerasmem.compression.account import account
from kerasmem.compression.quantize.repair.fold_plan import FoldPlan, fold_plan
from kerasmem.compression.quantize.repair.kernels import is_separable, output_kernel
from kerasmem.graph.clone import compile_as
from kerasmem.graph.layers import Weight, listed_graph, weights
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.graph.values import nbytes, to_numpy
from kerasmem.records import WeightChange

NAME = "fold_batch_norm"


def fold_batch_norm(model: Any) -> tuple[Any, list[WeightChange]]:
    """Return a model without the BatchNormalizations that a layer can take up.

    It computes in inference what the original does. It is a plain Keras model, compiled
    as the original with a fresh optimizer.

    Args:
        model: a built model; it is not touched.

    Returns:
        The new model, or `model` itself if nothing could be folded; and every weight,
        changed or left alone and why, with one more for every bias that was made.
    """
    plan = FoldPlan() if listed_graph(model) is None else fold_plan(model)
    if not plan.takers:
        return model, [_told(weight, plan) for weight in weights(model)]
    rebuild = Rebuild(_Folded(plan))
    folded = rebuild.run(model)
    compile_as(folded, model)
    changes = [_told(weight, plan) for weight in weights(model)]
    return folded, changes + _new_biases(folded, rebuild, plan)


class _Folded(Rewrite):
    """Layers that have taken up others, and the others gone."""

    def __init__(self, plan: FoldPlan) -> None:
        self._plan = plan

    def goes(self, node: Any) -> bool:
        return id(node) in self._plan.gone

    def config(self, node: Any) -> dict[str, Any] | None:
        taker = self._plan.takers.get(id(node.operation))
        if taker is None:
            return None
        if taker.affine.bias_axes is not None:
            return {"bias_axes": taker.affine.bias_axes}
        return {"use_bias": True}

    def values(self, old: Any, new: Any) -> Iterable[tuple[Any, Any]]:
        taker = self._plan.takers.get(id(old))
        if taker is None:
            yield from super().values(old, new)
            return
        yield output_kernel(new), taker.affine.kernel
        yield new.bias, taker.affine.bias
        if is_separable(old):
            yield new.depthwise_kernel, to_numpy(old.depthwise_kernel)


def _told(weight: Weight, plan: FoldPlan) -> WeightChange:
    by_norm = {id(n): t.layer for t in plan.takers.values() for n in t.norms}
    taker, into = plan.takers.get(id(weight.owner)), by_norm.get(id(weight.owner))
    if into is not None:
        folded = f"folded into {into.name!r}"
        return account(weight, NAME, folded, changed=True, after_bytes=0)
    if taker is not None and weight.variable.name != "depthwise_kernel":
        names = ", ".join(repr(norm.name) for norm in taker.norms)
        return account(weight, NAME, f"takes up {names}", changed=True)
    return account(weight, NAME, _why_not(weight, plan), changed=False)


def _why_not(weight: Weight, plan: FoldPlan) -> str:
    if not isinstance(weight.owner, keras.layers.BatchNormalization):
        return "is next to no BatchNormalization that could be folded"
    reason = plan.reasons.get(id(weight.owner))
    return reason or f"is inside of {weight.block.name!r}, whose calls are not known"


def _new_biases(folded: Any, rebuild: Rebuild, plan: FoldPlan) -> list[WeightChange]:
    paths = {id(weight.variable): weight.path for weight in weights(folded)}
    return [
        WeightChange(
            layer=new.name,
            weight=paths[id(new.bias)],
            technique=NAME,
            changed=True,
            detail="made anew",
            before_bytes=0,
            after_bytes=nbytes(new.bias),
        )
        for old, new in rebuild.pairs
        if id(old) in plan.takers and old.bias is None
    ]
