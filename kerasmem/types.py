"""Type aliases for Keras objects and user data.

Type checkers see Keras as untyped. The names document the expected type.
"""

from typing import Any, TypeAlias

import keras

Model: TypeAlias = keras.Model
Layer: TypeAlias = keras.Layer
Variable: TypeAlias = keras.Variable
Optimizer: TypeAlias = keras.optimizers.Optimizer
Operation: TypeAlias = keras.Operation

Tensor: TypeAlias = Any
"""A tensor of the backend, a `keras.KerasTensor` or a NumPy array."""

Tensors: TypeAlias = Any
"""A tensor, or a list, tuple or dict of tensors."""

Dataset: TypeAlias = Any
"""Data for `keras.Model.fit`: arrays, a `tf.data.Dataset` or a `PyDataset`."""

Node: TypeAlias = Any
"""A node of the Keras graph, `keras.src.ops.node.Node`: one call of an operation."""

Logs: TypeAlias = dict[str, Any] | None
"""Logs passed to callbacks: figures by name."""
