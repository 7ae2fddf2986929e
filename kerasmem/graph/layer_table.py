"""Table of the layers and operations of Keras.

Each row contains all properties of a class: channel family, kernel layout, residuals,
int8 form and memory estimate. The values refer to functions in other modules. To
support a new layer, add a row or call `kerasmem.graph.layer_table.register_layer`.
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
    """Properties of a class of layers or operations.

    Args:
        name: Package and class, such as `"layers.Dense"` or `"ops.Add"`.
        channels: Channel family, a key of `kerasmem.graph.channels.walk.FAMILIES`. None
            keeps all channels. Defaults to `None`.
        kernel: Kernel layout: `"dense"`, `"einsum"`, `"convolution"`, `"transposed"`,
            `"depthwise"`, `"separable"`, `"embedding"` or None. Defaults to `None`.
        residuals: Tensors that the gradient needs: `"linear"`, `"cheap"`, `"joining"`
            or `"kernel"`. See `Role` of `compress_activations`. Defaults to `"kernel"`.
        integer: Form in int8, a key of `KINDS` in `quantize/static`. None stays in
            float. Defaults to `None`.
        estimate: Name of a memory estimation rule shared by several classes. By
            default, the analytic estimate uses the class name.
        homogeneous: Whether `f(s * x) == s * f(x)` for positive scales `s` per channel.
            Defaults to `False`.
        identity: Whether the output equals the input in inference. Defaults to `False`.
        moves: Whether the operation only moves or removes values, so that int8 codes
            are preserved. Defaults to `False`.
        reason: Why channels cannot be removed, if `channels` is None.
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
        """Name of the class without the package."""
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
AdaptiveAveragePooling[123]D: spatial linear homogeneous
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
InputLayer: - # defines the channels of the model's inputs
ReversibleEmbedding: - # its table is also the kernel of the output layer
AdditiveAttention: - # adds queries to keys and sums over both
SpectralNormalization: - # divides by the norm of the whole kernel
Wrapper RNN Layer: - # is a base class of other layers
GRUCell LSTMCell SimpleRNNCell StackedRNNCells: - # is handled as part of its RNN layer
AdaptiveMaxPooling[123]D: - # uses windows of different sizes
ConvLSTM[123]D: - # has no channel labels for its gates yet
Lambda TFSMLayer FlaxLayer JaxLayer TorchModuleWrapper: - # runs code that cannot be
    analyzed
AugMix AutoContrast CategoryEncoding CenterCrop
    ContrastLimitedAdaptiveHistogramEqualization CutMix Discretization Equalization
    HashedCrossing Hashing IntegerLookup MaxNumBoundingBoxes MelSpectrogram MixUp
    Pipeline RandAugment RandomBrightness RandomColorDegeneration RandomColorJitter
    RandomContrast RandomCrop RandomElasticTransform RandomErasing RandomFlip
    RandomGaussianBlur RandomGrayscale RandomHue RandomInvert RandomPerspective
    RandomPosterization RandomRotation RandomSaturation RandomSharpness RandomShear
    RandomTranslation RandomZoom Resizing STFTSpectrogram Solarization StringLookup
    TextVectorization: - # preprocesses data and has no removable channels
"""
"""Rows of `keras.layers`: class names, channel family or `-`, and other columns.

A word without `=` is a value of `residuals` (default `"kernel"`) or a column that is
true. The text after `#` is the reason.
"""

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
"""Rows of operations such as `a + b`. The default of `residuals` is `"cheap"`."""


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
"""All classes of `keras.layers`, and the supported operations."""


_REGISTERED: WeakKeyDictionary[type, LayerEntry] = WeakKeyDictionary()


def kind(operation: Operation) -> str | None:
    """Returns the name of an entry, such as `"layers.Dense"` or `"ops.Add"`.

    Returns None for custom classes that are not registered, including subclasses of
    Keras layers. A Keras class has a name even without a row.
    """
    return _name_of(type(operation))


def entry_of(operation: Operation, *, subclasses: bool = False) -> LayerEntry:
    """Returns the properties of a layer or operation; defaults if there is no row.

    Args:
        operation: A layer or a `keras.Operation`.
        subclasses: Whether to use the entry of the nearest base class, for inherited
            properties such as the kernel layout. Defaults to `False`.
    """
    bases = type(operation).__mro__ if subclasses else (type(operation),)
    entry = next(filter(None, map(_entry, bases)), None)
    if entry is None:
        is_layer = isinstance(operation, keras.layers.Layer)
        # An unknown layer can be expensive; operations without a row are cheap.
        entry = LayerEntry(
            name=kind(operation) or "", residuals="kernel" if is_layer else "cheap"
        )
    return entry


def class_name(operation: Operation) -> str:
    """Returns the class name in the entry of an operation, or its own class name."""
    entry = _REGISTERED.get(type(operation))
    return type(operation).__name__ if entry is None else entry.class_name


def register_layer(cls: type, like: type | None = None, **columns: Any) -> LayerEntry:
    """Registers the properties of a layer class.

    If the class names its weights and arguments as a Keras layer does, pass that layer
    as `like`. Channel pruning, quantized products and memory estimates then treat both
    classes equally. Other properties are set as columns of `LayerEntry`.

    Args:
        cls: A layer class that is not part of Keras.
        like: Keras class or registered class with the same computation. Defaults to
            `None`: only `columns` describe the class.
        columns: Fields of `LayerEntry` that differ.

    Returns:
        The entry.

    Raises:
        ConfigError: If `cls` is not a layer class, `like` has no entry, or a column is
            unknown.

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
            "Invalid layer class or columns. "
            f"Expected: some of {', '.join(column_names)}. Received: "
            f"cls={as_received(cls)}, columns {', '.join(columns)}."
        )
    base = LayerEntry(name=f"{cls.__module__}.{cls.__name__}") if like is None else None
    base = base or _entry(like)
    if base is None:
        raise ConfigError(
            "Expected `like` to be a class in the layer table. Received: "
            f"like={as_received(like)}. Next: omit `like` and pass the columns."
        )
    _REGISTERED[cls] = replace(base, **columns)
    return _REGISTERED[cls]


def _entry(cls: Any) -> LayerEntry | None:
    return _REGISTERED.get(cls) or LAYERS.get(_name_of(cls) or "")


def _name_of(cls: type) -> str | None:
    entry = _REGISTERED.get(cls)
    if entry is not None:
        return entry.name
    # Compared by name, because Keras does not export the classes of its operations.
    home, _, rest = cls.__module__.partition("keras.src.")
    if home or not rest:
        return None
    return f"{rest.partition('.')[0]}.{cls.__name__}"


def class_names(estimate: str) -> tuple[str, ...]:
    """Returns the class names that share a memory estimation rule."""
    names = (e.class_name for e in LAYERS.values() if e.estimate == estimate)
    return tuple(dict.fromkeys(names))
