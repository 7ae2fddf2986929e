"""What TensorFlow's kernels do with memory: whose buffer they take, what they need.

The scratch memory of a GPU was read in recorded steps of a small convolution net and
of a transformer (TensorFlow 2.21, H200).
"""

from collections.abc import Callable, Sequence

from kerasmem.backends.trace import Operation, OperationOutput
from kerasmem.memory.estimate import scratch

NOT_ALLOCATING = frozenset({"Const", "NoOp", "Placeholder", "VarHandleOp", "_Arg"})
"""Kinds whose outputs are there before the step, or weigh nothing."""

SHARING = frozenset({
    "EnsureShape", "ExpandDims", "Identity", "IdentityN", "PreventGradient", "Reshape",
    "Snapshot", "Squeeze", "StopGradient",
})  # fmt: skip
"""Kinds whose outputs are their inputs."""

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
}
_FLOAT = 4
CONVOLUTIONS = {
    "Conv2D": (0, 1, (0, 1), 0),
    "_FusedConv2D": (0, 1, (0, 1), 0),
    "Conv2DBackpropInput": (-1, 1, (1, 2), 1),
    "Conv2DBackpropFilter": (0, -1, (0, 2), scratch.SPLITS),
}
"""Kinds for which cuDNN tries several algorithms in the first step. Their values: the
places of the image, the kernel and the operands among an operation's inputs, -1
being its result; how often that is in scratch space, where cuDNN copies the operands to
channels last: before it is turned back, or in partial sums."""


def writes_over(operation: Operation) -> Sequence[int]:
    """Return the numbers of the inputs that may become the first output.

    They may where nobody else needs them any more and the sizes agree.
    """
    if operation.kind == "AddN":
        return range(len(operation.inputs))
    return _WRITES_OVER.get(operation.kind, ())


def output_bytes(
    operation: Operation, number: int, inputs: Sequence[OperationOutput]
) -> int:
    """Return the bytes of an output, also of one that only its kernel can size."""
    output = operation.outputs[number]
    if not operation.kind.startswith("CudnnRNN") or output.shape is not None:
        return output.nbytes
    reserve = scratch.RNN_KEPT[_rnn_kind(operation)] * _rnn_sequence(inputs) * _FLOAT
    return reserve if number == 3 else 0


def scratch_bytes(
    operation: Operation, inputs: Sequence[OperationOutput], device: str = "gpu"
) -> list[int]:
    """Return the sizes of what the kernel takes while it runs.

    Args:
        operation: the operation.
        inputs: the tensors that it takes.
        device: `"gpu"` or `"cpu"`.
    """
    if device == "cpu":
        return _unrolled(operation, inputs)
    if operation.kind.startswith("CudnnRNN"):
        # In float32 whatever goes in; of several lengths, which Keras lets it see.
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
    """Return the turned kernel, the turned image if it is made, and cuDNN's own space.

    Its tensor core kernels need channels last, and copy images with channels first;
    those for few channels do not.
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
    # The largest logit and the sum, both stored once per entry, in float32.
    return [operation.outputs[0].entries * 4] * 2


def _einsum(operation: Operation, inputs: Sequence[OperationOutput]) -> list[int]:
    """Return the transposed operands and the product, where it is not the output yet.

    TensorFlow orders axes as batch, free, contracted (or contracted, free), each by
    label, and multiplies matrices.
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
