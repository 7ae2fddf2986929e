"""The one table of Keras's layers and operations.

A row says all that the rooms of kerasmem know of a class: how channels move through it,
where its kernel has them, what its gradient needs, which int8 form it has, by which
rule its memory is estimated. A room keeps what a word of a column means to it, such as
the function that labels a convolution; so a new layer is one row here, or one call of
`kerasmem.graph.layer_table.register_layer`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any
from weakref import WeakKeyDictionary

import keras

from kerasmem.errors import ConfigError, as_received
from kerasmem.types import Operation


@dataclass(frozen=True, kw_only=True)
class LayerEntry:
    """What is known of one class of layers or operations.

    Args:
        name: `"layers.Dense"`, `"ops.Add"`: package and class.
        channels: the family by which labels of channels move through it, a key of
            `kerasmem.graph.channels.walk.FAMILIES`; None freezes them.
        kernel: how its kernel lies: `"dense"`, `"einsum"`, `"convolution"`,
            `"transposed"`, `"depthwise"`, `"separable"`, `"embedding"`; None without.
        residuals: what its gradient needs, see `Role` of `compress_activations`:
            `"linear"`, `"cheap"`, `"joining"` or `"kernel"`.
        integer: its form in int8, a key of `KINDS` in `quantize/static`; None stays
            float.
        estimate: the rule that estimates its memory, where several classes share one;
            else a table of the analytic estimate has its class name, or nothing.
        homogeneous: whether `f(s * x) == s * f(x)` for a positive `s` of each channel.
        identity: whether it hands on its input in inference.
        moves: whether it only moves values or leaves some out: int8 codes pass.
        reason: why there is no more to know; for layers that keep their channels.
    """

    name: str
    channels: str | None = None
    kernel: str | None = None
    residuals: str = "kernel"
    integer: str | None = None
    estimate: str | None = None
    homogeneous: bool = False
    identity: bool = False
    moves: bool = False
    reason: str | None = None

    @property
    def class_name(self) -> str:
        """The name of the class alone."""
        return self.name.rpartition(".")[2]


_LAYERS = """
Dense: dense kernel=dense integer=dense
EinsumDense: einsum_dense kernel=einsum
Embedding: embedding kernel=embedding
Conv1D: convolution kernel=convolution integer=convolution_1d estimate=convolution
Conv2D: convolution kernel=convolution integer=convolution_2d estimate=convolution
Conv3D: convolution kernel=convolution estimate=convolution
Conv[123]DTranspose: transposed_convolution kernel=transposed
    estimate=transposed_convolution
DepthwiseConv1D: depthwise_convolution kernel=depthwise integer=depthwise_1d
DepthwiseConv2D: depthwise_convolution kernel=depthwise integer=depthwise_2d
SeparableConv[12]D: separable_convolution kernel=separable
MultiHeadAttention: multi_head_attention
GroupedQueryAttention: grouped_query_attention
SimpleRNN GRU LSTM: recurrent
Bidirectional: bidirectional
TimeDistributed: time_distributed
BatchNormalization: batch_normalization cheap integer=affine
LayerNormalization RMSNormalization UnitNormalization: layer_normalization cheap
GroupNormalization: group_normalization cheap
Normalization: normalization integer=affine
Rescaling: rescaling linear integer=affine
Dropout SpatialDropout[123]D: elementwise linear estimate=dropout homogeneous identity
    moves
GaussianDropout: elementwise linear estimate=dropout homogeneous identity
GaussianNoise: elementwise linear homogeneous identity
AlphaDropout: elementwise estimate=dropout identity
ActivityRegularization: elementwise identity moves
Identity: elementwise linear homogeneous identity moves
ReLU: elementwise cheap integer=rectifier estimate=activation
LeakyReLU: elementwise cheap integer=leaky_rectifier estimate=activation homogeneous
ELU: elementwise cheap estimate=activation
PReLU: slopes cheap homogeneous
Softmax: over_axis joining estimate=activation
Activation: activation cheap integer=activation estimate=activation
Add: summed linear integer=add
Average: summed linear
Subtract: merged linear
Multiply: merged cheap integer=multiply
Maximum Minimum: merged cheap
MaxPooling[12]D: spatial cheap integer=max_pooling estimate=max_pooling homogeneous
    moves
MaxPooling3D: spatial cheap estimate=max_pooling homogeneous moves
AveragePooling[12]D: spatial linear integer=average_pooling estimate=average_pooling
    homogeneous
