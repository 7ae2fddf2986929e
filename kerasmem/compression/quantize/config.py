"""The choice of a number format for the weights."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from kerasmem.compression.quantize.activations import METHODS
from kerasmem.compression.quantize.adaptive import ADAPTIVE
from kerasmem.compression.quantize.given_ranges import as_pairs
from kerasmem.compression.quantize.given_scales import as_scales
from kerasmem.compression.quantize.mixed import quantize_mixed
from kerasmem.compression.quantize.repair.after import quantize_and_repair
from kerasmem.compression.quantize.static import quantize_static
from kerasmem.compression.regular_expressions import regular_expressions
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError
from kerasmem.records import WeightChange
from kerasmem.units import parse_bytes

DYNAMIC, STATIC, MIXED = "int8-dynamic", "int8-static", "mixed"
SCHEMES = ("int8", DYNAMIC, STATIC, "int4", "float16", "bfloat16", MIXED)
_SCALED = ("int8", DYNAMIC, "int4")
GRANULARITIES = ("channel", "tensor", "group")


@dataclass(frozen=True)
class Quantize(Technique):
    """Store kernels and embedding tables in fewer bits.

    Args:
        scheme: `"int8"` and `"int4"` store codes and scales, int4 two codes in a byte;
            `"float16"` and `"bfloat16"` store 16 bits. Layers compute with floats as
            before. In `"int8-dynamic"` Dense, EinsumDense and convolutions round their
            inputs to int8 too, in every call, and multiply integers. In `"int8-static"`
            activations are int8 as well, in ranges that a calibration on `data` finds,
            and what there is a form for is computed with integers, as LiteRT does;
            BatchNormalization is folded before. `"mixed"` chooses int4, int8 or float16
            for each layer, so that all weights fit into `max_bytes` with least noise in
            what layers make of `data`, or without data in weights.
        granularity: what shares a scale: an output `"channel"` (a row of an embedding
            table), the whole `"tensor"`, or a `"group"` of entries of a channel.
        group_size: most entries in a group.
        symmetric: False for a zero point beside every scale, which uses all codes where
            positive and negative weights are not alike.
        include: regular expressions; a weight of two axes or more whose path holds one
            is quantized too, or whose layer is of a class of that name.
        exclude: likewise; such a weight is left alone.
        bias_correction: True to add to biases what rounding takes from a layer's
            outputs on average, on `data`; fold BatchNormalization first.
        rounding: `"nearest"`, or `"adaptive"` for weights up or down as suits what
            their layer makes of `data` (AdaRound), for symmetric int4 and int8.
        max_bytes: for `"mixed"`, most bytes of all weights in RAM, such as `"2MiB"`.
        calibration: for `"int8-static"`, how ranges are found: `"min-max"`,
            `"moving-average"`, `"percentile"`, `"mse"` or `"entropy"`.
        calibration_samples: most samples to find them on, from 1.
        ranges: for `"int8-static"`, ranges that are known, pairs of ends by the name
            of a tensor, such as those of a `QuantizationAware`; a calibration finds
            what they lack.
        scales: for symmetric int4 and int8, scales that are known, numbers by the name
            of a weight, such as those that a `QuantizationAware` has learned; all
            others are those of the largest entries.

    Raises:
        ConfigError: if the scheme is unknown, or does not know of an argument.

    Example:
        >>> Quantize("int4", granularity="group", group_size=32).to_json()["scheme"]
        'int4'
    """

    scheme: str = "int8"
    _: KW_ONLY
    granularity: str = "channel"
    group_size: int = 128
    symmetric: bool = True
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    bias_correction: bool = False
    rounding: str = "nearest"
    max_bytes: int | str | None = None
    calibration: str = "min-max"
    calibration_samples: int = 512
    ranges: Any = ()
    scales: Any = ()

    name: ClassVar[str] = "quantize"
    trains_on: ClassVar[bool] = False
    freezes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._check_allowed(
            {
                "scheme": SCHEMES,
                "granularity": GRANULARITIES,
                "symmetric": (True, False),
                "bias_correction": (True, False),
                "rounding": ("nearest", ADAPTIVE),
                "calibration": METHODS,
            }
        )
        for field, least in {"group_size": 2, "calibration_samples": 1}.items():
            size = getattr(self, field)
            if not isinstance(size, int) or isinstance(size, bool) or size < least:
                raise ConfigError(
                    f"The {field} of Quantize is a whole number from {least}. "
                    f"Received: {field}={size!r}."
                )
        self._check_used()
        object.__setattr__(self, "ranges", as_pairs(self.ranges))
        object.__setattr__(self, "scales", as_scales(self.scales))
        self._check_scheme()
        self._check_scales()
        for field in ("include", "exclude"):
            patterns = regular_expressions("Quantize", field, getattr(self, field))
            object.__setattr__(self, field, patterns)

    def apply(self, model: Any, data: Any = None) -> list[WeightChange]:
        """Store the kernels of `model` in fewer bits, in place.

        With `data`, the account of the weights tells what layers lose in what they
        make of it.

        Raises:
            ConfigError: for `"int8-static"`, which makes a new model.
        """
        if self.is_static:
            raise ConfigError(
                f"The scheme {self.scheme!r} makes a new model, it cannot change one "
                "in place. Next: use km.compress, or `model, changes = "
                f"Quantize({self.scheme!r}).applied(model, data)`. Received: "
                f"apply({model.name!r})."
            )
        if self.scheme == MIXED:
            return quantize_mixed(model, self, data)
        return quantize_and_repair(model, self, data)

    def applied(self, model: Any, data: Any = None) -> tuple[Any, list[WeightChange]]:
        """Return the model in fewer bits; for `"int8-static"` it is a new one."""
        if self.is_static:
            return quantize_static(model, self, data)
        return super().applied(model, data)

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data."""
        ranges = {name: list(ends) for name, ends in self.ranges}
        scales = {path: list(numbers) for path, numbers in self.scales}
        return {**super().to_json(), "ranges": ranges, "scales": scales}

    @property
    def dtype(self) -> str:
        """The type of the stored codes."""
        return self.scheme.partition("-")[0]

    @property
    def is_dynamic(self) -> bool:
        """Whether inputs are rounded too."""
        return self.scheme == DYNAMIC

    @property
    def is_static(self) -> bool:
        """Whether activations have ranges of their own."""
        return self.scheme == STATIC

    @property
    def has_scales(self) -> bool:
        """Whether weights are symmetric codes, each with scales alone beside it."""
        return self.scheme in _SCALED and self.symmetric

    def _check_used(self) -> None:
        """Raise where a value that is not the default would change nothing."""
        used = {
            "group_size": (self.granularity == "group", "granularity='group'"),
            "calibration": (self.is_static, f"scheme={STATIC!r}"),
            "calibration_samples": (self.is_static, f"scheme={STATIC!r}"),
        }
        for field, (is_used, where) in used.items():
            value = getattr(self, field)
            if not is_used and value != getattr(Quantize, field):
                raise ConfigError(
                    f"The {field} of Quantize is for {where} alone. Received: "
                    f"{field}={value!r}, scheme={self.scheme!r}, "
                    f"granularity={self.granularity!r}."
                )

    def _check_scheme(self) -> None:
        if (self.scheme == MIXED) != (self.max_bytes is not None):
            raise ConfigError(
                f"The scheme {MIXED!r} takes max_bytes, and no other does; on the "
                f"command line it stands in a --recipe. Received: "
                f"scheme={self.scheme!r}, max_bytes={self.max_bytes!r}."
            )
        if self.max_bytes is not None:
            parse_bytes(self.max_bytes)
        plain = self.granularity == "channel" and self.symmetric
        if self.scheme in ("float16", "bfloat16") and not plain:
            raise ConfigError(
                f"The scheme {self.scheme!r} has no scales. Received: "
                f"granularity={self.granularity!r}, symmetric={self.symmetric!r}."
            )
        integers = self.is_dynamic or self.is_static
        if integers and (self.granularity == "group" or not self.symmetric):
            raise ConfigError(
                f"The scheme {self.scheme!r} sums integers over a whole channel: it is "
                "symmetric, per channel or per tensor. Received: "
                f"granularity={self.granularity!r}, symmetric={self.symmetric!r}."
            )
        if self.rounding == ADAPTIVE and not self.has_scales:
            raise ConfigError(
                "Adaptive rounding is for symmetric codes: 'int8', 'int8-dynamic' or "
                f"'int4'. Received: rounding={self.rounding!r}, "
                f"scheme={self.scheme!r}, symmetric={self.symmetric!r}."
            )
        if self.ranges and not self.is_static:
            raise ConfigError(
                f"Only the scheme {STATIC!r} knows of ranges. Received: "
                f"scheme={self.scheme!r}, ranges of {len(self.ranges)} tensors."
            )
        if self.is_static and self.include:
            raise ConfigError(
                f"The scheme {self.scheme!r} takes all that has a form in int8, and no "
                f"more. Received: include={self.include!r}."
            )

    def _check_scales(self) -> None:
        nearest = self.rounding != ADAPTIVE
        if self.scales and not (self.has_scales and nearest):
            raise ConfigError(
                "Scales that are known are for symmetric codes to nearest: 'int8', "
                f"'int8-dynamic' or 'int4'. Received: scheme={self.scheme!r}, "
                f"symmetric={self.symmetric!r}, rounding={self.rounding!r}, scales of "
                f"{len(self.scales)} weights."
            )
