"""What TensorFlow's kernels do with memory: whose buffer they take, what they need.

The scratch memory of a GPU was read in recorded steps of a small convolution net and
of a transformer (TensorFlow 2.21, H200).
"""

from collections.abc import Callable, Sequence

from kerasmem.backends.trace import Operation, Output
from kerasmem.memory.estimate.unrolled import unrolled_bytes

NOT_ALLOCATING = frozenset({"Const", "NoOp", "Placeholder", "VarHandleOp", "_Arg"})
"""Kinds whose outputs are there before the step, or weigh nothing."""

SHARING = frozenset(
    {
        "EnsureShape", "ExpandDims", "Identity", "IdentityN", "PreventGradient",
        "Reshape", "Snapshot", "Squeeze", "StopGradient",
    }
)  # fmt: skip
"""Kinds whose outputs are their inputs."""

_ONE_INPUT = (
    "Abs", "BiasAdd", "Cast", "Ceil", "Cos", "Elu", "Erf", "Erfc", "Exp", "Expm1",
    "Floor", "Inv", "LeakyRelu", "Log", "Log1p", "LogSoftmax", "Neg", "Reciprocal",
    "Relu", "Relu6", "Round", "Rsqrt", "Selu", "Sigmoid", "Sign", "Sin", "Softmax",
    "Softplus", "Softsign", "Sqrt", "Square", "Tanh",
)  # fmt: skip
_TWO_INPUTS = (
    "Add", "AddV2", "Div", "DivNoNan", "EluGrad", "FloorDiv", "InvGrad",
    "LeakyReluGrad", "Maximum", "Minimum", "Mul", "MulNoNan", "Pow", "RealDiv",
    "ReciprocalGrad", "Relu6Grad", "ReluGrad", "RsqrtGrad", "SeluGrad",
    "SigmoidGrad", "SoftplusGrad", "SqrtGrad", "SquaredDifference", "Sub",
    "TanhGrad",
)  # fmt: skip
_WRITES_OVER: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(_ONE_INPUT, (0,)),
    **dict.fromkeys(_TWO_INPUTS, (0, 1)),
    "Select": (1, 2),
    "SelectV2": (1, 2),
}
_FLOAT = 4
_FEW_CHANNELS = 4
_SPLITS = 15
_RNN_GATES = {"lstm": 4, "gru": 3}
_RNN_KEPT = {"lstm": 5, "gru": 6}
"""What cuDNN keeps for the gradient, in numbers per sample, time and unit: of an LSTM
the gates and the cell. Its own answers for a net of four layers, in PyTorch's issue
2895, come to these."""


def writes_over(operation: Operation) -> Sequence[int]:
    """Return the numbers of the inputs that may become the first output.

    They may where nobody else needs them any more and the sizes agree.
    """
    if operation.kind == "AddN":
        return range(len(operation.inputs))
    return _WRITES_OVER.get(operation.kind, ())


def output_bytes(operation: Operation, number: int, inputs: Sequence[Output]) -> int:
    """Return the bytes of an output, also of one that only its kernel can size."""
    if (
        operation.kind.startswith("CudnnRNN")
        and operation.outputs[number].shape is None
    ):
        return _rnn_reserve(operation, inputs) if number == 3 else 0
    return operation.outputs[number].nbytes


