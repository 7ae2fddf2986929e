"""Charts and tables of memory by epoch and by call, for devices and hosts."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from kerasmem.records import DeviceReading, MemoryRecord
from kerasmem.records.table import Table, bytes_or_missing, evenly, share_text
from kerasmem.report.page.panels import Lines, Panel, Series
from kerasmem.report.run.epochs import numbered, placed
from kerasmem.units import format_bytes

_FAR_ABOVE = 3  # larger ratios of the pool to the peak would flatten the other lines


def memory_panels(records: Sequence[MemoryRecord]) -> list[Panel]:
    """Returns the memory charts of a run by process, devices first."""
    panels: list[Panel] = []
    processes = sorted({record.process for record in records})
    for process in processes:
        own = [record for record in records if record.process == process]
        owner = f"process {process}" if len(processes) > 1 else ""
        panels += [*_device_panels(own, owner), *_host_panels(own, owner)]
        panels += _call_panels(own, owner)
    return panels


def _device_panels(records: Sequence[MemoryRecord], owner: str) -> Iterator[Panel]:
    readings: dict[str, list[tuple[float, MemoryRecord, DeviceReading]]] = {}
    sharing_names: dict[str, dict[str, None]] = {}
    for x, record in placed(records):
        for device in record.counted:
            readings.setdefault(device.name, []).append((x, record, device))
            if device.shares_with:
                sharing_names.setdefault(device.shares_with, {})[device.name] = None
    for name, own in readings.items():
        if any(name in sharing for sharing in sharing_names.values()):
            continue  # the same bytes have a panel already
        lines = Lines()
        for x, record, device in own:
            _add_device(lines, x, record, device)
        devices = [device for _, _, device in own]
        lines_shown, notes = _without_far_above(lines.filled())
        notes += _device_notes(devices)
        if name in sharing_names:
            notes.append(f"Shares one allocator with {', '.join(sharing_names[name])}.")
        yield Panel(_title(f"Device memory, {name}", owner), lines_shown, tuple(notes))


def _add_device(
    lines: "Lines", x: float, record: MemoryRecord, device: DeviceReading
) -> None:
    if record.batch is not None:
        lines.add("by batch", "within", x, device.current_bytes)
        return
    if record.phase == "validation":
        lines.add("validation peak", "validation", x, device.peak_bytes)
        return
    later = device.later_peak_bytes
    lines.add("peak", "peak", x, device.peak_bytes if later is None else later)
    lines.add("in use", "current", x, device.current_bytes)
    lines.add("first step", "first", x, device.first_step_peak_bytes)
    lines.add("pool", "pool", x, device.reserved_bytes)
    lines.add("whole card", "card", x, device.card_used_bytes)


def _host_panels(records: Sequence[MemoryRecord], owner: str) -> Iterator[Panel]:
    lines = Lines()
    source = ""
    for x, record in placed(records):
        if (host := record.host) is None:
            continue
        source = host.peak_source
        if record.batch is not None:
            lines.add("by batch", "within", x, host.rss_bytes)
        elif record.phase == "validation":
            lines.add("validation peak", "validation", x, host.peak_bytes)
        else:
            lines.add("peak", "peak", x, host.peak_bytes)
            lines.add("resident", "current", x, host.rss_bytes)
            lines.add("input pipeline", "pool", x, host.input_bytes)
    if lines.filled():
        sampling_note = ("The peak was sampled every few milliseconds.",)
        notes = sampling_note if source == "sampled" else ()
        yield Panel(_title("Host memory", owner), lines.filled(), notes)


_CALLS = ("evaluate", "predict")


def _call_panels(records: Sequence[MemoryRecord], owner: str) -> Iterator[Panel]:
    for phase in _CALLS:
        calls = [r for r in records if r.phase == phase and r.batch is None]
        by_holder: dict[str, Lines] = {}
        for x, record in enumerate(calls, start=1):
            for device in record.counted:
                lines = by_holder.setdefault(f"device memory, {device.name}", Lines())
                lines.add("peak", "peak", x, device.peak_bytes)
                lines.add("in use", "current", x, device.current_bytes)
            if record.host is not None:
                lines = by_holder.setdefault("host memory", Lines())
                lines.add("peak", "peak", x, record.host.peak_bytes)
                lines.add("resident", "current", x, record.host.rss_bytes)
        for name, lines in by_holder.items():
            if len(calls) > 1:
                title = _title(f"Call by call of {phase}: {name}", owner)
                yield Panel(title, lines.filled(), step="call")


def _title(name: str, owner: str) -> str:
    return f"{name}, {owner}" if owner else name


def _without_far_above(
    lines: tuple[Series, ...],
) -> tuple[tuple[Series, ...], list[str]]:
    background = ("pool", "card", "first")
    top = max(max(line.y) for line in lines if line.style not in background)
    far = [
        line
        for line in lines
        if line.style in background and max(line.y) > _FAR_ABOVE * top
    ]
    notes = [
        f"Not drawn because of its size: {line.name}, "
        f"{format_bytes(round(max(line.y)))}."
        for line in far
    ]
    return tuple(line for line in lines if line not in far), notes


def _device_notes(devices: Iterable[DeviceReading]) -> Iterator[str]:
    conditions: dict[str, Callable[[DeviceReading], bool]] = {
        "The allocator does not count small requests.": lambda d: not d.complete,
        "The peak covers the whole process, because it cannot be reset.": (
            lambda d: not d.peak_was_reset
        ),
    }
    devices = list(devices)
    return (text for text, holds in conditions.items() if any(map(holds, devices)))


def memory_tables(records: Sequence[MemoryRecord]) -> list[Table]:
    """Returns the readings of devices and hosts at the ends of epochs.

    Readings of single batches are omitted. They are in the charts and the files.
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
        for device in record.counted
    ]
    rows_shown, note = evenly(rows)
    head = ("device", "phase", "process", "epoch", "in use", "peak", "first step")
    return Table(
        "devices, at the end of every epoch",
        (*head, "pool", "fragmentation", "whole card"),
        tuple(rows_shown),
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
    rows_shown, note = evenly(rows)
    return Table(
        "host, at the end of every epoch",
        ("phase", "process", "epoch", "resident", "peak", "input pipeline"),
        tuple(rows_shown),
        note=note,
    )


def _when(number: int, record: MemoryRecord) -> tuple[str, str, str]:
    return record.phase, str(record.process), str(number)
