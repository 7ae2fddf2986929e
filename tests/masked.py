"""The original without what a smaller model lacks, found by comparing weights."""

import keras
import numpy as np

from kerasmem.graph.values import to_numpy


def randomized(model, seed=0):
    """Give every float weight of a model other numbers, so that none equals another."""
    random = np.random.default_rng(seed)
    for weight in model.weights:
        if "float" in weight.dtype:
            noise = 0.2 * random.normal(size=weight.shape)
            weight.assign(to_numpy(weight) + noise.astype(weight.dtype))
    return model


def kept_places(old, new):
    """Return for each axis which places of an old weight's value the new one has.

    Args:
        old: array of any shape.
        new: array of the same rank, of which each slice is one of the old.
    """
    places = []
    for axis, size in enumerate(new.shape):
        if old.shape[axis] == size:
            places.append(np.arange(size))
            continue
        # Sums do not tell slices apart that lost something along another axis.
        assert sum(a != b for a, b in zip(old.shape, new.shape, strict=True)) == 1
        rows = [np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1) for x in (old, new)]
        same = (rows[1][:, None] == rows[0][None]).all(-1)
        assert same.sum(1).tolist() == [1] * size, "a slice is none of the old ones"
        places.append(same.argmax(1))
        assert (np.diff(places[-1]) > 0).all(), "the order has changed"
    return places


def masked(model, smaller, copy):
    """Return `copy`, a copy of `model`, with zeros where `smaller` has nothing."""
    for old, new, out in zip(model.weights, smaller.weights, copy.weights, strict=True):
        assert old.name == new.name
        value = to_numpy(old)
        places = np.ix_(*kept_places(value, to_numpy(new)))
        zeros = np.zeros_like(value)
        zeros[places] = value[places]
        out.assign(zeros)
    return copy


def called(model, x):
    """Return a model's outputs on samples, flat."""
    tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, x)
    return [to_numpy(y) for y in keras.tree.flatten(model(tensors, training=False))]
