"""The choice of a number format for the weights."""

from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, ClassVar

from kerasmem.compression.quantize.apply import quantize_weights
from kerasmem.compression.regular_expressions import regular_expressions
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError
from kerasmem.records import WeightChange

DYNAMIC = "int8-dynamic"
SCHEMES = ("int8", DYNAMIC, "int4", "float16", "bfloat16")
GRANULARITIES = ("channel", "tensor", "group")


@dataclass(frozen=True)
class Quantize(Technique):
    """Store kernels and embedding tables in fewer bits.

    Args:
        scheme: `"int8"` and `"int4"` store codes and scales, int4 two codes in a byte;
            `"float16"` and `"bfloat16"` store 16 bits. Layers compute with floats as
            before. In `"int8-dynamic"` Dense, EinsumDense and convolutions round their
            inputs to int8 too, in every call, and multiply integers.
        granularity: what shares a scale: an output `"channel"` (a row of an embedding
            table), the whole `"tensor"`, or a `"group"` of entries of a channel.
        group_size: most entries in a group.
        symmetric: False for a zero point beside every scale, which uses all codes where
            positive and negative weights are not alike.
        include: regular expressions; a weight of two axes or more whose path holds one
            is quantized too, or whose layer is of a class of that name.
        exclude: likewise; such a weight is left alone.

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

    name: ClassVar[str] = "quantize"
    trains_on: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field, allowed in {
            "scheme": SCHEMES,
            "granularity": GRANULARITIES,
            "symmetric": (True, False),
        }.items():
            if getattr(self, field) not in allowed:
                raise ConfigError(
                    f"The {field} of Quantize must be one of "
                    f"{', '.join(map(str, allowed))}. "
                    f"Received: {field}={getattr(self, field)!r}."
                )
        size = self.group_size
        if not isinstance(size, int) or isinstance(size, bool) or size < 2:
            raise ConfigError(
                "The group_size of Quantize is a whole number from 2. "
                f"Received: group_size={size!r}."
            )
        self._check_scheme()
        for field in ("include", "exclude"):
            patterns = regular_expressions("Quantize", field, getattr(self, field))
            object.__setattr__(self, field, patterns)

    def apply(self, model: Any, data: Any = None) -> list[WeightChange]:
        """Store the kernels of `model` in fewer bits, in place; it takes no data."""
        del data
        return quantize_weights(model, self)

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data; `techniques.from_json` reads it back."""
        lists = {"include": list(self.include), "exclude": list(self.exclude)}
        return {"technique": self.name, **asdict(self), **lists}

    @property
    def dtype(self) -> str:
        """The type of the stored codes."""
        return "int8" if self.is_dynamic else self.scheme

    @property
    def is_dynamic(self) -> bool:
        """Whether inputs are rounded too."""
        return self.scheme == DYNAMIC

    def _check_scheme(self) -> None:
        plain = self.granularity == "channel" and self.symmetric
        if self.scheme in ("float16", "bfloat16") and not plain:
            raise ConfigError(
                f"The scheme {self.scheme!r} has no scales. Received: "
                f"granularity={self.granularity!r}, symmetric={self.symmetric!r}."
            )
        if self.is_dynamic and (self.granularity == "group" or not self.symmetric):
            raise ConfigError(
                f"The scheme {self.scheme!r} sums integers over a whole channel: it is "
                "symmetric, per channel or per tensor. Received: "
                f"granularity={self.granularity!r}, symmetric={self.symmetric!r}."
            )
