"""A run's readings of memory as tables."""

from collections.abc import Sequence

from kerasmem.records import MemoryRecord
from kerasmem.report.page.table import Table, bytes_or_missing, evenly, share_text
from kerasmem.report.run.epochs import numbered
from kerasmem.units import format_bytes


def memory_tables(records: Sequence[MemoryRecord]) -> list[Table]:
    """Return the devices' readings at the ends of epochs, and the hosts'.

    Readings of single batches are left out: they are in the charts and the files.
    """
    ends = [(n, record) for n, record in numbered(records) if record.batch is None]
    tables = [_device_table(ends), _host_table(ends)]
    return [table for table in tables if table.rows]


def _device_table(records: Sequence[tuple[int, MemoryRecord]]) -> Table:
    rows = [
        (
            device.name,
            *_when(number, record),
            format_bytes(device.current_bytes),
            format_bytes(device.peak_bytes),
            bytes_or_missing(device.first_step_peak_bytes),
            bytes_or_missing(device.reserved_bytes),
            share_text(device.fragmentation),
            bytes_or_missing(device.card_used_bytes),
        )
        for number, record in records
        for device in record.devices
    ]
    shown, note = evenly(rows)
    head = ("device", "phase", "process", "epoch", "in use", "peak", "first step")
    return Table(
        "devices, at the end of every epoch",
        (*head, "pool", "fragmentation", "whole card"),
        tuple(shown),
        texts=2,
        note=note,
    )


def _host_table(records: Sequence[tuple[int, MemoryRecord]]) -> Table:
    rows = [
        (
            *_when(number, record),
            format_bytes(record.host.rss_bytes),
            format_bytes(record.host.peak_bytes),
            bytes_or_missing(record.host.input_bytes),
        )
        for number, record in records
        if record.host is not None
    ]
    shown, note = evenly(rows)
    return Table(
        "host, at the end of every epoch",
        ("phase", "process", "epoch", "resident", "peak", "input pipeline"),
        tuple(shown),
        note=note,
    )


def _when(number: int, record: MemoryRecord) -> tuple[str, str, str]:
    return record.phase, str(record.process), str(number)
