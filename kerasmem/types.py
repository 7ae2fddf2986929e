"""Types of Keras and of user data, for annotations.

Type checkers read Keras without types, so these names tell a reader what is expected.
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
"""What `keras.Model.fit` takes: arrays, a `tf.data.Dataset` or a `PyDataset`."""

Node: TypeAlias = Any
"""A node of Keras's graph, `keras.src.ops.node.Node`: one call of an operation."""

Logs: TypeAlias = dict[str, Any] | None
"""Figures by name that Keras hands to callbacks."""