AveragePooling3D: spatial linear estimate=average_pooling homogeneous
AdaptiveAveragePooling[123]D: spatial linear estimate=average_pooling homogeneous
ZeroPadding[12]D: spatial linear integer=padding homogeneous moves
ZeroPadding3D Cropping[23]D UpSampling3D: spatial linear homogeneous moves
Cropping1D UpSampling1D: spatial_last linear homogeneous moves
UpSampling2D: spatial linear homogeneous
GlobalMaxPooling[123]D: pooled cheap homogeneous moves
GlobalAveragePooling[13]D: pooled linear homogeneous
GlobalAveragePooling2D: pooled linear integer=mean homogeneous
Flatten: reshaped linear integer=reshape homogeneous moves
Reshape: reshaped_to_a_shape linear integer=reshape moves
Permute: permuted linear moves
RepeatVector: repeated linear moves
Concatenate: concatenated linear integer=concatenate
Dot: dotted
Attention: attention
Masking: - moves # its mask depends on every channel
InputLayer: - # is where a model's channels are given
ReversibleEmbedding: - # its table is the kernel of the end too
AdditiveAttention: - # adds queries to keys and sums over both
SpectralNormalization: - # divides by a norm of its whole kernel
Wrapper RNN Layer: - # is what other layers are made of
GRUCell LSTMCell SimpleRNNCell StackedRNNCells: - # is run, and known, by the RNN around
    it
AdaptiveMaxPooling[123]D: - # gathers windows of unlike sizes
ConvLSTM[123]D: - # a convolution whose gates have no labels yet
Lambda TFSMLayer FlaxLayer JaxLayer TorchModuleWrapper: - # runs code that cannot be
    read
AugMix AutoContrast CategoryEncoding CenterCrop
    ContrastLimitedAdaptiveHistogramEqualization CutMix Discretization Equalization
    HashedCrossing Hashing IntegerLookup MaxNumBoundingBoxes MelSpectrogram MixUp
    Pipeline RandAugment RandomBrightness RandomColorDegeneration RandomColorJitter
    RandomContrast RandomCrop RandomElasticTransform RandomErasing RandomFlip
    RandomGaussianBlur RandomGrayscale RandomHue RandomInvert RandomPerspective
    RandomPosterization RandomRotation RandomSaturation RandomSharpness RandomShear
    RandomTranslation RandomZoom Resizing STFTSpectrogram Solarization StringLookup
    TextVectorization: - # prepares data; what comes out has channels of its own
"""
"""Classes of `keras.layers`, their family of channels or `-`, the other columns.

A bare word is what the gradient needs, `"kernel"` where there is none, or a column that
holds. What follows `#` is the reason."""

_APPLICATIONS = """
LayerScale: layer_scale
CustomScaleLayer: combined
"""

_OPERATIONS = """
Relu: elementwise integer=rectifier estimate=activation homogeneous
Relu6: elementwise integer=rectifier estimate=activation
LeakyRelu: elementwise integer=activation estimate=activation homogeneous
HardSilu Sigmoid Silu Tanh: elementwise integer=activation estimate=activation
Absolute Cos Elu Exp Gelu HardSigmoid Log Rsqrt Selu Sin Softplus Softsign Sqrt
    Square: elementwise estimate=activation
Celu Clip HardShrink HardTanh LogSigmoid Reciprocal Sign SoftShrink SparsePlus
    Squareplus TanhShrink Threshold: elementwise
StopGradient: elementwise moves
Cast Negative: elementwise linear
Divide TrueDivide Maximum Minimum Where Greater GreaterEqual Less LessEqual Equal
    NotEqual LogicalAnd LogicalOr: combined
Power: combined estimate=activation
Multiply: combined integer=multiply
Subtract: combined linear
Add: added linear integer=add
Mean Sum: reduced linear
Max Min Prod Var Std Amax Amin Logsumexp: reduced
Softmax: over_axis joining estimate=activation
LogSoftmax: over_axis estimate=activation
Normalize: over_axis
Matmul: matmul kernel
Einsum: einsum kernel
Reshape: reshaped_by_an_operation linear moves
Concatenate: concatenated linear
Stack: stacked linear
Pad: padded linear integer=padding
Split: split linear
GetItem: indexed linear moves
Take: taken moves
Transpose: transposed linear moves
Moveaxis: axis_moved linear moves
Swapaxes: axes_swapped linear moves
ExpandDims: expanded linear moves
Flip: flipped linear moves
Tile: tiled moves
Squeeze: squeezed linear moves
Repeat: - linear moves
BroadcastTo MaxPool Ravel Roll: - moves
AssociativeScan Cond Conv ConvTranspose Correlate DepthwiseConv Dot DotProductAttention
    FFT FFT2 Inner Map Outer RFFT STFT Scan SeparableConv Tensordot Vdot VectorizedMap
    WhileLoop: - kernel
