"""Memory profiles from torch's profiler."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from kerasmem.backends.gradients import around_apply
from kerasmem.backends.patching import LayerCall, observe_calls
from kerasmem.backends.profile import (
    AllocatorTrace,
    Followed,
    MemoryEvent,
    Profile,
    ProfilerUnavailableError,
    Storage,
    with_requests,
)

_MARK = "kerasmem|"
_CUDA_ROUNDING_BYTES = 512


class TorchProfiler:
    """A `MemoryProfiler` for torch."""

    names = "given"

    def __init__(self, followed: Followed) -> None:
        self._followed = followed
        self._opening: list[Storage] = []
        self._profile: Any = None
        self._records = False
        self._unfollow: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start, or raise `ProfilerUnavailableError` if another profile is running."""
        profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        try:
            profile.start()
        except RuntimeError as error:
            raise ProfilerUnavailableError(
                "Another profile is running, and torch supports one at a time, so "
                "there is no timeline. Use separate runs."
            ) from error
        self._profile, self._opening = profile, self._storages()
        # A recording by other code has the same data and must stay enabled.
        if torch.cuda.is_initialized() and not torch._C._cuda_isHistoryEnabled():
            torch.cuda.memory._record_memory_history(stacks="python", context=None)
            self._records = True
        # Python hooks do not run inside a compiled step.
        if not self._followed.model.jit_compile:
            self._unfollow = follow(self._followed, _mark)

    def stop(self) -> Profile:
        """Stop, remove all hooks and return the events per device."""
        profile, self._profile = self._profile, None
        if profile is None:
            return Profile([])
        self._unfollow()
        profile.stop()
        by_device: dict[str, list[MemoryEvent]] = {}
        for device, event in _events(profile):
            by_device.setdefault(device, []).append(event)
        return Profile([*self._traces(by_device)], self._opening, self._storages())

    def _traces(
        self, events_by_device: dict[str, list[MemoryEvent]]
    ) -> Iterator[AllocatorTrace]:
        snapshot = None
        if torch.cuda.is_initialized():
            snapshot = torch.cuda.memory._snapshot()
        if self._records:
            torch.cuda.memory._record_memory_history(enabled=None)
            self._records = False
        for device, events in events_by_device.items():
            if device.startswith("cuda") and snapshot is not None:
                requests = with_requests(
                    events, snapshot, int(device.partition(":")[2])
                )
                yield AllocatorTrace(
                    device, device, "snapshot", requests, _CUDA_ROUNDING_BYTES
                )
            else:
                with_counts = _counted(events, self._held(device))
                yield AllocatorTrace(device, device, "profiler", with_counts)

    def _held(self, device: str) -> dict[int, int]:
        return {s.address or 0: s.nbytes for s in self._opening if s.device == device}

    def _storages(self) -> list[Storage]:
        return [
            Storage(
                variable=index,
                device=str(variable.value.device),
                address=variable.value.data_ptr(),
                nbytes=variable.value.nbytes,
            )
            for index, variable in enumerate(self._followed.variables)
            if variable.value.nbytes
        ]


def _counted(events: list[MemoryEvent], held: dict[int, int]) -> list[MemoryEvent]:
    """Add the bytes of earlier allocations to the counts of CPU events.

    On a CPU, torch counts only allocations since the first profile.
    """
    before = dict(held)
    addresses: set[int] = set()
    for event in events:
        if event.is_allocation:
            addresses.add(event.address)
        elif event.address in addresses:
            addresses.remove(event.address)
        else:
            before.setdefault(event.address, event.given_bytes)
    first = events[0]
    change = first.given_bytes if first.is_allocation else -first.given_bytes
    missing = sum(before.values()) - (first.in_use_bytes - change)
    return [replace(e, in_use_bytes=e.in_use_bytes + missing) for e in events]


def _mark(phase: str, layer: str | None) -> None:
    with torch.profiler.record_function(f"{_MARK}{phase}|{layer or ''}"):
        pass


