"""A model whose kernels are each the nearest of lower rank, by NumPy alone."""

import numpy as np
from keras import layers

from kerasmem.graph.clone import clone
from kerasmem.graph.kernels import einsum_parts
from kerasmem.graph.layers import sublayers
from kerasmem.graph.values import to_numpy


def nearest(matrix, ratio):
    """Return the nearest matrix of so much of the full rank, and that rank."""
    left, sizes, right = np.linalg.svd(matrix.astype("float64"), full_matrices=False)
    rank = max(1, round(ratio * len(sizes)))
    return (left[:, :rank] * sizes[:rank]) @ right[:rank], rank


def truncated(layer, ratio):
    """Return a kernel of low rank by NumPy alone, and how many entries factors have."""
    kernel = to_numpy(layer.kernel)
    if isinstance(layer, layers.EinsumDense):
        _, letters, output = einsum_parts(layer.equation)
        order = [letters.index(c) for c in letters if c not in output]
        split = len(order)
        order += [n for n, c in enumerate(letters) if c in output]
    elif isinstance(layer, layers.Conv2D):  # rows, then columns
        order, split = [0, 2, 1, 3], 2
    else:
        order, split = list(range(kernel.ndim)), kernel.ndim - 1
    moved = np.transpose(kernel, order)
    rows = int(np.prod(moved.shape[:split]))
    matrix, rank = nearest(moved.reshape(rows, -1), ratio)
    back = np.transpose(matrix.reshape(moved.shape), np.argsort(order))
    return back, rank * (rows + kernel.size // rows)


def low_rank(model, ratio):
    """Return a copy with every product's kernel truncated, and its factors' entries."""
    made, size = clone(model), 0
    for layer in sublayers(made):
        kinds = (layers.Dense, layers.EinsumDense, layers.Conv1D, layers.Conv2D)
        if isinstance(layer, kinds):
            value, entries = truncated(layer, ratio)
            if entries < value.size:
                layer.kernel.assign(value)
                size += entries - value.size
    return made, model.count_params() + size
