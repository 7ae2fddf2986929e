"""Memory profiles from TensorFlow's profiler."""

import ctypes
import gc
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from kerasmem.backends.profile import (
    EVENT_NAMES,
    AllocatorTrace,
    Followed,
    MemoryEvent,
    Profile,
    ProfilerUnavailableError,
    Storage,
    device_of,
    memory_event,
)
from kerasmem.backends.protobuf import Message
from kerasmem.backends.steps import compiled_functions
from kerasmem.backends.xla.hlo import Buffers, read_buffers
from kerasmem.backends.xla.plan import StepPlan
from kerasmem.backends.xla.plan import step_plan as planned_step
from kerasmem.records import DeviceReading
from kerasmem.types import Model, Tensor

_ROUNDING_BYTES = 256
_POINTER_IN = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
# For other types (strings, resources), DLPack aborts the process.
_PLAIN = frozenset(
    {
        tf.bool, tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int8, tf.int16,
        tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64,
    }
)  # fmt: skip
_WHAT_TO_SET = (
    "TensorFlow's CPU allocator reports no events in this process, so there is no "
    "timeline. Set TF_CPU_ALLOCATOR_USE_BFC=1 and TF_ENABLE_ONEDNN_OPTS=0 before "
    "TensorFlow is imported, or run the script with `kerasmem run --timeline "
    "SCRIPT.py`, which sets them."
)

_NO_PLAN = (
    "Could not read the compiled step in TensorFlow's profile, so the timeline "
    "contains the step as one block without layers. Received: "
)


class TensorFlowProfiler:
    """A `MemoryProfiler` for TensorFlow. `read` returns the memory of the devices."""

    names = "tensorflow"

    def __init__(
        self, followed: Followed, read: Callable[[], Sequence[DeviceReading]]
    ) -> None:
        self._followed = followed
        self._opening: list[Storage] = []
        self._read = read
        self._folder: Any = None

    def start(self) -> None:
        """Start, or raise `ProfilerUnavailableError`.

        Raised if another profile is running, or if the CPU allocator reports no events.
        """
        # An allocator that does not count all requests reports no events.
        if not any(device.complete for device in self._read()):
            raise ProfilerUnavailableError(_WHAT_TO_SET)
        self._opening = self._storages()
        folder = tempfile.TemporaryDirectory(prefix="kerasmem-profile-")
        # Levels: TensorFlow's own events, no Python calls, no GPU kernels.
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
        )
        try:
            tf.profiler.experimental.start(folder.name, options)
        except tf.errors.AlreadyExistsError as error:
            folder.cleanup()
            raise ProfilerUnavailableError(
                "Another profile is running, and TensorFlow supports one at a time, "
                "so there is no timeline. If the TensorBoard callback started it, use "
                "other batches there, or none: TensorBoard(profile_batch=0)."
            ) from error
        except BaseException:
            folder.cleanup()
            raise
        self._folder = folder

    def stop(self) -> Profile:
        """Stop, delete the raw profile and return the events per allocator."""
        if self._folder is None:
            return Profile([])
        with self._folder as folder:
            self._folder = None
            tf.profiler.experimental.stop()
            raw = read_profile(Path(folder))
        traces = [
            AllocatorTrace(name, device_of(name), "profiler", events, _ROUNDING_BYTES)
            for name, events in raw.events.items()
        ]
        profile = Profile(traces, self._opening, self._storages())
        return self._with_plan(profile, raw.programs)

    def _with_plan(self, profile: Profile, programs: Sequence[bytes]) -> Profile:
        sizes = {e.requested_bytes for t in profile.traces for e in t.events}
        try:
            plan = step_plan(programs, self._followed, sizes)
        except Exception as error:  # noqa: BLE001 - the profile is useful without plan
            reason = f"{type(error).__name__}: {error}"
            return replace(profile, problem=_NO_PLAN + reason)
        if plan is None:
            return profile
        return Profile(
            traces=[*profile.traces, plan.trace],
            opening=[*profile.opening, *plan.arguments],
            closing=[*profile.closing, *plan.arguments],
        )

    def _storages(self) -> list[Storage]:
        storages = [
            storage
            for index, variable in enumerate(self._followed.variables)
            for part in getattr(variable.value, "values", [variable.value])
            # `read_value` shares the memory of the variable.
            for storage in _storages(part.read_value(), index)
        ]
        addresses = {storage.address for storage in storages}
        for tensor in _tensors_of_python():
            storages += [
                s for s in _storages(tensor, None) if s.address not in addresses
            ]
        return storages


def _tensors_of_python() -> Iterator[Any]:
    # No other source lists the tensors that `fit` keeps of its data.
    kind = type(tf.constant(0))
    return (thing for thing in gc.get_objects() if type(thing) is kind)


