"""Plans of XLA's compiler for an H200, kept: `python -m tests.memory.estimate...`.

Steps of TensorFlow with a batch of 64, Adam and float32, as they were measured there.
Run as a module it makes them anew, which needs kerasmem[plans].
"""

import lzma
from pathlib import Path

import keras

from kerasmem.extras.plans import compiler
from kerasmem.memory.estimate.device_specs import CARDS
from kerasmem.memory.estimate.estimate import checked_request
from tests.memory.estimate.test_measured import cnn, mlp, transformer

FOLDER = Path(__file__).parents[2] / "data" / "plans"
NETWORKS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}
BATCH = {"mlp": (200704, 256), "cnn": (3145728, 256), "transformer": (65536, 256)}


def request(name, **changes):
    """Return the question, of a network whose layers have the recorded names."""
    keras.backend.clear_session()
    network = NETWORKS[name]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile("adam", loss)
    settings = {"jit_compile": True, "backend": "tensorflow"}
    return checked_request(network, 64, device="h200", **settings | changes)


def load(name):
    """Return the `HloProto` that was kept."""
    return lzma.decompress((FOLDER / f"{name}.hlo.pb.xz").read_bytes())


def record(name):
    """Compile a step, and keep its plan."""
    program = compiler.program_of(request(name))
    assert program.batch == BATCH[name]
    plan = compiler.compiled(program, CARDS["h200"].description)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.hlo.pb.xz").write_bytes(lzma.compress(plan, preset=9))


if __name__ == "__main__":
    for each in NETWORKS:
        record(each)