"""
"""Classes of operations such as `a + b`; `"cheap"` is what is said of no other."""


def _rows(package: str, table: str, residuals: str = "kernel") -> Iterator[LayerEntry]:
    for row in table.replace("\n    ", " ").strip().splitlines():
        definition, _, reason = row.partition(" # ")
        names, _, words = definition.partition(": ")
        family, *rest = words.split()
        columns: dict[str, Any] = {"channels": None if family == "-" else family}
        columns |= {"reason": reason or None, "residuals": residuals}
        for word in rest:
            column, _, value = word.partition("=")
            columns |= (
                {"residuals": word} if word in _NEEDS else {column: value or True}
            )
        for name in names.split():
            start, _, end = name.partition("[")
            digits, _, end = end.partition("]")
            for digit in digits or [""]:
                yield LayerEntry(name=f"{package}.{start}{digit}{end}", **columns)


_NEEDS = ("linear", "cheap", "joining", "kernel")

LAYERS = {
    entry.name: entry
    for rows in (
        _rows("layers", _LAYERS),
        _rows("applications", _APPLICATIONS),
        _rows("ops", _OPERATIONS, residuals="cheap"),
    )
    for entry in rows
}
"""Every class of `keras.layers`, and the operations of which something is known."""


_REGISTERED: WeakKeyDictionary[type, LayerEntry] = WeakKeyDictionary()


def kind(operation: Operation) -> str | None:
    """Return the name of a layer's or operation's entry: `"layers.Dense"`, `"ops.Add"`.

    None for a class of somebody else's that is not registered, a subclass of Keras's
    too: it may do more. A class of Keras's own has a name even if no row has it.
    """
    return _name_of(type(operation))


def entry_of(operation: Operation, *, subclasses: bool = False) -> LayerEntry:
    """Return what is known of a layer or operation; nothing, if no row has it.

    Args:
        operation: a layer or a `keras.Operation`.
        subclasses: whether the entry of the nearest base class will do, for what a
            subclass inherits, such as how the kernel lies.
    """
    bases = type(operation).__mro__ if subclasses else (type(operation),)
    entry = next(filter(None, map(_entry, bases)), None)
    if entry is None:
        is_layer = isinstance(operation, keras.layers.Layer)
        # A layer may do anything; an operation without a row is cheap to run again.
        entry = LayerEntry(
            name=kind(operation) or "", residuals="kernel" if is_layer else "cheap"
        )
    return entry


def class_name(operation: Operation) -> str:
    """Return the class name of an operation, of a registered one that of its entry."""
    entry = _REGISTERED.get(type(operation))
    return type(operation).__name__ if entry is None else entry.class_name


def register_layer(cls: type, like: type | None = None, **columns: Any) -> LayerEntry:
    """Say of a class of layers what the rooms of kerasmem are to know of it.

    A class that names its weights and arguments as one of Keras's does is `like` that
    one: its channels are pruned, its products computed with codes, its memory estimated
    as that one's are. What differs is said by the columns of `LayerEntry`.

    Args:
        cls: a class of layers, not one of Keras's own.
        like: the class of Keras, or a registered one, that computes in the same way;
            None for one that only the columns tell of.
        columns: fields of `LayerEntry` that differ.

    Returns:
        The entry.

    Raises:
        ConfigError: if `cls` is no class of layers, `like` is in no row, or a column is
            not known.

    Example:
        >>> class Halved(keras.layers.Layer):
        ...     def call(self, x):
        ...         return x / 2
        >>> register_layer(Halved, channels="elementwise", residuals="linear").moves
        False
    """
    column_names = [field.name for field in fields(LayerEntry) if field.name != "name"]
    if not issubclass(cls, keras.layers.Layer) or not set(columns) <= set(column_names):
        raise ConfigError(
            "A class of layers is registered with columns of the layer table. "
            f"Expected: some of {', '.join(column_names)}. Received: "
            f"cls={as_received(cls)}, columns {', '.join(columns)}."
        )
    base = LayerEntry(name=f"{cls.__module__}.{cls.__name__}") if like is None else None
    base = base or _entry(like)
    if base is None:
        raise ConfigError(
            "A layer is registered like one that the layer table has. Received: "
            f"like={as_received(like)}. Next: leave `like` out, and say the columns."
        )
    _REGISTERED[cls] = replace(base, **columns)
    return _REGISTERED[cls]


def _entry(cls: Any) -> LayerEntry | None:
    return _REGISTERED.get(cls) or LAYERS.get(_name_of(cls) or "")


def _name_of(cls: type) -> str | None:
    entry = _REGISTERED.get(cls)
    if entry is not None:
        return entry.name
    # By name: Keras exports neither the classes of its operations nor the layers that
    # some of its applications bring along.
    home, _, rest = cls.__module__.partition("keras.src.")
    if home or not rest:
        return None
    return f"{rest.partition('.')[0]}.{cls.__name__}"


def class_names(estimate: str) -> tuple[str, ...]:
    """Return the class names of the entries that one rule estimates the memory of."""
    names = (e.class_name for e in LAYERS.values() if e.estimate == estimate)
    return tuple(dict.fromkeys(names))