def _storages(tensor: Tensor, variable: int | None) -> Iterator[Storage]:
    if tensor.dtype in _PLAIN:
        nbytes = tensor.dtype.size * tensor.shape.num_elements()
        if nbytes:
            # Not `device`, because int32 tensors of a GPU are in host memory.
            place = _place(tensor.backing_device)
            yield Storage(variable, place, _address(tensor), nbytes)


def _place(device: str) -> str:
    spec = tf.DeviceSpec.from_string(device)
    kind = spec.device_type
    return f"GPU:{spec.device_index}" if kind == "GPU" else kind or ""


def _address(tensor: Tensor) -> int:
    # TensorFlow exposes addresses only through DLPack, as the first field. The capsule
    # releases its tensor, so no reference remains.
    capsule = tf.experimental.dlpack.to_dlpack(tensor)
    address = _POINTER_IN(capsule, b"dltensor")
    return ctypes.c_void_p.from_address(address).value or 0


_PROGRAMS = "/host:metadata"


@dataclass
class RawProfile:
    """Events by allocator, and all compiled programs as serialized `HloProto`s."""

    events: dict[str, list[MemoryEvent]] = field(default_factory=dict)
    programs: list[bytes] = field(default_factory=list)


def read_profile(folder: Path) -> RawProfile:
    """Read the profile in a folder."""
    profile = RawProfile()
    for path in sorted(folder.rglob("*.xplane.pb")):
        for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
            profile.programs += _programs(plane)
            for allocator, event in _events(plane):
                profile.events.setdefault(allocator, []).append(event)
    return profile


def _events(plane: Any) -> Iterator[tuple[str, MemoryEvent]]:
    kinds = {key: one.name for key, one in plane.event_metadata.items()}
    figures = {key: one.name for key, one in plane.stat_metadata.items()}
    for line in plane.lines:
        for event in line.events:
            kind = kinds.get(event.metadata_id)
            if kind in EVENT_NAMES:
                values = {
                    figures[s.metadata_id]: _value(s, figures) for s in event.stats
                }
                time_ns = line.timestamp_ns + event.offset_ps // 1000
                yield (
                    values["allocator_name"],
                    memory_event(time_ns, kind, values, line.id),
                )


def _programs(plane: Any) -> Iterator[bytes]:
    if plane.name == _PROGRAMS:
        for program in plane.event_metadata.values():
            for stat in program.stats:
                if stat.WhichOneof("value") == "bytes_value":
                    yield stat.bytes_value


def _value(stat: Any, names: Mapping[int, str]) -> Any:
    kind = stat.WhichOneof("value")
    value = getattr(stat, kind)
    return names[value] if kind == "ref_value" else value


# The addresses of a plan belong to no TensorFlow device.
_PLACE = "XLA"


@dataclass(frozen=True)
class _Program:
    """A program of the training step, its buffers and its trace."""

    module: bytes
    buffers: Buffers
    trace: Any


def step_plan(
    programs: Sequence[bytes], followed: Followed, requested: Collection[int]
) -> StepPlan | None:
    """Return the plan of the training step, or None without XLA.

    There is a program per batch size. The executed one is identified by the sizes of
    the `requested` blocks.
    """
    own_programs = list(_programs_of_step(programs, followed.model))
    if not own_programs:
        return None
    sizes = {program.buffers.scratch_bytes: program for program in own_programs}
    ran = sizes[max(sizes, key=lambda size: (size in requested, size))]
    variables = _variables_by_parameter(ran.trace, followed.variables)
    return planned_step(
        ran.module, ran.buffers, _PLACE, lambda one: variables.get(one.parameter)
    )


def _programs_of_step(programs: Sequence[bytes], model: Model) -> Iterator[_Program]:
    traces = _traces(model)
    for program in programs:
        content = Message(program)
        module = bytes(content.last(1))
        name = Message(module).text(1)
        for trace in traces:
            # `__inference_one_step_7` becomes `a_inference_one_step_7__.11`.
            if f"_{trace.name.decode().strip('_')}__" in name:
                yield _Program(module, read_buffers(content.last(3)), trace)


def _traces(model: Model) -> list[Any]:
    # Private: the public API returns a trace only for given arguments.
    name = "_list_all_concrete_functions"
    functions = compiled_functions(model.train_function, name)
    return [trace for function in functions for trace in getattr(function, name)()]


def _variables_by_parameter(trace: Any, variables: Sequence[Any]) -> dict[int, int]:
    """Return variable indices by parameter number of the program.

    The last parameters are the captured variables, in order of capture.
    """
    numbers = {
        id(part.handle): number
        for number, variable in enumerate(variables)
        for part in getattr(variable.value, "values", [variable.value])
    }
    captures = trace.captured_inputs
    first = len(trace.inputs) - len(captures)
    return {
        first + place: numbers[id(tensor)]
        for place, tensor in enumerate(captures)
        if id(tensor) in numbers
    }
