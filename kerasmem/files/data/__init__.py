"""Loads samples, checks them against a model, and prepares them for `fit`.

All functions accept the same data: `x`, `(x, y)`, `(x, y, sample_weight)`, a
`tf.data.Dataset`, a `keras.utils.PyDataset`, or another iterable of batches. `x` and
`y` are arrays, or dicts or lists of arrays for several inputs or outputs. An array is a
NumPy array, a tensor, a pandas object, or a sparse matrix of SciPy, TensorFlow or JAX.
"""

from kerasmem.files.data.check import (
    check_classes,
    check_data,
    check_labels,
    input_names,
    outputs_on,
    warn_if_not_finite,
)
from kerasmem.files.data.forms import (
    drawn_batches,
    few_inputs,
    first_samples,
    fit_arguments,
    hold_out,
    in_fixed_batches,
    input_batches,
    is_array_data,
    named_leaves,
    sample_count,
    sample_inputs,
    take,
)
from kerasmem.files.data.source import (
    LoadedData,
    check_ends,
    check_shared,
    load_data,
    shared,
)
from kerasmem.files.data.whole import needed_batch, whole_batch
