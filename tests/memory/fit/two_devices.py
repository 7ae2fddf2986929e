"""The same training on two devices, whole and in four parts; prints what differs.

python -m tests.memory.fit.two_devices
"""

import json
import sys
import warnings

import keras
import numpy as np

from kerasmem.memory.fit import fit, training
from kerasmem.memory.fit.parts import MicroBatches
from tests.memory.fit.test_micro_batches import data, dense, masked, tokens, weights
from tests.two_devices import two_devices


def differences(make, arguments):
    """Return how far weights are from those of whole batches, at most."""
    arguments = arguments | {"batch_size": 32, "epochs": 2}
    arguments |= {"shuffle": False, "verbose": 0}
    expected, found = make(), make()
    expected.fit(**arguments)
    fit(found, **arguments, memory_limit="1TiB")
    pairs = zip(weights(found), weights(expected), strict=True)
    return max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)


def model_parallel():
    """Return what `differences` does, and how variables and their sums are laid out."""
    mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "model"))
    layouts = keras.distribution.LayoutMap(mesh)
    layouts[".*dense.*kernel"] = ("model", None)
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    )
    run, specs = MicroBatches.run, []

    def noting(micro, state, batch, count):
        logs, state = run(micro, state, batch, count)
        own = zip(micro._model.optimizer.variables, state[2], strict=True)
        sums = [array for v, array in own if "kerasmem_gradient_sum" in v.path]
        for array, total in zip(state[0], sums, strict=True):
            specs.append((str(array.sharding.spec), str(total.sharding.spec)))
        return logs, state

    MicroBatches.run = noting
    return {"model": differences(dense, data()), "specs": sorted(set(specs))}


def main():
    training.micro_batches = lambda *_, **__: 4
    warnings.simplefilter("ignore")
    with two_devices()():
        answer = {"data": differences(masked, tokens())}
    if keras.backend.backend() == "jax":
        answer |= model_parallel()
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
