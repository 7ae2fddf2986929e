"""Insertion of fake quantization layers between the layers of a model."""

from collections.abc import Mapping
from typing import Any

from kerasmem.compression.quantize.aware.places import INSIDE, LINEAR, RoundingPoint
from kerasmem.compression.quantize.aware.quantizers import FakeQuantize
from kerasmem.compression.quantize.static.plan import Ranges
from kerasmem.compression.quantize.static.split_layers import split
from kerasmem.errors import ModelError
from kerasmem.graph.flat_calls import flatten
from kerasmem.graph.rebuild import Rebuild, Rewrite
from kerasmem.types import Model, Tensor


class Rounding(Rewrite):
    """Inserts a `FakeQuantize` after every tensor to round.

    All calls of an inner model share a range. So do all calls of a layer for its inner
    tensor.

    Args:
        model: Model to rewrite.
        points: Result of `places` for the model.
        options: Further arguments of every `FakeQuantize`.

    Attributes:
        inside: Layers that round an inner tensor, by the id of the outer layer.
    """

    def __init__(
        self, model: Model, points: Mapping[str, RoundingPoint], **options: Any
    ) -> None:
        self._options = options
        calls = flatten(model)
        tensors = dict(zip(calls.names, calls.tensors, strict=True))
        within = {
            f"{call.name}/{name}": call.operation
            for call in calls.calls
            for name in (INSIDE, LINEAR)
        }
        self._layers: dict[int, FakeQuantize] = {}
        self.inside: dict[int, FakeQuantize] = {}
        for at, place in points.items():
            if at in tensors:
                self._add(self._layers, id(tensors[at]), place)
            else:
                self._add(self.inside, id(within[at]), place)
        self._known = {*points, *tensors, *flatten(model, split).names}

    def run(self, model: Model) -> tuple[Any, list[tuple[Any, Any]]]:
        """Return the new model and pairs of old and new operations."""
        rebuild = Rebuild(self)
        return rebuild.run(model), rebuild.pairs

    def after(self, tensor: Tensor) -> Any | None:
        """Return the layer that rounds a tensor, or None."""
        return self._layers.get(id(tensor))

    def begin(self, ranges: Ranges) -> None:
        """Set known ranges as initial ranges.

        Raises:
            ModelError: If a range does not belong to a tensor of the model.
        """
        unknown = [name for name in ranges if name not in self._known]
        if unknown:
            raise ModelError(
                f"{len(unknown)} of {len(ranges)} ranges do not belong to a tensor of "
                "the model. Expected: tensor names as listed by a calibration, such "
                "as layer names. Received: ranges of "
                f"{', '.join(map(repr, unknown[:3]))}. Next: remove these ranges."
            )
        for layer in (*self._layers.values(), *self.inside.values()):
            for name in layer.tensors:
                if name in ranges and layer.range is not None:
                    layer.range.assign(ranges[name])

    def _add(
        self, layers: dict[int, FakeQuantize], at: int, place: RoundingPoint
    ) -> None:
        names = [place.tensor, *place.others]
        if at in layers:
            layers[at].tensors += names
            return
        name = f"{place.tensor.replace('/', '_').replace(':', '_')}_fake_quantize"
        names_in_use = {
            each.name for each in (*self._layers.values(), *self.inside.values())
        }
        while name in names_in_use:
            name += "_"
        options = {"ends": place.ends, **self._options}
        layers[at] = FakeQuantize(tensors=names, name=name, **options)
