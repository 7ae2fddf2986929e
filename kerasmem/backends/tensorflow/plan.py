"""XLA's plan for the training step that TensorFlow compiled.

TensorFlow's profile brings the programs with it that XLA compiled, and where XLA puts
their buffers, so that nothing is compiled for the plan and it is that of the very step.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kerasmem.backends.profile import AllocatorTrace, Followed, Storage
from kerasmem.backends.protobuf import fields
from kerasmem.backends.steps import compiled_functions
from kerasmem.backends.xla.hlo import Buffers, read_buffers, read_program
from kerasmem.backends.xla.plan import Planned, plan

# A plan has addresses of its own, so it is no device of TensorFlow's.
_PLACE = "XLA"


@dataclass(frozen=True)
class StepPlan:
    """The plan of a compiled step.

    Args:
        trace: what comes and goes while the step runs, as XLA planned it.
        arguments: where what is there before lies: the variables, the batch.
    """

    trace: AllocatorTrace
    arguments: list[Storage]


@dataclass(frozen=True)
class _Program:
    """A program of the training step.

    Args:
        module: serialized `HloModuleProto`.
        buffers: where its buffers lie.
        trace: the trace of the step that was compiled.
    """

    module: bytes
    buffers: Buffers
    trace: Any

    @property
    def scratch_bytes(self) -> int:
        """Size of the block that the program asks the allocator for."""
        return max(
            (
                allocation.size
                for allocation in self.buffers.allocations
                if not allocation.is_local
                and not allocation.is_argument
                and not allocation.is_result
            ),
            default=0,
        )


def step_plan(
    programs: Sequence[bytes], followed: Followed, requested: Collection[int]
) -> StepPlan | None:
    """Return the plan of the training step, None if XLA did not compile it.

    Args:
        programs: the serialized `HloProto`s of a profile.
        followed: the model.
        requested: sizes of the blocks that were asked for while the profile was taken.
            A step is compiled for every size of batch; the one that ran is among them.
    """
    found = list(_programs_of_step(programs, followed.model))
    if not found:
        return None
    sizes = {program.scratch_bytes: program for program in found}
    ran = sizes[max(sizes, key=lambda size: (size in requested, size))]
    planned = plan(read_program(ran.module), ran.buffers)
    trace = AllocatorTrace(_PLACE, _PLACE, "buffer assignment", planned.events)
    variables = _variables_by_parameter(ran.trace, followed.variables)
    return StepPlan(trace, [_storage(one, variables) for one in planned.arguments])


def _programs_of_step(programs: Sequence[bytes], model: Any) -> Iterator[_Program]:
    traces = _traces(model)
    for program in programs:
        content = _fields(memoryview(program))
        name = bytes(_fields(content[1])[1]).decode()
        for trace in traces:
            # `__inference_one_step_7` becomes `a_inference_one_step_7__.11`.
            if f"_{trace.name.decode().strip('_')}__" in name:
                yield _Program(bytes(content[1]), read_buffers(content[3]), trace)


def _fields(message: Any) -> dict[int, Any]:
    """Return fields that come once each; the numbers are those of `hlo.proto`."""
    return dict(fields(message))


def _traces(model: Any) -> list[Any]:
    # Private: a compiled function shows its traces only to one who has the batch.
    name = "_list_all_concrete_functions"
    functions = compiled_functions(model.train_function, name)
    return [trace for function in functions for trace in getattr(function, name)()]


def _variables_by_parameter(trace: Any, variables: Sequence[Any]) -> dict[int, int]:
    """Return the numbers of the variables by the numbers of the program's arguments.

    The last arguments are the variables that the step uses, as it came upon them.
    """
    numbers = {
        id(part.handle): number
        for number, variable in enumerate(variables)
        for part in getattr(variable.value, "values", [variable.value])
    }
    captured = trace.captured_inputs
    first = len(trace.inputs) - len(captured)
    return {
        first + place: numbers[id(tensor)]
        for place, tensor in enumerate(captured)
        if id(tensor) in numbers
    }


def _storage(argument: Planned, variables: Mapping[int, int]) -> Storage:
    variable = variables.get(argument.instruction.parameter)
    return Storage(variable, _PLACE, argument.address, argument.size)
