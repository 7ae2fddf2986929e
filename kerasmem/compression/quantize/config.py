"""The configs of what quantizes weights, and of what repairs its harm: fields alone."""

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
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
NEAREST, ADAPTIVE, SECOND_ORDER, AUTO = "nearest", "adaptive", "gptq", "auto"
CLOSELY, ACTIVATION_AWARE = "mse", "awq"
METHODS = ("min-max", "moving-average", "percentile", "mse", "entropy")


@dataclass(frozen=True)
class Calibration(Checked):
    """The calibration that chooses ranges of activations for `Quantize("int8-static")`.

    Sources: Migacz, "8-bit Inference with TensorRT", 2017 (entropy); Krishnamoorthi,
    "Quantizing deep convolutional networks for efficient inference: A whitepaper",
    2018.

    Args:
        method: `"min-max"` takes all that was seen; `"moving-average"` an average of
            the batches' ends, late ones counting more; `"percentile"` leaves out the
            ends of the distribution; `"mse"` and `"entropy"` search for the range with
            the least squared error, or Kullback-Leibler divergence, of its codes.
        percentile: percent of the values below the upper end, and above the lower one,
            in (50, 100].
        decay: weight of what was before each batch in a moving average, in [0, 1).
        samples: most samples to look at, from 1.
        batch_size: samples that go through the model at a time, from 1; batched data
            keeps its own.

    Raises:
        ConfigError: if one of them cannot be used.

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
        max_bytes: most bytes of all weights in RAM, from 0, or a text such as `"2MiB"`.

    Raises:
        ConfigError: if it is no size.

    Example:
        >>> Quantize("mixed", budget=Budget("2KiB")).budget.bytes
        2048
    """

    max_bytes: int | str

    def __post_init__(self) -> None:
        parse_bytes(self.max_bytes)

    @property
    def bytes(self) -> int:
        """The limit in bytes."""
        return parse_bytes(self.max_bytes)


