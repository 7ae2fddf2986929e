"""Static ranges for products inside layers, for models without a graph of layers.

Each product rounds its inputs to a calibrated range and multiplies integers. Its
outputs are float.

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2018.
"""

from kerasmem.backends.patching import LayerCall
from kerasmem.compression.account import matches
from kerasmem.compression.quantize.activations import Observer
from kerasmem.compression.quantize.apply import ActivationScales
from kerasmem.compression.quantize.config import Calibration, Quantize
from kerasmem.compression.quantize.math import LIMIT
from kerasmem.compression.quantize.products import is_product
from kerasmem.compression.quantize.static.apply import check_has_ranges
from kerasmem.files.data import check_data, input_batches
from kerasmem.graph.layers import weights
from kerasmem.graph.observe import observe
from kerasmem.types import Dataset, Model


def activation_scales(
    model: Model, config: Quantize, data: Dataset
) -> ActivationScales:
    """Return the input scale of each product that the samples reach.

    Raises:
        ConfigError: If there are no samples.
        DataError: If the samples do not fit the model, or a value is not finite.
    """
    check_has_ranges(config, data, {})
    check_data(model, data)
    calibration = config.calibration or Calibration()
    kernels = {
        id(weight.owner): weight
        for weight in weights(model)
        if weight.attribute == "_kernel"
        and is_product(weight.owner)
        and not matches(config.exclude, weight)
    }
    observers: dict[int, Observer] = {}

    def see(call: LayerCall) -> None:
        weight = kernels[id(call.layer)]
        observer = observers.setdefault(id(weight.variable), Observer(calibration))
        observer.add(weight.path, call.x)

    batches = input_batches(data, calibration.samples, calibration.batch_size)
    owners = [weight.owner for weight in kernels.values()]
    observe(model, batches, owners, inputs=see)
    ends = {key: observer.range("") for key, observer in observers.items()}
    largest = {key: max(-each.low, each.high) for key, each in ends.items()}
    return {key: (most or 1.0) / LIMIT for key, most in largest.items()}
