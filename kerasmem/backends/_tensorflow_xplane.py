"""What a profile that TensorFlow wrote says of memory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorflow.tsl.profiler.protobuf import xplane_pb2

from kerasmem.backends.profile import MemoryEvent
from kerasmem.backends.tensorflow_events import EVENT_NAMES, memory_event
from kerasmem.backends.wire import fields

_PROGRAMS = b"/host:metadata"


@dataclass
class RawProfile:
    """What is in a profile.

    Args:
        events: of each allocator, by its name.
        programs: every compiled program of the process, serialized `HloProto`s.
    """

    events: dict[str, list[MemoryEvent]] = field(default_factory=dict)
    programs: list[bytes] = field(default_factory=list)


def read_profile(folder: Path) -> RawProfile:
    """Return what is in the profile that was written into a folder."""
    found = RawProfile()
    for path in sorted(folder.rglob("*.xplane.pb")):
        for plane in _planes(memoryview(path.read_bytes())):
            found.programs += _programs(plane)
            for allocator, event in _events(plane):
                found.events.setdefault(allocator, []).append(event)
    return found


def _planes(content: Any) -> Iterator[list[tuple[int, Any]]]:
    for number, plane in fields(content):
        if number == xplane_pb2.XSpace.PLANES_FIELD_NUMBER:
            yield _fields(plane)


def _fields(message: Any) -> list[tuple[int, Any]]:
    return list(fields(message))


def _events(plane: list[tuple[int, Any]]) -> Iterator[tuple[str, MemoryEvent]]:
    kinds = _names(plane, xplane_pb2.XPlane.EVENT_METADATA_FIELD_NUMBER)
    figures = _names(plane, xplane_pb2.XPlane.STAT_METADATA_FIELD_NUMBER)
    wanted = {key for key, name in kinds.items() if name in EVENT_NAMES}
    for number, content in plane:
        if number != xplane_pb2.XPlane.LINES_FIELD_NUMBER or not wanted:
            continue
        # A line (a thread) at a time: as objects it takes many times its bytes.
        line = xplane_pb2.XLine.FromString(bytes(content))
        for event in line.events:
            if event.metadata_id in wanted:
                found = {
                    figures[s.metadata_id]: _value(s, figures) for s in event.stats
                }
                time_ns = line.timestamp_ns + event.offset_ps // 1000
                kind = kinds[event.metadata_id]
                yield (
                    found["allocator_name"],
                    memory_event(time_ns, kind, found, line.id),
                )


def _programs(plane: list[tuple[int, Any]]) -> Iterator[bytes]:
    if (xplane_pb2.XPlane.NAME_FIELD_NUMBER, _PROGRAMS) not in plane:
        return
    for number, entry in plane:
        if number == xplane_pb2.XPlane.EVENT_METADATA_FIELD_NUMBER:
            program = xplane_pb2.XEventMetadata.FromString(_described(entry))
            for stat in program.stats:
                if stat.WhichOneof("value") == "bytes_value":
                    yield stat.bytes_value


def _names(plane: list[tuple[int, Any]], number: int) -> dict[int, str]:
    """Return the names in a map from identifiers to their descriptions."""
    names = {}
    for key, entry in plane:
        if key == number:
            described = xplane_pb2.XStatMetadata.FromString(_described(entry))
            names[described.id] = described.name
    return names


def _described(entry: Any) -> bytes:
    return bytes(dict(_fields(entry))[2])


def _value(stat: Any, names: Mapping[int, str]) -> Any:
    kind = stat.WhichOneof("value")
    value = getattr(stat, kind)
    return names[value] if kind == "ref_value" else value
