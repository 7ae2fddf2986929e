"""Memory events of a torch step on tensors without data."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kerasmem.backends.profile import Followed, MemoryEvent, Storage
from kerasmem.backends.torch.profile import follow
from kerasmem.types import Model, Tensor

_ROUNDING_BYTES = 512  # rounding of torch's CUDA allocator

_VALUE_OF = torch.ops.aten._local_scalar_dense.default


class Life(TorchDispatchMode):
    """A context that records the allocations of all tensors in `events`.

    With `fake`, tensors have shapes but no data, so that models of any size fit. A
    number that is read, such as a seed, is 1.
    """

    def __init__(self, *, fake: bool) -> None:
        super().__init__()
        self.events: list[MemoryEvent] = []
        # Private: torch has fake tensors only for its compiler.
        self._fake = FakeTensorMode(allow_non_fake_inputs=True) if fake else None
        self._known: dict[int, int] = {}
        self._in_use = 0
        self._phase, self._layer = "input", None

    def __enter__(self) -> "Life":
        if self._fake is not None:
            self._fake.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._fake is not None:
            self._fake.__exit__(*error)

    def follow(self, followed: Followed) -> Callable[[], None]:
        """Record the active layer from now on, and return the undo function."""
        return follow(followed, self._say)

    def storages(self, variables: Sequence[Any], device: str) -> list[Storage]:
        """Return the locations of variables, with the addresses of the events."""
        return [
            Storage(number, device, address, variable.value.nbytes)
            for number, variable in enumerate(variables)
            if (address := self.address(variable.value)) is not None
        ]

    def address(self, tensor: Tensor) -> int | None:
        """Return the address of a tensor as in the events, None if empty."""
        return self._known.get(tensor.untyped_storage()._cdata)

    def tensor(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return an input tensor of zeros."""
        return torch.zeros(shape, dtype=getattr(torch, dtype))

    def train_step(self, model: Model, batch: tuple[Any, ...]) -> None:
        """Run one training step."""
        model.train_step(batch)

    def predict_step(self, model: Model, batch: tuple[Any, ...]) -> None:
        """Run one step of `predict`."""
        with torch.no_grad():
            model.predict_step(batch)

    def _say(self, phase: str, layer: str | None) -> None:
        self._phase, self._layer = phase, layer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self._fake is not None and func is _VALUE_OF:
            return _one(args[0].dtype)
        outputs = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage(), func)
        return outputs

    def _see(self, storage: Any, func: Any) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        if not nbytes or key in self._known:
            return
        address = self._known[key] = len(self.events) + 1
        self._note(address, nbytes, str(func), is_allocation=True)
        weakref.finalize(storage, self._gone, key, nbytes)

    def _gone(self, key: int, nbytes: int) -> None:
        self._note(self._known.pop(key), nbytes, "", is_allocation=False)

    def _note(
        self, address: int, nbytes: int, operation: str, *, is_allocation: bool
    ) -> None:
        given_bytes = -(-nbytes // _ROUNDING_BYTES) * _ROUNDING_BYTES
        self._in_use += given_bytes if is_allocation else -given_bytes
        self.events.append(
            MemoryEvent(
                time_ns=len(self.events),
                is_allocation=is_allocation,
                address=address,
                requested_bytes=nbytes,
                given_bytes=given_bytes,
                in_use_bytes=self._in_use,
                operation=operation,
                layer=self._layer,
                phase=self._phase,
            )
        )


def _one(dtype: Any) -> bool | int | float:
    if dtype == torch.bool:
        return True
    return 1.0 if dtype.is_floating_point else 1
