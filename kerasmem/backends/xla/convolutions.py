"""What the axes of a convolution are, read from HLO."""

from dataclasses import dataclass

from kerasmem.backends.protobuf import Message


@dataclass(frozen=True, slots=True)
class ConvolutionAxes:
    """The axes of a convolution's image, kernel and result, as numbers from 0.

    A gradient is described by the convolution that it is the gradient of.

    Args:
        image_space: those of the image along which the kernel moves.
        kernel_into: that of the kernel's channels that are read.
        kernel_out: that of the kernel's channels that are made.
        strides: of the kernel, for each axis of `image_space`.
        groups: so many groups of channels are convolved each for itself.
    """

    image_space: tuple[int, ...]
    kernel_into: int
    kernel_out: int
    strides: tuple[int, ...]
    groups: int


def read_axes(instruction: Message) -> ConvolutionAxes | None:
    """Return the axes of a convolution, None of any other `HloInstructionProto`."""
    if not instruction.all(16):
        return None
    axes = Message(instruction.last(16))
    window = map(Message, Message(instruction.last(15)).all(1))
    return ConvolutionAxes(
        image_space=axes.numbers(11),
        kernel_into=axes.number(3),
        kernel_out=axes.number(4),
        strides=tuple(one.number(2) for one in window),
        groups=max(1, instruction.number(50)),
    )