def _events(profile: Any) -> Iterator[tuple[str, MemoryEvent]]:
    # Private: the public events of a profile have no addresses.
    roots = profile.profiler.kineto_results.experimental_event_tree()
    nodes = sorted(_walk(roots), key=lambda pair: pair[0].start_time_ns)
    phase, layer = "input", None
    for node, inside in nodes:
        if node.name.startswith(_MARK):
            _, phase, layer = node.name.split("|")
        elif node.tag.name == "Allocation" and node.extra_fields.alloc_size:
            device, event = _event(node, inside, phase, layer or None)
            yield device, event


def _walk(roots: Sequence[Any]) -> Iterator[tuple[Any, str]]:
    waiting = [(root, "") for root in roots]
    while waiting:
        node, inside = waiting.pop()
        yield node, inside
        waiting += [(child, node.name) for child in node.children]


def _event(
    node: Any, operation: str, phase: str, layer: str | None
) -> tuple[str, MemoryEvent]:
    fields = node.extra_fields
    return str(fields.device), MemoryEvent(
        time_ns=node.start_time_ns,
        is_allocation=fields.alloc_size > 0,
        address=fields.ptr,
        requested_bytes=abs(fields.alloc_size),
        given_bytes=abs(fields.alloc_size),
        in_use_bytes=fields.total_allocated,
        reserved_bytes=fields.total_reserved or None,
        operation=operation if fields.alloc_size > 0 else "",
        layer=layer,
        phase=phase,
        thread=node.start_tid,
    )


Say = Callable[[str, str | None], None]
"""Called as `say(phase, layer)` when the phase or the layer changes."""


def follow(followed: Followed, say: Say) -> Callable[[], None]:
    """Call `say` from now on, and return the undo function."""
    model, scopes = followed.model, _Scopes(say)
    with ExitStack() as hooks:
        paths = {id(layer): path or None for layer, path in followed.layers}
        layers = [layer for layer, _ in followed.layers]
        run = partial(scopes.run, paths)
        hooks.callback(observe_calls(layers, inputs=run))
        hooks.enter_context(_Backward(say))
        hooks.callback(around_apply(model.optimizer, scopes.around_update))
        say("input", None)
        return hooks.pop_all().close


class _Backward(TorchFunctionMode):
    """Calls `say` at the start of the backward pass."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say = say

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.backward:
            self._say("backward", None)
        return func(*args, **(kwargs or {}))


class _Scopes:
    def __init__(self, say: Say) -> None:
        self._say = say
        self._layers: list[str | None] = []
        self._hooked: set[int] = set()

    def run(self, paths: Mapping[int, str | None], call: LayerCall) -> LayerCall:
        """Run a layer. `paths` contains layer paths by `id`."""
        path = paths[id(call.layer)]
        outside = self._layers[-1] if self._layers else None
        if not self._layers:
            self._hooked.clear()  # a new step
        # After the gradient of the inputs, the backward pass of the outer layer
        # continues.
        self._hook((call.args, call.kwargs), outside)
        self._layers.append(path)
        self._say("forward", path)
        try:
            call.outputs = call.run()
        finally:
            self._layers.pop()
            self._say("forward", outside)
        self._hook(call.outputs, path)
        return call

    def around_update(
        self, original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        self._say("optimizer", None)
        try:
            return original(*args, **kwargs)
        finally:
            self._say("input", None)

    def _hook(self, nest: Any, layer: str | None) -> None:
        for tensor, node in _with_gradient(nest):
            # The innermost layer comes first and has priority. Private: tensors of one
            # operation have no other common identifier.
            number = node._sequence_nr()
            if number not in self._hooked:
                self._hooked.add(number)
                tensor.register_hook(lambda _: self._say("backward", layer))


def _with_gradient(nest: Any) -> Iterator[tuple[torch.Tensor, Any]]:
    # Not `keras.tree.flatten`, which keeps tensors in a reference cycle (Keras 3.15,
    # https://github.com/keras-team/keras/pull/23111).
    for leaf in tree_leaves(nest):
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
            yield leaf, leaf.grad_fn
