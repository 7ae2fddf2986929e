"""`kerasmem run`: a script of the user's, in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from kerasmem.files.read_run import read_run
from tests.timelines import assert_adds_up

SCRIPT = """
import sys
import keras, numpy as np
from beside import ROWS

class Note(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("keys", len(logs))

if __name__ == "__main__":
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    x, y = np.ones((ROWS, 4), "float32"), np.ones((ROWS, 2), "float32")
    model.fit(x, y, 2, 2, 0, [Note()])
    print("arguments", sys.argv[1:])
    sys.exit(int(sys.argv[1]))
"""

BREAK_OFF = """
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 4:
            raise MemoryError("no more")

"""


@pytest.fixture
def here(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("ROWS = 12\n")
    return tmp_path


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "kerasmem", "run", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_fit_of_a_script_is_watched(here, backend):
    if backend == "torch":
        return  # a run that ends without memory is watched on each
    done = run(here, "--timeline", "--log-dir", "seen", "train.py", "7", "--flag")
    assert done.returncode == 7, done.stderr
    printed = done.stdout.splitlines()
    # The script's own callbacks see what they see without us: loss alone.
    assert printed == ["keys 1", "keys 1", "arguments ['7', '--flag']"]
    assert "Recorded in seen. Next: kerasmem report seen -o page.html" in done.stderr
    seen = read_run(here / "seen")
    assert seen.info.backend == backend
    assert [record.epoch for record in seen.memory if record.batch is None] == [0, 1]
    assert [record.epoch for record in seen.gradients] == [0, 1]
    (timeline,) = seen.timelines
    assert timeline.first_step == 2
    assert_adds_up(timeline)
    layers = {block.layer for block in timeline.blocks}
    assert "sequential/dense" in layers


WITH_ITS_OWN = """
import keras, numpy as np, tensorflow as tf
import kerasmem as km

class Reset(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        tf.config.experimental.reset_memory_stats("CPU:0")

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(512, use_bias=False)])
model.compile("adam", "mse")
x, y = np.ones((24, 256), "float32"), np.ones((24, 512), "float32")
own = [km.callbacks.MemoryMonitor(every=2, log_dir=name) for name in ("own", "second")]
own = [Reset(), *own, km.callbacks.MemoryTimeline(log_dir="own")]
model.fit(x, y, 4, 2, 0, own, validation_data=(x, y))
"""


def whole_bytes(folder):
    """Return what the monitors of a fit must agree on, of every epoch."""
    return [
        (record.epoch, record.phase, record.devices)
        for record in read_run(folder).memory
        if record.batch is None
    ]


@pytest.mark.one_backend  # the others count nothing on a CPU
def test_a_script_with_monitors_of_its_own_reads_the_same_bytes(here):
    (here / "train.py").write_text(WITH_ITS_OWN)
    done = run(here, "--timeline", "--log-dir", "seen", "train.py")
    assert done.returncode == 0, done.stderr
    own = whole_bytes(here / "own")
    assert len(own) == 4
    assert own == whole_bytes(here / "second") == whole_bytes(here / "seen")
    # A step has at its peak the kernel, its two slots and its gradient.
    kernel = 4 * 256 * 512
    assert all(
        devices[0].peak_bytes >= 4 * kernel
        for _, phase, devices in own
        if phase == "train"
    )
    timelines = [read_run(here / folder).timelines for folder in ("own", "seen")]
    assert timelines[0] == timelines[1] != ()
    assert "TensorBoard" not in done.stderr


@pytest.mark.one_backend
def test_a_fit_that_is_broken_off_leaves_its_window(here):
    begin = "    def on_epoch_end"
    (here / "train.py").write_text(SCRIPT.replace(begin, BREAK_OFF + begin))
    done = run(here, "--timeline", "--log-dir", "seen", "train.py", "0")
    assert "MemoryError: no more" in done.stderr
    assert done.returncode == 1
    (timeline,) = read_run(here / "seen").timelines
    assert timeline.first_step == 2
    assert_adds_up(timeline)


@pytest.mark.one_backend
def test_json_is_alone_on_stdout(here):
    (here / "idle.py").write_text("print('no fit here')\n")
    done = run(here, "--json", "--log-dir", "seen", "idle.py")
    assert json.loads(done.stdout) == {
        "script": "idle.py",
        "exit_code": 0,
        "log_dir": "seen",
        "files": [],
    }
    assert "no fit here" in done.stderr
    assert "idle.py called no fit, or the folder could not be written" in done.stderr


@pytest.mark.one_backend
def test_a_mistake_in_a_script_keeps_its_traceback(here):
    (here / "half.py").write_text("def half(:")
    done = run(here, "half.py")
    assert done.returncode == 1
    assert "SyntaxError: invalid syntax" in done.stderr
    (here / "watched").write_text("print('any name will do')")
    done = run(here, "watched")
    assert (done.returncode, done.stdout) == (0, "any name will do\n")


@pytest.mark.one_backend
def test_a_script_that_is_not_there_is_one_line(here):
    done = run(here, "missing.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "kerasmem: error: The script does not exist. Received: 'missing.py'.\n"
    )


ENDED = """
import pathlib, sys, time

try:
    print("running", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)  # longer than `subprocess.run` would wait
    pathlib.Path("saved").touch()
    sys.exit(5)
"""


@pytest.fixture
def started(here, new_interpreter):
    """Return a run of a script that waits, in a process group of its own."""
    (here / "waits.py").write_text(ENDED)
    # What a shell starts in the background ignores Ctrl-C, and so would its children.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "kerasmem", "run"]
    command += ["--log-dir", "seen", "waits.py"]
    with subprocess.Popen(
        command, cwd=here, stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as process:
        assert process.stdout.readline() == "running\n"
        time.sleep(0.1)
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.one_backend
def test_a_script_may_save_something_at_ctrl_c(started, here):
    os.killpg(started.pid, signal.SIGINT)  # as a terminal does
    assert started.wait(timeout=600) == 5
    assert (here / "saved").exists()


@pytest.mark.one_backend
def test_a_script_does_not_outlive_a_run_that_is_terminated(started):
    started.terminate()
    assert started.wait(timeout=600) == 128 + signal.SIGTERM
    # Whoever held the other end of the pipe is gone.
    assert started.stdout.read() == ""
