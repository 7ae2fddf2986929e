"""`kerasmem run` of a script that ends because memory ran out, and its report."""

import os
import subprocess
import sys

import pytest

from kerasmem.files.read_run import read_run

SCRIPT = """
import keras, numpy as np

class Fail(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if self.params["epochs"] == 2 and batch == 3:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8192 "
                               "bytes.")

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="only")])
model.compile("adam", "mse")
x, y = np.ones((24, 4), "float32"), np.ones((24, 2), "float32")
model.fit(x, y, batch_size=6, epochs=1, verbose=0)
model.fit(x, y, batch_size=6, epochs=2, verbose=0, callbacks=[Fail()])
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended")
    (folder / "train.py").write_text(SCRIPT)
    return folder, call(folder, "run", "--timeline", "--log-dir", "seen", "train.py")


def call(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "kerasmem", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_script_that_runs_out_of_memory_leaves_a_post_mortem(ended, backend):
    folder, done = ended
    assert done.returncode == 1
    assert "RESOURCE_EXHAUSTED" in done.stderr
    assert "Out of memory, epoch 1, step 4, batch of 6" in done.stderr
    (found,) = read_run(folder / "seen").post_mortems
    assert found.cause.requested_bytes == 8192
    assert (found.epoch, found.step, found.batch_size) == (0, 3, 6)
    assert found.backend == backend
    # XLA's plan of a step, all that JAX has, leaves out what is not in the step.
    assert found.is_measured == (backend != "jax")
    assert "sequential/only" in found.by_layer()
    assert sum(found.by_layer().values()) == found.peak_bytes
    # The failed step is still in memory: it was looked at before the first.
    assert (found.other_bytes is None) == (backend != "tensorflow")
    assert found.left_out == ()


def test_the_report_tells_of_it(ended, kerasmem):
    folder, _ = ended
    done = kerasmem(f"report {folder}/seen -o {folder}/page.html --json")
    (told,) = done.json["post_mortems"]
    assert told["cause"]["requested_bytes"] == 8192
    assert 'id="out-of-memory"' in (folder / "page.html").read_text()
