"""TensorBoard gets every figure, at its step and its time."""

import pytest
import tensorflow as tf

from kerasmem.errors import OutputError
from kerasmem.extras.trackers import logged
from kerasmem.records import HostReading, MemoryRecord, Run
from kerasmem.units import MIB
from tests.report.runs import gradient_records, memory_records

pytestmark = pytest.mark.one_backend


def write_tensorboard(run, folder):
    return logged(run, folder / "no page", "tensorboard", folder)


def events(folder):
    """What the one event file in a folder says: {tag: [(step, time, value)]}."""
    (file,) = folder.glob("events.out.tfevents.*")
    found = {}
    for record in tf.data.TFRecordDataset(str(file)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            point = (event.step, event.wall_time, value.simple_value)
            found.setdefault(value.tag, []).append(point)
    return found


def test_every_device_has_its_series(tmp_path):
    records = memory_records(3, devices=("GPU:0", "GPU:1"))
    count = write_tensorboard(Run(memory=records), tmp_path)
    found = events(tmp_path)
    assert found["memory/GPU:1/reserved_mib"] == [
        (epoch, records[epoch].time, 320.0) for epoch in range(3)
    ]
    assert found["memory/GPU:0/first_step_peak_mib"] == [(0, records[0].time, 1304.0)]
    assert [v for _, _, v in found["memory/host/peak_mib"]] == [1100, 1102, 1104]
    assert sum(map(len, found.values())) == count


def test_batches_are_counted_over_the_epochs(tmp_path):
    readings = [
        MemoryRecord(epoch, batch, (), HostReading(MIB, 2 * MIB, "kernel"), time=9.0)
        for epoch in range(2)
        for batch in (1, 3, None)
    ]
    write_tensorboard(Run(memory=tuple(readings)), tmp_path)
    found = events(tmp_path)
    steps = [step for step, _, _ in found["memory_by_batch/host/rss_mib"]]
    assert steps == [1, 3, 5, 7]
    assert found["memory/host/peak_mib"] == [(0, 9.0, 2.0), (1, 9.0, 2.0)]


def test_every_phase_has_its_series(tmp_path):
    readings = [
        MemoryRecord(0, None, (), HostReading(MIB, size * MIB, "kernel"), phase)
        for size, phase in enumerate(("validation", "train", "evaluate", "predict"), 1)
    ]
    write_tensorboard(Run(memory=tuple(readings)), tmp_path)
    peaks = {t: p for t, p in events(tmp_path).items() if t.endswith("/peak_mib")}
    assert {tag: point[0][2] for tag, point in peaks.items()} == {
        "memory/validation/host/peak_mib": 1,
        "memory/host/peak_mib": 2,
        "memory/evaluate/host/peak_mib": 3,
        "memory/predict/host/peak_mib": 4,
    }


def test_every_variable_has_its_series(tmp_path):
    records = gradient_records(3, 4)
    write_tensorboard(Run(gradients=records), tmp_path)
    found = events(tmp_path)
    for i, variable in enumerate(v.path for v in records[0].variables):
        norms = [value for _, _, value in found[f"gradients/{variable}/norm"]]
        assert norms == pytest.approx([r.variables[i].norm for r in records])
    assert [step for step, _, _ in found["gradients/norm_max"]] == [0, 1, 2]
    # The first epoch has no update yet: a gap, and no zero.
    assert [s for s, _, _ in found["gradients/block_0/kernel/update_ratio"]] == [1, 2]


def test_every_process_has_its_folder(tmp_path):
    records = (*memory_records(1), *memory_records(1, process=1))
    write_tensorboard(Run(memory=records), tmp_path)
    assert events(tmp_path) == events(tmp_path / "process-1")


def test_a_place_that_cannot_be_a_folder_is_one_clear_error(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(OutputError, match="Cannot create the folder .*taken"):
        write_tensorboard(Run(memory=memory_records(1)), taken)
