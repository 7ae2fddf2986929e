"""A model whose forward pass computes as the quantized one will."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from kerasmem import backends
from kerasmem.compression.quantize.apply import choose, largest_block, place_of
from kerasmem.compression.quantize.aware.activations import RoundedActivations
from kerasmem.compression.quantize.aware.quantizers import FakeQuantizer
from kerasmem.compression.quantize.aware.rounding import round_symmetric
from kerasmem.compression.quantize.aware.spectral import normalize_floats
from kerasmem.compression.quantize.aware.trained_beside import TrainedBeside
from kerasmem.compression.quantize.aware.weight_steps import weight_steps
from kerasmem.compression.quantize.aware.weights import RoundedWeights
from kerasmem.compression.quantize.dynamic import summed_axes
from kerasmem.compression.quantize.given_ranges import Ranges
from kerasmem.compression.quantize.given_scales import name_of, scales_in
from kerasmem.compression.quantize.products import has_lora
from kerasmem.compression.quantize.static.planning import staying_float
from kerasmem.compression.regular_expressions import means
from kerasmem.errors import ModelError
from kerasmem.graph.layers import sublayers
from kerasmem.graph.nodes import listed_graph
from kerasmem.graph.treated import treatment_of

if TYPE_CHECKING:
    from kerasmem.compression.quantize.config import Quantize


class Awareness:
    """Rounds, from now on, what a model reads and makes in its forward pass.

    Weights are rounded as `choice` would store them, in training and in inference.

    Args:
        model: a built model.
        choice: how weights are to be stored.
        quantizer: how the ranges of activations are found; None leaves them as they
            are, but for `"int8-dynamic"`, which rounds what goes into its products.
        begin: ranges of activations to begin with.
        learned: whether scales are trained, those of weights and, where activations are
            rounded, the widths of their ranges.

    Raises:
        ConfigError: if scales are to be trained by an optimizer made of several.
        ModelError: if there is no weight to round, or the model's activations are to
            be rounded and its graph is not known, or a range is of none of them, or
            scales are of another model, or activations are computed again in the
            backward pass.
    """

    def __init__(
        self,
        model: Any,
        choice: "Quantize",
        quantizer: FakeQuantizer | None,
        begin: Ranges,
        *,
        learned: bool = False,
    ) -> None:
        if treatment_of(model) is not None:
            raise ModelError(
                f"The model {model.name!r} computes activations again in its backward "
                "pass, which does not go together with rounding them. Next: train the "
                "model that it was made of."
            )
        again = next(filter(_computes_again, sublayers(model)), None)
        if again is not None:
            raise ModelError(
                f"The layer {again.name!r} computes activations again in its backward "
                "pass, which does not go together with rounding them. Expected: layers "
                "made outside of a keras.RematScope. Next: make the model anew, from "
                "its config."
            )
        if quantizer is not None and listed_graph(model) is None:
            raise ModelError(
                "Activations are rounded between the layers that a model's config "
                f"lists. Received: model={model.name!r}, of class "
                f"{type(model).__name__}, whose config lists none. Next: pass "
                "activations=False."
            )
        reasons = choose(model, choice)
        chosen = [weight for weight, reason in reasons if reason is None]
        everything = [weight for weight, _ in reasons]
        block = largest_block(everything)
        given = scales_in(model, everything, choice.scales)
        places = [place_of(w, choice, block, given.get(id(w.variable))) for w in chosen]
        beside = TrainedBeside(model) if learned else None
        self._activations: RoundedActivations | None = None
        with ExitStack() as undo:
            if quantizer is not None:
                left = [w for w in everything if means(choice.exclude, w)]
                static = staying_float(left) if choice.is_static else None
                self._activations = RoundedActivations(
                    model, quantizer, begin, beside, static
                )
                undo.callback(self._activations.release)
            of_weights = None if choice.is_static else beside
            pairs = list(zip(chosen, places, strict=True))
            steps = [weight_steps(w, p, of_weights) for w, p in pairs]
            codings = [place.coding for place in places]
            self._weights = RoundedWeights(
                list(zip(chosen, codings, steps, strict=True))
            )
            undo.callback(self._weights.release)
            of_each = zip(chosen, steps, strict=True)
            self._steps = {name_of(model, w): each for w, each in of_each if each}
            if beside is not None:
                beside.start()
                undo.callback(beside.release)
            undo.callback(normalize_floats(model))
            for weight, place in zip(chosen, places, strict=True):
                if place.dynamic:
                    undo.callback(_rounds_inputs(weight.owner, self.is_passing))
            call = backends.current().uncompiled(self._call)
            undo.callback(backends.shadow(model, "call", call))
            self._undo = undo.pop_all()

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Return the ranges of activations, by the name of a tensor."""
        return {} if self._activations is None else self._activations.read()

    def scales(self) -> dict[str, np.ndarray]:
        """Return the scales of weights that were given or are learned, by their name.

        They are float32 and flat.
        """
        return {name: steps.read() for name, steps in self._steps.items()}

    def is_passing(self) -> bool:
        """Return whether this thread is in a forward pass of the model."""
        return self._weights.are_shown()

    def release(self) -> None:
        """Let the model compute as ever; a second call is a no-op."""
        self._undo.close()

    def _call(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = keras.tree.flatten((args, kwargs))
        if any(isinstance(x, keras.KerasTensor) for x in given):
            return original(*args, **kwargs)
        with ExitStack() as scopes:
            scopes.enter_context(self._weights.shown())
            if self._activations is not None:
                training = bool(kwargs.get("training"))
                scopes.enter_context(self._activations.applied(training=training))
            return original(*args, **kwargs)


def _computes_again(layer: Any) -> bool:
    """Return whether a layer was made in a `keras.RematScope`."""
    # Private: nothing public tells; a scope of mode None leaves a mode as well.
    mode = getattr(layer, "_remat_mode", None)
    return mode is not None and mode.mode is not None


def _rounds_inputs(layer: Any, is_passing: Callable[[], bool]) -> Callable[[], None]:
    """Have a product round its inputs as `dynamic_product` does; return the undo.

    Args:
        layer: the product.
        is_passing: whether it is to be done now.
    """

    def call(original: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if has_lora(layer) or not is_passing():
            return original(inputs, *args, **kwargs)
        ops = keras.ops
        axes = tuple(axis % len(inputs.shape) for axis in summed_axes(layer, inputs))
        exact = round_symmetric(ops.cast(inputs, "float32"), axes)
        return original(ops.cast(exact, inputs.dtype), *args, **kwargs)

    return backends.shadow(layer, "call", call)
