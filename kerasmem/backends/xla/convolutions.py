"""Axes of convolutions in HLO."""

from dataclasses import dataclass

from kerasmem.backends.protobuf import Message


@dataclass(frozen=True, slots=True)
class ConvolutionAxes:
    """Axis indices of the image, kernel and result of a convolution.

    A gradient has the axes of its forward convolution. `kernel_into` and `kernel_out`
    are the axes of the input and output channels.
    """

    image_space: tuple[int, ...]
    kernel_into: int
    kernel_out: int
    strides: tuple[int, ...]
    groups: int


def read_axes(instruction: Message) -> ConvolutionAxes | None:
    """Return the axes of a convolution, None for any other `HloInstructionProto`."""
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