@dataclass(frozen=True)
class Quantize(Technique):
    """Quantization: store kernels and embedding tables in fewer bits.

    Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient
    Integer-Arithmetic-Only Inference", 2018; of adaptive rounding Nagel, Amjad, van
    Baalen, Louizos and Blankevoort, "Up or Down? Adaptive Rounding for Post-Training
    Quantization" (AdaRound), 2020, and Frantar, Ashkboos, Hoefler and Alistarh, "GPTQ:
    Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022;
    of scales by their error Choukroun, Kravchik, Yang
    and Kisilev, "Low-bit Quantization of Neural Networks for Efficient Inference"
    (OMSE), 2019; of NF4 Dettmers et al., "QLoRA: Efficient Finetuning of Quantized
    LLMs", 2023; of those by inputs Lin et al., "AWQ: Activation-aware Weight
    Quantization for LLM Compression and Acceleration", 2023.

    Args:
        scheme: `"int8"`, `"int4"` and `"int3"` store codes and scales, int4 two codes
            in a byte, int3 eight in three; `"nf4"` stores four bits that stand for
            levels as weights of a normal distribution lie, best with groups of 64;
            `"float16"` and `"bfloat16"` store 16 bits.
            Layers compute with floats as before. In `"int8-dynamic"` Dense, EinsumDense
            and convolutions round their inputs to int8 too, in every call, with a scale
            and a zero point per row as LiteRT does, and multiply integers. In
            `"int8-static"` activations are rounded to int8 as well, in fixed ranges
            that a calibration on `data` finds, where they have a form in int8 in
            LiteRT; BatchNormalization is folded before. `"mixed"` chooses int3, int4,
            int8 or float16 for each layer, so that all weights fit into a `budget` and
            what the model makes of `data` changes least, or without data the weights.
        granularity: what shares a scale: an output `"channel"` (a row of an embedding
            table), the whole `"tensor"`, or a `"group"` of entries of a channel.
        group_size: Maximum number of entries in a group, from 2 (default: 128). Another
            value than the default implies `granularity="group"`.
        symmetric: False for a zero point beside every scale, which uses all codes where
            positive and negative weights are not alike.
        include: regular expressions; a weight of two axes or more whose path holds one
            is quantized too, or whose layer is of a class of that name.
        exclude: likewise; such a weight is left alone.
        bias_correction: True to add to biases what rounding takes from a layer's
            outputs on average, on `data`; fold BatchNormalization first.
        rounding: `"nearest"`; or, as suits what a layer makes of `data`, each weight up
            or down by `"adaptive"` (AdaRound), or by `"gptq"` so that later weights
            make up for what earlier ones lose; or `"auto"`: of GPTQ with each of the
            scales that leaves a layer the least error in what it makes, if none are
            named. All three for symmetric integers.
        scales: `"max"` for the last code at the largest entry; `"mse"` for the least
            squared error of what shares a scale, with large entries cut off; `"awq"`
            for finer steps of the weights of large inputs, as suits what a layer makes
            of `data`, with a scale stored for each input; for int3, int4 and int8.
        budget: for `"mixed"`, a `km.Budget`.
        calibration: for `"int8-static"`, a `km.Calibration`; None for its defaults.

    Raises:
        ConfigError: if the scheme is unknown, or does not know of an argument.

    Example:
        >>> Quantize("int4", granularity="group", group_size=32).to_json()["scheme"]
        'int4'
    """

    scheme: Annotated[str, SCHEMES] = "int8"
    _: KW_ONLY
    granularity: Annotated[str, GRANULARITIES] = "channel"
    group_size: Annotated[int, Whole(2)] = 128
    symmetric: bool = True
    include: Patterns = ()
    exclude: Patterns = ()
    bias_correction: bool = False
    rounding: Annotated[str, (NEAREST, ADAPTIVE, SECOND_ORDER, AUTO)] = NEAREST
    scales: Annotated[str, ("max", CLOSELY, ACTIVATION_AWARE)] = "max"
    budget: Budget | None = None
    calibration: Calibration | None = None

    name: ClassVar[str] = "quantize"
    freezes: ClassVar[bool] = True
    hints: ClassVar[Mapping[str, str]] = {
        "bits": " The number of bits is part of the scheme: km.Quantize('int4')."
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.granularity == "channel" and self.group_size != Quantize.group_size:
            self._set("granularity", "group")
        for field, cls in (("budget", Budget), ("calibration", Calibration)):
            value = nested("Quantize", field, cls, getattr(self, field))
            object.__setattr__(self, field, value)
        for is_broken, why, names in self._refused():
            if is_broken:
                values = ", ".join(f"{f}={getattr(self, f)!r}" for f in names)
                raise ConfigError(f"{why} Received: {values}.")

    def _refused(self) -> Iterator[tuple[bool, str, tuple[str, ...]]]:
        scheme = f"The scheme {self.scheme!r}"
        is_integer = self.is_dynamic or self.is_static
        is_weights = not is_integer
        is_plain = self.granularity == "channel" and self.symmetric
        has_groups = self.granularity == "group"
        yield (
            not has_groups and self.group_size != Quantize.group_size,
            "The group_size of Quantize is for granularity='group' alone.",
            ("group_size", "granularity"),
        )
        yield (
            self.calibration is not None and not self.is_static,
            f"The calibration of Quantize is for scheme={STATIC!r} alone.",
            ("calibration", "scheme"),
        )
        yield (
            (self.scheme == MIXED) != (self.budget is not None),
            f"The scheme {MIXED!r} takes a budget, such as km.Budget('2MiB'), and no "
            "other does; on the command line it stands in a --recipe.",
            ("scheme", "budget"),
        )
        yield (
            self.scheme == "nf4" and not self.symmetric,
            f"{scheme} has levels on both sides of zero, and no zero points.",
            ("scheme", "symmetric"),
        )
        yield (
            self.scheme in ("float16", "bfloat16") and not is_plain,
            f"{scheme} has no scales.",
            ("granularity", "symmetric"),
        )
        yield (
            is_integer and (has_groups or not self.symmetric),
            f"{scheme} sums integers over a whole channel: it is symmetric, per "
            "channel or per tensor.",
            ("granularity", "symmetric"),
        )
        yield (
            self.rounding != NEAREST
            and not (self.has_scales or (self.scheme == MIXED and self.symmetric)),
            f"Rounding by {self.rounding!r} is for symmetric integers: 'int8', "
            "'int8-dynamic', 'int4', 'int3' or 'mixed'; 'nf4' has levels instead.",
            ("rounding", "scheme", "symmetric"),
        )
        yield (
            self.scales == CLOSELY and self.scheme not in (*_SCALED, MIXED),
            "Scales by their error are for 'int8', 'int8-dynamic', 'int4', 'int3' or "
            "'mixed'.",
            ("scales", "scheme"),
        )
        yield (
            self.scales == ACTIVATION_AWARE and not (self.has_scales and is_weights),
            "Scales of inputs are for symmetric codes of weights alone: 'int8', 'int4' "
            "or 'int3'.",
            ("scales", "scheme", "symmetric"),
        )
        yield (
            self.is_static and bool(self.include),
            f"{scheme} takes all that has a form in int8, and no more.",
            ("include",),
        )

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
    def takes_samples(self) -> bool:
        """Whether weights are stored as suits what layers make of samples."""
        return self.rounding != NEAREST or self.scales == ACTIVATION_AWARE

    @property
    def takes_any_scales(self) -> bool:
        """Whether samples are to tell which scales suit each layer."""
        return self.rounding == AUTO and self.scales == "max"

    @property
    def takes_input_scales(self) -> bool:
        """Whether weights may have scales of inputs."""
        is_free = self.takes_any_scales and self.scheme != MIXED
        return self.scales == ACTIVATION_AWARE or (is_free and not self.is_dynamic)

    @property
    def has_scales(self) -> bool:
        """Whether weights are symmetric codes, each with scales alone beside it."""
        return self.scheme in _SCALED and self.symmetric


@dataclass(frozen=True)
class FoldBatchNorm(Technique):
    """Batch normalization folding: merge it into the layer with a kernel before it.

    The result computes in inference what the original does, with fewer layers. What
    cannot be folded stays, and the account of the weights tells why.

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
    """Cross-layer equalization: scale channels of neighboring layers to one size.

    What the model computes stays. Rounding with one scale for a whole kernel loses less
    then; rounding per channel has less to gain. Fold BatchNormalization first: through
    it no scale can pass.

    Source: Nagel, van Baalen, Blankevoort and Welling, "Data-free quantization through
    weight equalization and bias correction", 2019.

    Args:
        replace_relu6: True to make a ReLU of each ReLU6 between two such layers, which
            are left alone else. The model then computes something else wherever a
            value was cut off at 6.

    Raises:
        ConfigError: if the argument is no bool.

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
    """Batch normalization re-estimation: gather its statistics anew on data.

    Use it after pruning, rounding or another step that changes what layers make. It
    takes samples and no labels.

    Source: Sun et al., "Hybrid 8-bit floating point (HFP8) training and inference for
    deep neural networks", 2019.

    Args:
        samples: most samples to look at, from 2.

    Raises:
        ConfigError: if there are too few samples.

    Example:
        >>> ReestimateBatchNorm(samples=256).to_json()
        {'technique': 'reestimate_batch_norm', 'samples': 256}
    """

    _: KW_ONLY
    samples: Annotated[int, Whole(2)] = 512

    name: ClassVar[str] = "reestimate_batch_norm"