def scratch_bytes(
    operation: Operation, inputs: Sequence[Output], device: str = "gpu"
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
        return [_rnn_scratch(operation, inputs)]
    rule = _SCRATCH.get(operation.kind)
    return [size for size in rule(operation, inputs) if size] if rule else []


def _unrolled(operation: Operation, inputs: Sequence[Output]) -> list[int]:
    if operation.kind == "Conv2DBackpropFilter":
        gradient, kernel = inputs[2], operation.outputs[0]
        place = 0
    elif operation.kind == "Conv2DBackpropInput":
        gradient, kernel = inputs[2], inputs[1]
        place = 1
    else:
        return []
    if not gradient.shape or not kernel.shape:
        return []
    batch, *image = gradient.shape
    size = unrolled_bytes(image, kernel.shape, batch, gradient.itemsize)[place]
    return [size] if size else []


def _rnn_reserve(operation: Operation, inputs: Sequence[Output]) -> int:
    return _RNN_KEPT[_rnn_mode(operation)] * _rnn_sequence(inputs)


def _rnn_scratch(operation: Operation, inputs: Sequence[Output]) -> int:
    """Return what cuDNN takes for samples of several lengths, which Keras lets it see.

    The input and the output packed, every gate's product with the input, and the
    weights twice, in float32 whatever goes in.
    """
    gates = _RNN_GATES[_rnn_mode(operation)]
    taken, weights = inputs[0].entries, inputs[3].entries
    return (gates + 1) * _rnn_sequence(inputs) + (taken + 2 * weights) * _FLOAT


def _rnn_mode(operation: Operation) -> str:
    mode = operation.attributes.get("rnn_mode", "lstm")
    return mode if mode in _RNN_GATES else "lstm"


def _rnn_sequence(inputs: Sequence[Output]) -> int:
    """Return the bytes of one float32 per sample, time step and unit."""
    sequence, state = inputs[0].shape or (0, 0), inputs[1].shape or (0,)
    return sequence[0] * sequence[1] * state[-1] * _FLOAT


def _softmax(operation: Operation, _: Sequence[Output]) -> list[int]:
    # The largest logit and the sum, both stored once per entry, in float32.
    return [operation.outputs[0].entries * 4] * 2


def _forward(operation: Operation, inputs: Sequence[Output]) -> list[int]:
    image, kernel = inputs[0], inputs[1]
    if not _is_transposed_inside(operation, image):
        return [kernel.nbytes]
    return [kernel.nbytes, image.nbytes + kernel.nbytes]


def _to_input(operation: Operation, inputs: Sequence[Output]) -> list[int]:
    kernel, gradient, image = inputs[1], inputs[2], operation.outputs[0]
    made = [kernel.nbytes, image.nbytes]
    if not _is_transposed_inside(operation, image):
        return made
    return [*made, gradient.nbytes + image.nbytes + kernel.nbytes]


def _to_kernel(operation: Operation, inputs: Sequence[Output]) -> list[int]:
    image, gradient, kernel = inputs[0], inputs[2], operation.outputs[0]
    if not _is_transposed_inside(operation, image):
        return [kernel.nbytes]
    partial_sums = _SPLITS * kernel.nbytes
    return [kernel.nbytes, image.nbytes + gradient.nbytes + partial_sums]


def _is_transposed_inside(operation: Operation, image: Output) -> bool:
    """Return whether cuDNN copies images with channels first to channels last.

    Its tensor core kernels need channels last; those for few channels do not use them.
    """
    if operation.attributes.get("data_format") != "NCHW" or not image.shape:
        return False
    return image.shape[1] > _FEW_CHANNELS


def _einsum(operation: Operation, inputs: Sequence[Output]) -> list[int]:
    """Return the transposed operands and the product, where it is not the output yet.

    TensorFlow orders axes as batch, free, contracted (or contracted, free), each by
    label, and multiplies matrices.
    """
    taken, result = operation.attributes["equation"].split("->")
    labels = taken.split(",")
    if len(labels) != 2:
        return []
    left, right = labels
    batch = sorted(set(left) & set(right) & set(result))
    contracted = sorted((set(left) & set(right)) - set(result))
    free = [sorted(set(left) - set(right)), sorted(set(right) - set(left))]
    sizes = []
    for label, own, tensor in zip(labels, free, inputs, strict=True):
        if list(label) not in (
            [*batch, *own, *contracted],
            [*batch, *contracted, *own],
        ):
            sizes.append(tensor.nbytes)
    if list(result) != [*batch, *free[0], *free[1]]:
        sizes.append(operation.outputs[0].nbytes)
    return sizes


_Rule = Callable[[Operation, Sequence[Output]], list[int]]
_SCRATCH: dict[str, _Rule] = {
    "Conv2D": _forward,
    "Conv2DBackpropFilter": _to_kernel,
    "Conv2DBackpropInput": _to_input,
    "Einsum": _einsum,
    "Softmax": _softmax,
    "_FusedConv2D": _forward,
}
CONVOLUTIONS = frozenset(
    {"Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput", "_FusedConv2D"}
)
"""Kinds for which cuDNN tries several algorithms in the first step."""
