"""What a process learns of the others from the folder that they share."""

import dataclasses

import pytest

from kerasmem.memory.workers import RunFolderReader
from kerasmem.records import DeviceReading, MemoryRecord

pytestmark = pytest.mark.one_backend

RECORD = MemoryRecord(0, None, (DeviceReading("GPU:0", 1, 2, True),), None, process=1)


def epoch(number, **changes):
    return dataclasses.replace(RECORD, epoch=number, **changes)


def write(folder, *records, process=1, end="\n"):
    path = folder / f"memory-p{process}.jsonl"
    with path.open("a") as file:
        file.write("\n".join(record.to_json() for record in records) + end)


@pytest.fixture
def reader(tmp_path):
    return RunFolderReader(tmp_path, 0, 3)


def test_a_process_that_has_written_nothing_is_none(reader):
    assert reader.newest() == {1: None, 2: None}


def test_the_newest_record_of_every_other_process_is_told(reader, tmp_path):
    write(tmp_path, epoch(0), epoch(1))
    write(tmp_path, epoch(0, process=2), process=2)
    assert reader.newest() == {1: epoch(1), 2: epoch(0, process=2)}

    write(tmp_path, epoch(2))
    assert reader.newest() == {1: epoch(2), 2: epoch(0, process=2)}


def test_of_a_process_that_is_behind_the_last_epoch_counts(reader, tmp_path):
    write(tmp_path, epoch(0))
    reader.newest()
    assert reader.newest()[1] == epoch(0)


def test_batches_and_validation_are_no_epochs_end(reader, tmp_path):
    later = epoch(1, batch=3), epoch(1, phase="validation"), epoch(1, phase="predict")
    write(tmp_path, epoch(0), *later)
    assert reader.newest()[1] == epoch(0)


def test_a_line_that_is_being_written_is_read_when_it_is_whole(reader, tmp_path):
    line = epoch(1).to_json()
    write(tmp_path, epoch(0))
    with (tmp_path / "memory-p1.jsonl").open("a") as file:
        file.write(line[:20])
    assert reader.newest()[1] == epoch(0)

    with (tmp_path / "memory-p1.jsonl").open("a") as file:
        file.write(line[20:] + "\n")
    assert reader.newest()[1] == epoch(1)


def test_half_a_line_of_a_full_disk_is_left_out(reader, tmp_path):
    write(tmp_path, epoch(0))
    with (tmp_path / "memory-p1.jsonl").open("a") as file:
        file.write('{"epoch": 1, "bat\n')
    write(tmp_path, epoch(2))
    assert reader.newest()[1] == epoch(2)


def test_an_earlier_run_in_the_same_folder_does_not_count(tmp_path):
    write(tmp_path, epoch(7))
    reader = RunFolderReader(tmp_path, 0, 2)
    assert reader.newest() == {1: None}

    write(tmp_path, epoch(0))
    assert reader.newest() == {1: epoch(0)}


def test_any_process_may_read_the_others(tmp_path):
    reader = RunFolderReader(tmp_path, 1, 2)
    (tmp_path / "memory.jsonl").write_text(epoch(4, process=0).to_json() + "\n")
    assert reader.newest() == {0: epoch(4, process=0)}
