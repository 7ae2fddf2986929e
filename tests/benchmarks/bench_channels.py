"""Channel pruning of keras.applications and of random graphs: error, time, file.

Run by hand, on TensorFlow:
    python tests/benchmarks/bench_channels.py applications [NAME ...]
    python tests/benchmarks/bench_channels.py graphs [COUNT]

Every application runs on 96 x 96 images where it allows that, without downloads, with
BatchNorms whose statistics fit a batch of random images. Nothing is downloaded.
"""

import collections
import inspect
import sys
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings

import kerasmem as km
from kerasmem.compression.channels.apply import prune_channels
from kerasmem.graph.values import to_numpy
from tests.graph.channels.strategies import PLANS, graph

SIZE = 96


def applications():
    """Return the names of the models of keras.applications."""
    return sorted(
        name
        for name, value in vars(keras.applications).items()
        if inspect.isfunction(value)
    )


def calibrated(name):
    """Return a net whose BatchNorms have the statistics of some random images."""
    keras.utils.set_random_seed(0)
    make = getattr(keras.applications, name)
    size = SIZE
    model = make(weights=None, input_shape=(size, size, 3), classifier_activation=None)
    images = np.random.default_rng(0).normal(size=(8, size, size, 3))
    if name.startswith(("EfficientNet", "MobileNetV3", "ConvNeXt")):
        images = 127.5 + 60 * images
    randomize(model)
    norms = [x for x in model.layers if isinstance(x, keras.layers.BatchNormalization)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    model(images.astype("float32"), training=True)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model, images.astype("float32")


def randomize(model):
    """Give scales, offsets and biases random values, so that a mix-up shows."""
    random = np.random.default_rng(1)
    for variable in model.trainable_variables:
        if len(variable.shape) == 1:
            value = to_numpy(variable)
            noise = random.normal(size=value.shape)
            if variable.name == "gamma":
                variable.assign(value * (1 + 0.2 * noise))
            else:
                variable.assign(value + 0.1 * noise)


def exact_after_reload(model, images):
    """Return True if stock Keras loads the saved model bit by bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
    weights = zip(model.get_weights(), loaded.get_weights(), strict=True)
    return all(np.array_equal(a, b) for a, b in weights) and np.array_equal(
        to_numpy(model(images[:1])), to_numpy(loaded(images[:1]))
    )


def run_applications(names):
    for name in names:
        model, images = calibrated(name)
        for ratio in (0.3, 0.5):
            begin = time.perf_counter()
            found = prune_channels(model, km.PruneChannels(ratio), images)
            seconds = time.perf_counter() - begin
            kept = found.model.count_params() / model.count_params()
            same = "exact" if exact_after_reload(found.model, images) else "DIFFERS"
            print(
                f"{name:20} {ratio:.0%} parameters kept {kept:.3f} "
                f"error {found.error:.1e} unknown {len(found.unknown)} "
                f"{seconds:.2f} s with the check, reload {same}",
                flush=True,
            )
        keras.utils.clear_session()


def run_graphs(count):
    """Prune `count` random graphs, and tell how many of them went wrong."""
    results = collections.Counter()
    errors, used = [], collections.Counter()

    @given(PLANS)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def prune(plan):
        model, names = graph(plan)
        used.update(names)
        try:
            choice = km.PruneChannels(0.5, criterion="random")
            errors.append(prune_channels(model, choice).error)
            results["pruned"] += 1
        except Exception as error:  # noqa: BLE001 - counted, and told
            if "no channels that could" in str(error):
                results["nothing to prune"] += 1
                return
            results["FAILED"] += 1
            print(names, type(error).__name__, str(error)[:300], flush=True)
        finally:
            keras.utils.clear_session(free_memory=False)
            if sum(results.values()) % 100 == 0:
                print(dict(results), flush=True)

    prune()
    print(f"{sum(results.values())} graphs of {len(used)} operations: {dict(results)}")
    print(f"errors: median {np.median(errors):.1e}, largest {max(errors):.1e}")


def main():
    what, *rest = sys.argv[1:] or ["applications"]
    if what == "graphs":
        run_graphs(int(rest[0]) if rest else 2000)
    if what == "applications":
        run_applications(rest or applications())


if __name__ == "__main__":
    main()
