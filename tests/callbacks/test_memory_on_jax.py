"""MemoryMonitor on several devices and in several processes; a step traced anew."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from kerasmem.callbacks import MemoryMonitor
from kerasmem.errors import KerasMemWarning
from tests.ports import unused_ports

HERE = Path(__file__).parent
EPOCHS = 3
MIB = 1024**2


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the folder and the histories of two processes that trained together."""
    folder = tmp_path_factory.mktemp("run")
    (port,) = unused_ports(1)
    children = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                HERE / "child_jax.py",
                n,
                str(port),
                folder,
            ],
            env=os.environ | {"PYTHONPATH": str(HERE.parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in ("0", "1")
    ]
    try:
        told = [child.communicate(timeout=600) for child in children]
    finally:
        for child in children:
            child.kill()
    for child, (_, errors) in zip(children, told, strict=True):
        assert child.returncode == 0, errors[-3000:]
    return folder, [json.loads(out.splitlines()[-1]) for out, _ in told]


@pytest.fixture(scope="module")
def lines(run):
    """The lines of both processes' files, as plain data."""
    names = ("memory.jsonl", "memory-p1.jsonl")
    return [
        [json.loads(line) for line in (run[0] / name).read_text().splitlines()]
        for name in names
    ]


def test_each_process_keeps_its_own_series_of_its_own_devices(lines):
    for process, own in enumerate(lines):
        assert [line["epoch"] for line in own] == list(range(EPOCHS))
        assert {line["process"] for line in own} == {process}
        for line in own:
            sizes = [device["current_bytes"] for device in line["devices"]]
            first = MIB * 2 ** line["epoch"] * 10**process
            assert sizes == [first, first + 1]
    names = [device["name"] for own in lines for device in own[0]["devices"]]
    assert len(set(names)) == 4


def test_the_chief_has_the_largest_and_the_sum_over_all_devices(run):
    chief, _ = run[1]
    for epoch in range(EPOCHS):
        scale = 2**epoch
        largest, summed = 10 * scale + 1 / MIB, 22 * scale + 2 / MIB
        assert chief["device_mib"][epoch] == largest
        assert chief["device_sum_mib"][epoch] == summed
        assert chief["device_peak_mib"][epoch] == 30 * scale + 1 / MIB
        assert chief["device_peak_sum_mib"][epoch] == 66 * scale + 2 / MIB


def test_the_chief_has_the_largest_and_the_sum_of_the_processes_memory(run, lines):
    chief, worker = run[1]
    for epoch in range(EPOCHS):
        peaks = [own[epoch]["host"]["peak_bytes"] for own in lines]
        assert chief["host_peak_mib"][epoch] == max(peaks) / MIB
        assert chief["host_peak_sum_mib"][epoch] == sum(peaks) / MIB
        assert worker["host_peak_mib"][epoch] == peaks[1] / MIB


def test_a_worker_has_the_figures_of_its_own_devices(run):
    _, worker = run[1]
    assert worker["device_mib"] == [10 * 2**n + 1 / MIB for n in range(EPOCHS)]
    assert worker["device_sum_mib"] == [20 * 2**n + 1 / MIB for n in range(EPOCHS)]
    assert "host_peak_sum_mib" not in worker


def test_the_head_of_the_run_says_that_two_processes_train(run):
    assert json.loads((run[0] / "run.json").read_text())["processes"] == 2


@pytest.mark.usefixtures("counted_traces")
def test_batches_of_ever_new_shapes_are_told_as_traces_that_pile_up():
    class Growing(keras.utils.PyDataset):
        rows = 0

        def __len__(self):
            return 1

        def __getitem__(self, index):
            return np.ones((self.rows + 1, 6)), np.ones((self.rows + 1, 3))

        def on_epoch_end(self):
            self.rows += 1

    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    monitor = MemoryMonitor(host=False)

    with pytest.warns(KerasMemWarning) as caught:
        model.fit(Growing(), epochs=12, verbose=0, callbacks=[monitor])

    # What a trace keeps may rise with it, and is then the same finding.
    (told,) = (f.text for f in monitor.findings if "traces of the train" in f.text)
    assert re.search(r"traces of the training step (rises )?by 1\.0", told)
    assert "an epoch since epoch 3, to " in told
    assert "Use one shape and dtype for all batches." in told
    assert told in [str(warning.message) for warning in caught]
