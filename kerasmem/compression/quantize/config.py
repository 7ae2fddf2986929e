"""Configs of weight quantization and of the techniques that reduce its error."""

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, ClassVar

from kerasmem.checks import Checked, Patterns, Real, Whole
from kerasmem.compression.fields import nested
from kerasmem.compression.technique import Technique
from kerasmem.errors import ConfigError
from kerasmem.units import parse_bytes

DYNAMIC, STATIC, MIXED = "int8-dynamic", "int8-static", "mixed"
SCHEMES = ("int8", DYNAMIC, STATIC, "int4", "int3", "nf4", "float16", "bfloat16", MIXED)
_SCALED = ("int8", DYNAMIC, "int4", "int3")
GRANULARITIES = ("channel", "tensor", "group")
GROUP_SIZE = 128
NEAREST, ADAPTIVE, SECOND_ORDER, AUTO = "nearest", "adaptive", "gptq", "auto"
CLOSELY, ACTIVATION_AWARE = "mse", "awq"
_MIXED_STEP = (
    '{"technique": "quantize", "scheme": "mixed", "budget": {"max_bytes": "2MiB"}}'
)
METHODS = ("min-max", "moving-average", "percentile", "mse", "entropy")


@dataclass(frozen=True)
class Calibration(Checked):
    """The calibration that selects activation ranges for `Quantize("int8-static")`.

    Sources: Migacz, "8-bit Inference with TensorRT", 2017 (entropy); Krishnamoorthi,
    "Quantizing deep convolutional networks for efficient inference: A whitepaper",
    2018.

    Args:
        method: Calibration method. `"min-max"` uses the full observed range.
            `"moving-average"` averages the extremes of batches and weights late batches
            more. `"percentile"` cuts off both tails of the distribution. `"mse"` and
            `"entropy"` search for the range whose codes have the smallest squared error
            or Kullback-Leibler divergence. Defaults to `"min-max"`.
        percentile: Float in (50, 100]. Percentage of values below the upper end and
            above the lower end. Defaults to 99.99.
        decay: Float in [0, 1). Weight of earlier batches in the moving average.
            Defaults to 0.9.
        samples: Positive integer. Maximum number of samples. Defaults to 512.
        batch_size: Positive integer. Number of samples per batch. Batched data keeps
            its own batches. Defaults to 32.

    Raises:
        ConfigError: If an argument is invalid.

    Example:
        >>> Quantize("int8-static", calibration=Calibration("mse")).calibration.samples
        512
    """

    method: Annotated[str, METHODS] = "min-max"
    _: KW_ONLY
    percentile: Annotated[float, Real(above=50, most=100)] = 99.99
    decay: Annotated[float, Real(least=0, below=1)] = 0.9
    samples: Annotated[int, Whole(1)] = 512
    batch_size: Annotated[int, Whole(1)] = 32


@dataclass(frozen=True)
class Budget:
    """A limit on the bytes of the weights, for `Quantize("mixed")`.

    Args:
        max_bytes: Non-negative integer, or a string such as `"2MiB"`. Maximum bytes of
            all weights in memory.

    Raises:
        ConfigError: If `max_bytes` is not a valid size.

    Example:
        >>> Quantize("mixed", budget=Budget("2KiB")).budget.bytes
        2048
    """

    max_bytes: int | str

    def __post_init__(self) -> None:
        parse_bytes(self.max_bytes, "Budget", "max_bytes")

    @property
    def bytes(self) -> int:
        """Limit in bytes."""
        return parse_bytes(self.max_bytes)


