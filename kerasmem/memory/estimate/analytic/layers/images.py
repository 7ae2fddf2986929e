"""Random image layers, which change images only during training.

The scratch space was determined from traces of steps on a CPU. XLA's warps have no rule
yet: on a CPU they take 37 times the images.
"""

from kerasmem.graph.layer_table import class_name
from kerasmem.memory.estimate.analytic import primitives as p
from kerasmem.memory.estimate.analytic.layers import common
from kerasmem.memory.estimate.analytic.tape import Site, Tape
from kerasmem.memory.program import ProgramTensor

_TORCH_SCRATCH = {"RandomContrast": 1}
_TORCH_WARP = 7
"""Scratch space in torch relative to the images: of some layers, and of a warp."""


def flip(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """RandomFlip: a flipped copy and a selection for each axis."""
    x = common.cast(t, s, xs)
    if not t.training:
        return x
    for _ in s.layer.mode.split("_and_"):
        mirror = p.copy(t, x, s.shape, "flip")
        x = p.pointwise(t, "select", mirror, x, needs=((), ()))
    return x


def change(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """Layers with one new image per image."""
    x = common.cast(t, s, xs)
    if not t.training and x.shape == s.shape:
        return x
    return p.copy(t, x, s.shape, "change")


def torch_change(t: Tape, s: Site, xs: list[ProgramTensor]) -> ProgramTensor:
    """RandomContrast and warps in torch: Keras computes the coordinates of warps."""
    x = common.cast(t, s, xs)
    if not t.training:
        return x
    y = t.new(s.shape, x.width, layout=x.layout)
    space = _TORCH_SCRATCH.get(class_name(s.layer), _TORCH_WARP) * y.nbytes
    return p.single(t, "change", (x,), y, workspace=space, space=space)
