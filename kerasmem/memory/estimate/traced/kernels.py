"""Memory use of TensorFlow kernels: buffer reuse and scratch space.

The scratch space on a GPU was determined from recorded steps of a small convolutional
network and of a transformer (TensorFlow 2.21, H200).
"""

from collections.abc import Callable, Sequence

from kerasmem.backends.trace import Operation, OperationOutput
from kerasmem.memory.estimate import scratch

NOT_ALLOCATING = frozenset({"Const", "NoOp", "Placeholder", "VarHandleOp", "_Arg"})
"""Operation types whose outputs exist before the step or have no size."""

SHARING = frozenset({
    "Bitcast", "EnsureShape", "ExpandDims", "Identity", "IdentityN", "PreventGradient",
    "Reshape", "Snapshot", "Squeeze", "StopGradient",
})  # fmt: skip
"""Operation types whose outputs share the memory of their inputs."""

_ONE_INPUT = (
    "Abs BiasAdd Cast Ceil Cos Elu Erf Erfc Exp Expm1 Floor Inv LeakyRelu Log Log1p "
    "LogSoftmax Neg Reciprocal Relu Relu6 Round Rsqrt Selu Sigmoid Sign Sin Softmax "
    "Softplus Softsign Sqrt Square Tanh"
)
_TWO_INPUTS = (
    "Add AddV2 Div DivNoNan EluGrad FloorDiv InvGrad LeakyReluGrad Maximum Minimum Mul "
    "MulNoNan Pow RealDiv ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad "
    "SigmoidGrad SoftplusGrad SqrtGrad SquaredDifference Sub TanhGrad"
)
_WRITES_OVER: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(_ONE_INPUT.split(), (0,)),
    **dict.fromkeys(_TWO_INPUTS.split(), (0, 1)),
    **dict.fromkeys(["Select", "SelectV2"], (1, 2)),
    # The gradient reuses the logits.
    "SoftmaxCrossEntropyWithLogits": (0,),
    "SparseSoftmaxCrossEntropyWithLogits": (0,),
}
_FLOAT = 4
CONVOLUTIONS = {
    "Conv2D": (0, 1, (0, 1), 0),
    "_FusedConv2D": (0, 1, (0, 1), 0),
    "Conv2DBackpropInput": (-1, 1, (1, 2), 1),
    "Conv2DBackpropFilter": (0, -1, (0, 2), scratch.SPLITS),
}
"""Operation types for which cuDNN autotunes in the first step. The values are the input
indices of the image, the kernel and the operands, or -1 for the output. The last value
is the number of output copies in scratch space. cuDNN copies the output to convert from
channels last, or for partial sums."""


def writes_over(operation: Operation) -> Sequence[int]:
    """Return the indices of inputs whose memory the first output may reuse.

    Reuse requires equal sizes and no later reader of the input.
    """
    if operation.kind == "AddN":
        return range(len(operation.inputs))
    return _WRITES_OVER.get(operation.kind, ())


def output_bytes(
    operation: Operation, number: int, inputs: Sequence[OperationOutput]
) -> int:
    """Return the bytes of an output, including outputs sized by their kernel."""
    output = operation.outputs[number]
    if not operation.kind.startswith("CudnnRNN") or output.shape is not None:
        return output.nbytes
    reserve = scratch.RNN_KEPT[_rnn_kind(operation)] * _rnn_sequence(inputs) * _FLOAT
    return reserve if number == 3 else 0


def scratch_bytes(
    operation: Operation, inputs: Sequence[OperationOutput], device: str = "gpu"
) -> list[int]:
    """Return the sizes of the kernel's scratch buffers."""
    if device == "cpu":
        return _unrolled(operation, inputs)
    if operation.kind.startswith("CudnnRNN"):
        # cuDNN computes in float32 and supports sequences of different lengths.
        state, kind = _rnn_sequence(inputs), _rnn_kind(operation)
        inputs_size, weights = inputs[0].entries, inputs[3].entries
        return [scratch.rnn_entries(kind, state, inputs_size, weights) * _FLOAT]
    rule = _SCRATCH.get(operation.kind)
    return [size for size in rule(operation, inputs) if size] if rule else []


def _unrolled(operation: Operation, inputs: Sequence[OperationOutput]) -> list[int]:
    image_at, kernel_at, *_ = CONVOLUTIONS.get(operation.kind, (0, 1))
    if (image_at, kernel_at) == (0, 1):
        return []
    gradient, kernel = inputs[2], (*inputs, operation.outputs[0])[kernel_at]
    if not gradient.shape or not kernel.shape:
        return []
    batch, *image = gradient.shape
    sizes = scratch.unrolled_bytes(image, kernel.shape, batch, gradient.itemsize)
    return [size for size in [sizes[image_at == -1]] if size]


def _rnn_kind(operation: Operation) -> str:
    mode = str(operation.attributes.get("rnn_mode", "lstm")).upper()
    return mode if mode in scratch.RNN_GATES else "LSTM"


def _rnn_sequence(inputs: Sequence[OperationOutput]) -> int:
    sequence, state = inputs[0].shape or (0, 0), inputs[1].shape or (0,)
    return sequence[0] * sequence[1] * state[-1]


def _convolution(operation: Operation, inputs: Sequence[OperationOutput]) -> list[int]:
    """Return the sizes of the transposed kernel and image, and cuDNN's own space.

    Tensor core kernels need channels last and copy channels-first images. Kernels for
    few channels do not.
    """
    image_at, kernel_at, read, results = CONVOLUTIONS[operation.kind]
    result = operation.outputs[0]
    image, kernel = ((*inputs, result)[place] for place in (image_at, kernel_at))
    sizes = [kernel.nbytes, *([image.nbytes] if image_at == -1 else [])]
    is_first = operation.attributes.get("data_format") == "NCHW"
    if is_first and image.shape and image.shape[1] > scratch.FEW_CHANNELS:
        operands = sum(inputs[place].nbytes for place in read)
        sizes.append(operands + results * result.nbytes)
    return sizes


def _softmax(operation: Operation, _: Sequence[OperationOutput]) -> list[int]:
    # The maximum logit and the sum, each in float32 and repeated for every entry.
    return [operation.outputs[0].entries * 4] * 2


def _einsum(operation: Operation, inputs: Sequence[OperationOutput]) -> list[int]:
    """Return the sizes of transposed operands and of a transposed product.

    TensorFlow orders axes as batch, free, contracted (or contracted, free), each group
    sorted by label, and multiplies matrices.
    """
    operands, result = operation.attributes["equation"].split("->")
    labels = operands.split(",")
    if len(labels) != 2:
        return []
    left, right = labels
    batch = sorted(set(left) & set(right) & set(result))
    summed_letters = sorted((set(left) & set(right)) - set(result))
    free = [sorted(set(left) - set(right)), sorted(set(right) - set(left))]
    sizes = []
    for label, own, tensor in zip(labels, free, inputs, strict=True):
        if list(label) not in (
            [*batch, *own, *summed_letters],
            [*batch, *summed_letters, *own],
        ):
            sizes.append(tensor.nbytes)
    if list(result) != [*batch, *free[0], *free[1]]:
        sizes.append(operation.outputs[0].nbytes)
    return sizes


_Rule = Callable[[Operation, Sequence[OperationOutput]], list[int]]
_SCRATCH: dict[str, _Rule] = {
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    "Einsum": _einsum,
    "Softmax": _softmax,
}
