"""The choice of a form for each operation of a file, by what the file loses."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kerasmem.exporting.judge import Judge
from kerasmem.exporting.litert_graph import (
    PRODUCTS,
    Graph,
    Operation,
    Seen,
    multiplications,
)
from kerasmem.exporting.litert_writer import (
    DYNAMIC,
    DYNAMIC_INT4,
    FLOAT,
    INT8,
    INT16,
    INTEGER_INPUTS,
    WEIGHT_ONLY,
    Ranges,
    kernel_of,
    supports,
)

_LEAST_WEIGHTS = 1024
_TRIES = 6


@dataclass(frozen=True)
class Choice:
    """The form of one operation.

    Args:
        operation: it.
        form: one of the forms of `litert_writer`.
        reason: why it has not the first form that was to be; empty if it has.
        multiplications: that it makes per batch.
    """

    operation: Operation
    form: str
    reason: str = ""
    multiplications: int = 0


class Forms:
    """The forms that the operations of a file can have.

    Args:
        graph: the float file.
        seen: what its tensors hold on samples.
        ranges: of its tensors.
        stays: reasons of operations that are to stay float, by scope.
    """

    def __init__(
        self,
        graph: Graph,
        seen: Mapping[str, Seen],
        ranges: Ranges,
        stays: Mapping[str, str],
    ) -> None:
        self._graph, self._seen, self._ranges = graph, seen, ranges
        self._stays = stays

    def first(self, operation: Operation, form: str) -> Choice:
        """Return the form that an operation has if nothing is lost.

        Args:
            operation: it.
            form: what all operations are to have that can.
        """
        choice = Choice(operation, FLOAT, multiplications=self._products(operation))
        if not operation.has_floats:
            return choice
        if reason := self._stays.get(operation.scope):
            return replace(choice, form=self._weights(operation), reason=reason)
        if form in (INT8, INT16):
            reason = self._why_not_static(operation, form)
            return replace(
                choice, form=self._weights(operation) if reason else form, reason=reason
            )
        return replace(choice, form=self._weights(operation, form))

    def safer(self, choice: Choice, form: str) -> str:
        """Return the form of an operation that loses less: in `form` where it can."""
        operation = choice.operation
        if form == INT16 and not self._why_not_static(operation, INT16):
            return INT16
        return self._weights(operation, form if form != INT16 else DYNAMIC)

    def _weights(self, operation: Operation, form: str = DYNAMIC) -> str:
        """Return the form of an operation with float inputs and outputs."""
        kernel = kernel_of(operation, self._graph)
        if kernel is None or self._graph.constants[kernel].size < _LEAST_WEIGHTS:
            return FLOAT
        if operation.kind == "GATHER" and form != FLOAT:
            return INT8 if not self._why_not_static(operation, INT8) else FLOAT
        order = {
            DYNAMIC_INT4: (DYNAMIC_INT4, DYNAMIC, WEIGHT_ONLY),
            DYNAMIC: (DYNAMIC, WEIGHT_ONLY),
        }
        wanted = order.get(form, (form,))
        return next((f for f in wanted if supports(operation.kind, f)), FLOAT)

    def _why_not_static(self, operation: Operation, form: str) -> str:
        if operation.is_inner:
            return "is in the body of a loop, where no ranges are known"
        if not supports(operation.kind, form):
            return f"litert-quantizer has no {form} form of {operation.kind}"
        floats = [*operation.inputs, *operation.outputs]
        known = [name for name in floats if name in self._ranges]
        unknown = [n for n in floats if n in self._seen and n not in self._ranges]
        if not known or unknown:
            return "computes no floats with known ranges"
        return ""

    def noise(self, operation: Operation, form: str) -> float:
        """Return the power of the rounding noise of a form, as a share of the signal.

        It is that of what the operation reads and writes, or in int4 of its weight.
        """
        if form == DYNAMIC_INT4:
            kernel = kernel_of(operation, self._graph)
            return 0.0 if kernel is None else int4_noise(self._graph.constants[kernel])
        # What an operation moves was rounded before.
        moved = () if operation.moves else operation.outputs
        names = {*operation.inputs, *moved} & self._ranges.keys() & self._seen.keys()
        each = (self._seen[name].noise(*self._ranges[name]) for name in names)
        return max(each, default=0.0)

    def _products(self, operation: Operation) -> int:
        if operation.kind not in PRODUCTS:
            return 0
        return multiplications(operation, self._graph, self._seen)


@dataclass(frozen=True)
class Tried:
    """A file that was made, and what it loses.

    Args:
        content: its bytes.
        outputs: of the samples that it is judged on.
        loss: what the judge says of them.
    """

    content: bytes
    outputs: Sequence[np.ndarray]
    loss: float


Attempt = Callable[[Mapping[str, str]], Tried]
"""Makes a file with the form of each operation, by its scope."""


@dataclass(frozen=True)
class Found:
    """A choice, the file that it gives, and what judged it."""

    choices: list[Choice]
    file: Tried
    judge: Judge


_SAFER = {
    INT8: (INT16, DYNAMIC, WEIGHT_ONLY, FLOAT),
    DYNAMIC_INT4: (DYNAMIC, WEIGHT_ONLY, FLOAT),
    DYNAMIC: (WEIGHT_ONLY, FLOAT),
}
"""Forms by what they lose, most first, after the one that is tried first."""


@dataclass(frozen=True)
class Search:
    """A search for the forms with which a file loses little enough.

    All operations first have one form where they can. If that loses too much, the
    operations with the most rounding noise get safer forms, as few as are enough.

    Args:
        forms: the forms that there are.
        operations: of the file.
        attempt: makes and measures a file.
        judge: tells the largest loss.
    """

    forms: Forms
    operations: Sequence[Operation]
    attempt: Attempt
    judge: Judge

    def run(self, form: str) -> Found:
        """Return the choice that begins with `form` for all operations."""
        choices = [self.forms.first(operation, form) for operation in self.operations]
        found = first = self._found(choices)
        order = sorted(
            (n for n, choice in enumerate(choices) if choice.form == form),
            key=lambda n: -self.forms.noise(choices[n].operation, form),
        )
        for safer in _SAFER[form]:
            if found.file.loss <= self.judge.allowed or not order:
                break
            protected = self._protect(first, order, safer)
            if protected.file.loss < found.file.loss:
                found = protected
        return found

    def _found(self, choices: list[Choice]) -> Found:
        file = self.attempt({each.operation.scope: each.form for each in choices})
        return Found(choices, file, self.judge)

    def _protect(self, first: Found, order: Sequence[int], safer: str) -> Found:
        """Return the choice with safer forms for as few operations as are enough."""
        low, failed = 0, first.file.loss
        high, best = len(order), self._with_safer(first, order, safer, failed)
        tries = _TRIES if best.file.loss <= self.judge.allowed else 0
        while tries and high - low > 1:
            # In few operations with much noise more is to be found than in many.
            middle = min(max(low + 1, math.isqrt((low + 1) * high)), high - 1)
            one = self._with_safer(first, order[:middle], safer, failed)
            if one.file.loss <= self.judge.allowed:
                best, high = one, middle
            else:
                low, failed = middle, one.file.loss
            tries -= 1
        return best

    def _with_safer(
        self, first: Found, order: Sequence[int], safer: str, failed: float
    ) -> Found:
        choices = list(first.choices)
        for n in order:
            form = choices[n].form
            noise = max(self.forms.noise(choices[n].operation, form), 1e-12)
            choices[n] = replace(
                choices[n],
                form=self.forms.safer(choices[n], safer),
                reason=f"in {form} the rounding noise is {10 * math.log10(noise):.0f} dB "
                f"and {self.judge.measure} of the file {failed:.3g}",
            )
        return self._found(choices)


def int4_noise(kernel: np.ndarray) -> float:
    """Return the power of the noise of int4 codes, as a share of that of a kernel."""
    rows = kernel.reshape(len(kernel), -1)
    steps = np.abs(rows).max(axis=1) / 7
    power = float(np.square(rows).mean())
    return float(np.square(steps).mean()) / 12 / power if power else 0.0


def integer_share(choices: Sequence[Choice]) -> float:
    """Return the share of the multiplications whose inputs are integers."""
    total = sum(choice.multiplications for choice in choices)
    whole = sum(c.multiplications for c in choices if c.form in INTEGER_INPUTS)
    return whole / total if total else 1.0