@dataclass(frozen=True)
class Quantize(Technique):
    """Quantization: store kernels and embedding tables in fewer bits.

    Supported schemes:

    - `"int8"`, `"int4"`, `"int3"`: integer codes and scales. A byte contains two int4
      codes; three bytes contain eight int3 codes. Layers compute with floats.
    - `"nf4"`: 4-bit indices of the quantiles of a normal distribution. Groups of 64
      work best.
    - `"float16"`, `"bfloat16"`: 16-bit floats.
    - `"int8-dynamic"`: int8 weights. Dense, EinsumDense and convolutions also round
      their inputs to int8 in every call and multiply integers. Each input row has a
      scale and a zero point, as in LiteRT.
    - `"int8-static"`: int8 weights and activations, where LiteRT supports int8.
      Activations have fixed ranges from a calibration on `data`. BatchNormalization is
      folded first.
    - `"mixed"`: int3, int4, int8 or float16 for each layer, so that all weights fit
      `budget`. The choice minimizes the change of the outputs on `data`, or of the
      weights if there is no data.

    Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", 2018. Adaptive rounding: Nagel, Amjad, van
    Baalen, Louizos and Blankevoort, "Up or Down? Adaptive Rounding for Post-Training
    Quantization" (AdaRound), 2020. GPTQ: Frantar, Ashkboos, Hoefler and Alistarh,
    "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
    2022. MSE scales: Choukroun, Kravchik, Yang and Kisilev, "Low-bit Quantization of
    Neural Networks for Efficient Inference" (OMSE), 2019. NF4: Dettmers et al., "QLoRA:
    Efficient Finetuning of Quantized LLMs", 2023. AWQ: Lin et al., "AWQ:
    Activation-aware Weight Quantization for LLM Compression and Acceleration", 2023.

    Args:
        scheme: Type of the stored weights. `"mixed"` needs a budget; on the command
            line, give it in a `--recipe` file. Defaults to `"int8"`.
        granularity: Unit that shares a scale: `"channel"` for an output channel (a row
            of an embedding table), `"tensor"`, or `"group"` for a group of entries in a
            channel. Defaults to `"channel"`, or for `"int4"` to groups of equal size
            close to 64 (784 inputs: 14 groups of 56), or to a choice per layer for
            `"mixed"`. By default, `"int4"` has bfloat16 scales, one per channel in
            convolutions, and keeps small embedding tables in int8: those with at most
            2 % of the weights of the model.
        group_size: Integer, at least 2. Maximum number of entries in a group; implies
            `granularity="group"`. Defaults to 128 with `granularity="group"`.
        symmetric: Boolean. If `False`, uses asymmetric quantization with a zero point
            per scale. Defaults to `True`.
        include: Regular expressions of weight paths or layer class names. Additional
            weights to quantize, with two or more axes. An expression matches any part
            of a path, or the whole class name of a layer or of a base class.
        exclude: Regular expressions of weight paths or layer class names. Matching
            weights are not quantized.
        bias_correction: Boolean. Whether to correct biases by the mean output error
            that rounding causes on `data`; layers without a bias stay as they are. Fold
            BatchNormalization first. Defaults to `False`.
        rounding: Rounding method: `"nearest"`, `"adaptive"` (AdaRound), `"gptq"` or
            `"auto"`, which is GPTQ with the scales of the smallest output error per
            layer. All but `"nearest"` need `data` and symmetric integer codes. `"auto"`
            keeps `scales` of `"mse"` and `"awq"`. Defaults to `"nearest"`.
        scales: Kind of scales: `"max"` maps the largest entry to the last code;
            `"mse"` minimizes the squared error and clips large entries; `"awq"` uses
            smaller steps for weights of large inputs, stores a scale per input and
            needs `data`. `"int8-static"`, `"nf4"` and 16 bits support only `"max"`;
            `"int8-dynamic"` and `"mixed"` support `"max"` and `"mse"`. Defaults to
            `"max"`, or `"mse"` for `"int4"` without `granularity` and `group_size`.
        budget: A `km.Budget`, required for `"mixed"`.
        calibration: A `km.Calibration` for `"int8-static"`. Defaults to
            `km.Calibration()`.

    Raises:
        ConfigError: If the scheme is unknown or does not support an argument.

    Example:
        >>> Quantize("int4", granularity="group", group_size=32).to_json()["scheme"]
        'int4'
    """

    scheme: Annotated[str, SCHEMES] = "int8"
    _: KW_ONLY
    granularity: Annotated[str, GRANULARITIES] | None = None
    group_size: Annotated[int, Whole(2)] | None = None
    symmetric: bool = True
    include: Patterns = ()
    exclude: Patterns = ()
    bias_correction: bool = False
    rounding: Annotated[str, (NEAREST, ADAPTIVE, SECOND_ORDER, AUTO)] = NEAREST
    scales: Annotated[str, ("max", CLOSELY, ACTIVATION_AWARE)] | None = None
    budget: Budget | None = None
    calibration: Calibration | None = None

    name: ClassVar[str] = "quantize"
    freezes: ClassVar[bool] = True
    hints: ClassVar[Mapping[str, str]] = {
        "bits": " The number of bits is part of the scheme: km.Quantize('int4')."
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set_defaults()
        for field, cls in (("budget", Budget), ("calibration", Calibration)):
            value = nested("Quantize", field, cls, getattr(self, field))
            object.__setattr__(self, field, value)
        for is_broken, why, names in self._refused():
            if is_broken:
                values = ", ".join(f"{f}={getattr(self, f)!r}" for f in names)
                raise ConfigError(f"{why} Received: {values}.")

    def _set_defaults(self) -> None:
        if self.granularity is None and self.group_size is not None:
            self._set("granularity", "group")
        if self.granularity == "group" and self.group_size is None:
            self._set("group_size", GROUP_SIZE)
        if self.granularity is None and self.scheme not in ("int4", MIXED):
            self._set("granularity", "channel")
        if self.granularity is not None and self.scales is None:
            self._set("scales", "max")

    def _refused(self) -> Iterator[tuple[bool, str, tuple[str, ...]]]:
        scheme = f"The scheme {self.scheme!r}"
        is_integer = self.is_dynamic or self.is_static
        is_weights = not is_integer
        is_plain = self.granularity == "channel" and self.symmetric
        has_groups = self.granularity == "group"
        yield (
            not has_groups and self.group_size is not None,
            "Quantize supports `group_size` only for granularity='group'.",
            ("group_size", "granularity"),
        )
        yield (
            self.calibration is not None and not self.is_static,
            f"Quantize supports `calibration` only for scheme={STATIC!r}.",
            ("calibration", "scheme"),
        )
        yield (
            self.scheme != MIXED and self.budget is not None,
            f"Quantize supports `budget` only for scheme={MIXED!r}.",
            ("scheme", "budget"),
        )
        yield (
            self.scheme == MIXED and self.budget is None,
            f"The scheme {MIXED!r} needs a budget, such as km.Budget('2MiB'). On the "
            f"command line, use --recipe with [{_MIXED_STEP}].",
            ("scheme", "budget"),
        )
        yield (
            self.scheme == "nf4" and not self.symmetric,
            f"{scheme} does not support zero points.",
            ("scheme", "symmetric"),
        )
        yield (
            self.scheme in ("float16", "bfloat16") and not is_plain,
            f"{scheme} has no scales, so it supports neither granularity nor "
            "symmetric=False.",
            ("symmetric" if self.granularity == "channel" else "granularity",),
        )
        yield (
            is_integer and (has_groups or not self.symmetric),
            f"{scheme} sums integers over whole channels. Expected: symmetric "
            "quantization per channel or per tensor.",
            ("granularity" if has_groups else "symmetric",),
        )
        yield (
            self.rounding != NEAREST
            and not (self.has_scales or (self.scheme == MIXED and self.symmetric)),
            f"Quantize supports rounding={self.rounding!r} only for symmetric integer "
            "codes: 'int8', 'int8-dynamic', 'int4', 'int3' or 'mixed'.",
            ("rounding", "scheme", "symmetric"),
        )
        yield (
            self.scales == CLOSELY and self.scheme not in (*_SCALED, MIXED),
            f"Quantize supports scales={CLOSELY!r} only for 'int8', 'int8-dynamic', "
            "'int4', 'int3' or 'mixed'.",
            ("scales", "scheme"),
        )
        yield (
            self.scales == ACTIVATION_AWARE and not (self.has_scales and is_weights),
            f"Quantize supports scales={ACTIVATION_AWARE!r} only for symmetric codes "
            "of weights: 'int8', 'int4' or 'int3'.",
            ("scales", "scheme", "symmetric"),
        )
        yield (
            self.is_static and bool(self.include),
            f"{scheme} does not support `include`: it already quantizes every layer "
            "that LiteRT supports in int8.",
            ("include",),
        )

    @property
    def dtype(self) -> str:
        """Type of the stored codes."""
        return self.scheme.partition("-")[0]

    @property
    def is_dynamic(self) -> bool:
        """Whether inputs of products are rounded in every call."""
        return self.scheme == DYNAMIC

    @property
    def is_static(self) -> bool:
        """Whether activations have fixed ranges."""
        return self.scheme == STATIC

    @property
    def takes_samples(self) -> bool:
        """Whether rounding or scales depend on samples."""
        return self.rounding != NEAREST or self.scales == ACTIVATION_AWARE

    @property
    def is_close(self) -> bool:
        """Whether scales minimize the squared error."""
        is_default = self.scales is None and self.rounding != AUTO
        return self.scales == CLOSELY or is_default

    @property
    def takes_any_scales(self) -> bool:
        """Whether samples select the kind of scales per layer."""
        return self.rounding == AUTO and self.scales in (None, "max")

    @property
    def takes_input_scales(self) -> bool:
        """Whether weights may have input scales."""
        is_free = self.takes_any_scales and self.scheme != MIXED
        return self.scales == ACTIVATION_AWARE or (is_free and not self.is_dynamic)

    @property
    def has_scales(self) -> bool:
        """Whether weights are symmetric integer codes without zero points."""
        return self.scheme in _SCALED and self.symmetric

    @property
    def in_training(self) -> "Quantize":
        """Config of fake quantization, with one scale per channel by default."""
        granularity, scales = self.granularity or "channel", self.scales or "max"
        return replace(self, granularity=granularity, scales=scales)


@dataclass(frozen=True)
class FoldBatchNorm(Technique):
    """Batch normalization folding: merge BatchNormalization into the layer before it.

    The folded model has fewer layers and computes the same outputs in inference. A
    BatchNormalization that cannot be folded stays, and its weight changes contain the
    reason.

    Source: Krishnamoorthi, "Quantizing deep convolutional networks for efficient
    inference: A whitepaper", 2018.

    Example:
        >>> FoldBatchNorm().to_json()
        {'technique': 'fold_batch_norm'}
    """

    name: ClassVar[str] = "fold_batch_norm"
    undoes: ClassVar[tuple[str, ...]] = ("cluster",)


@dataclass(frozen=True)
class Equalize(Technique):
    """Cross-layer equalization: scale channels of neighboring layers to equal ranges.

    The outputs of the model do not change. Equalization reduces the rounding error of
    one scale per tensor, and has less effect on one scale per channel. Fold
    BatchNormalization first, because it blocks equalization.

    Source: Nagel, van Baalen, Blankevoort and Welling, "Data-free quantization through
    weight equalization and bias correction", 2019.

    Args:
        replace_relu6: Boolean. Whether to replace ReLU6 between two layers by ReLU, so
            that they can be equalized. The outputs then change wherever ReLU6 clipped a
            value. Defaults to `False`.

    Raises:
        ConfigError: If `replace_relu6` is not a boolean.

    Example:
        >>> Equalize(replace_relu6=True).to_json()
        {'technique': 'equalize', 'replace_relu6': True}
    """

    _: KW_ONLY
    replace_relu6: bool = False

    name: ClassVar[str] = "equalize"
    undoes: ClassVar[tuple[str, ...]] = ("cluster",)


@dataclass(frozen=True)
class ReestimateBatchNorm(Technique):
    """Batch normalization re-estimation: recompute the moving statistics on data.

    Use it after pruning, quantization or another technique that changes activations. It
    needs samples but no labels.

    Source: Sun et al., "Hybrid 8-bit floating point (HFP8) training and inference for
    deep neural networks", 2019.

    Args:
        samples: Integer of at least 2. Maximum number of samples. Defaults to 512.

    Raises:
        ConfigError: If `samples` is less than 2.

    Example:
        >>> ReestimateBatchNorm(samples=256).to_json()
        {'technique': 'reestimate_batch_norm', 'samples': 256}
    """

    _: KW_ONLY
    samples: Annotated[int, Whole(2)] = 512

    name: ClassVar[str] = "reestimate_batch_norm"
