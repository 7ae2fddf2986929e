"""Chooses a precision for each operation of a file within an allowed loss."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kerasmem.extras.litert.file_graph import (
    DYNAMIC,
    DYNAMIC_INT4,
    FLOAT,
    INT8,
    INT16,
    INTEGER_INPUTS,
    OUTPUT,
    PRODUCTS,
    WEIGHT_ONLY,
    FileGraph,
    FileOperation,
    Precisions,
    Ranges,
    Seen,
    kernel_of,
    multiplications,
)
from kerasmem.extras.litert.file_loss import Judge

_LEAST_WEIGHTS = 1024
_TRIES = 4

_SAFER = {
    INT8: (INT16, DYNAMIC, WEIGHT_ONLY, FLOAT),
    DYNAMIC_INT4: (DYNAMIC, WEIGHT_ONLY, FLOAT),
    DYNAMIC: (WEIGHT_ONLY, FLOAT),
}
"""Fallback precisions, from largest to smallest loss."""

Supports = Callable[[str, str], bool]
"""Function from operation type and precision to whether the runtime supports them."""


@dataclass(frozen=True)
class Choice:
    """Precision of one operation.

    `reason` explains a precision that differs from the requested one.
    """

    operation: FileOperation
    precision: str
    reason: str = ""
    multiplications: int = 0


@dataclass(frozen=True)
class Candidates:
    """Supported precisions of the operations of a file."""

    graph: FileGraph
    seen: Mapping[str, Seen]
    ranges: Ranges
    stays: Mapping[FileOperation, str]
    supports: Supports

    def first(self, operation: FileOperation, precision: str) -> Choice:
        """Return the precision of an operation before any fallback."""
        count = multiplications(operation, self.graph)
        choice = Choice(operation, FLOAT, multiplications=count)
        if not operation.has_floats:
            return choice
        if precision != INT8:
            own = self._of_weights(operation, precision)
            why = self._why_not_integers(operation) if count else ""
            reason = "" if own in INTEGER_INPUTS else why
            return replace(choice, precision=own, reason=reason)
        reason = self.stays.get(operation)
        reason = reason or self._why_not_static(operation, precision)
        if not reason:
            return replace(choice, precision=precision)
        own = self._of_weights(operation, DYNAMIC)
        return replace(choice, precision=own, reason=reason)

    def safer(self, previous: Choice, precision: str) -> str:
        """Return `precision` or the closest supported precision."""
        operation = previous.operation
        if precision == INT16:
            if not self._why_not_static(operation, INT16):
                return INT16
            precision = DYNAMIC
        return self._of_weights(operation, precision)

    def noise(self, operation: FileOperation, precision: str) -> float:
        """Return the relative power of the rounding noise.

        The noise is measured on inputs and outputs, or on the weight for int4.
        """
        if precision == DYNAMIC_INT4:
            kernel = kernel_of(operation, self.graph)
            return 0.0 if kernel is None else int4_noise(self.graph.constants[kernel])
        # The values that an operation moves are already rounded.
        outputs = () if operation.moves else operation.outputs
        names = {*operation.inputs, *outputs} & self.ranges.keys() & self.seen.keys()
        bits = 16 if precision == INT16 else 8
        each = (self.seen[name].noise(*self.ranges[name], bits) for name in names)
        return max(each, default=0.0)

    def _of_weights(self, operation: FileOperation, precision: str) -> str:
        kernel = kernel_of(operation, self.graph)
        if kernel is None or self.graph.constants[kernel].size < _LEAST_WEIGHTS:
            return FLOAT
        if operation.is_lookup and self.supports(operation.kind, WEIGHT_ONLY):
            return FLOAT if precision == FLOAT else WEIGHT_ONLY
        if operation.is_lookup and precision != FLOAT:
            # No data is needed: outputs have the range of the table.
            precision = INT8 if self.supports(operation.kind, INT8) else precision
            return FLOAT if self._why_not_static(operation, precision) else precision
        order = {
            DYNAMIC_INT4: (DYNAMIC_INT4, DYNAMIC, WEIGHT_ONLY),
            DYNAMIC: (DYNAMIC, WEIGHT_ONLY),
        }
        options = order.get(precision, (precision,))
        return next((w for w in options if self.supports(operation.kind, w)), FLOAT)

    def _why_not_integers(self, operation: FileOperation) -> str:
        kernel = kernel_of(operation, self.graph)
        if kernel is None:
            return "multiplying two computed tensors"
        if self.graph.constants[kernel].size < _LEAST_WEIGHTS:
            return f"with fewer than {_LEAST_WEIGHTS:,} weights"
        return f"not supported in {DYNAMIC} by the runtime"

    def _why_not_static(self, operation: FileOperation, precision: str) -> str:
        if operation.is_inner:
            return "in the body of a loop, where ranges are unknown"
        if not self.supports(operation.kind, precision):
            return f"not supported in {precision} by the runtime"
        floats = [*operation.inputs, *operation.outputs]
        with_range = [name for name in floats if name in self.ranges]
        unknown = [n for n in floats if n in self.seen and n not in self.ranges]
        return (
            "reading or writing floats of unknown range"
            if unknown or not with_range
            else ""
        )


@dataclass(frozen=True)
class Tried:
    """A candidate file and its loss."""

    content: bytes
    outputs: Sequence[np.ndarray]
    loss: float


Attempt = Callable[[Precisions], Tried]
"""Function that writes and measures a file with the given precisions."""


@dataclass(frozen=True)
class Found:
    """Chosen precisions, the resulting file and its judge."""

    choices: list[Choice]
    file: Tried
    judge: Judge


@dataclass(frozen=True)
class PrecisionSearch:
    """Search for precisions within the allowed loss.

    All operations start with one precision if supported. If the loss is too large, the
    operations with the most rounding noise get safer precisions, as few as possible.
    """

    candidates: Candidates
    attempt: Attempt
    judge: Judge

    def run(self, precision: str) -> Found:
        """Search the best choice, starting with `precision` for all operations."""
        operations = self.candidates.graph.operations
        best = first = self._attempt_with(
            [self.candidates.first(operation, precision) for operation in operations]
        )
        if precision == INT8 and best.file.loss > self.judge.allowed:
            float_outputs = self._with_float_outputs(first)
            best = first = min(
                first, float_outputs, key=lambda option: option.file.loss
            )
        order = sorted(
            (n for n, c in enumerate(first.choices) if c.precision != FLOAT),
            key=lambda n: -self.candidates.noise(operations[n], precision),
        )
        for safer in _SAFER[precision]:
            if best.file.loss <= self.judge.allowed or not order:
                break
            if not self._differs(first, order, safer):
                continue
            other = self._protect(first, order, safer)
            if safer == INT16:
                if other.file.loss > self.judge.allowed:
                    continue  # int16 needs long biases, a bad start for other steps
                dynamic = self._protect(first, order, DYNAMIC)
                other = min(other, dynamic, key=self._bytes_if_allowed)
            if other.file.loss < best.file.loss:
                # The loss is smaller but still too large: continue from this choice.
                best = first = other
        return best

    def _with_float_outputs(self, first: Found) -> Found:
        """Try float outputs: the steps of int8 are large for small probabilities."""
        operations = self.candidates.graph.operations
        read = {name for o in operations if o.kind != OUTPUT for name in o.inputs}
        last = [
            n
            for n, o in enumerate(operations)
            if o.kind == OUTPUT
            or (o.kind not in PRODUCTS and read.isdisjoint(o.outputs))
        ]
        return self._with_safer(first, last, FLOAT, first.file.loss)

    def _bytes_if_allowed(self, option: Found) -> float:
        is_allowed = option.file.loss <= self.judge.allowed
        return len(option.file.content) if is_allowed else math.inf

    def _differs(self, first: Found, order: Sequence[int], safer: str) -> bool:
        choices = [first.choices[n] for n in order]
        return any(self.candidates.safer(each, safer) == safer for each in choices)

    def _attempt_with(self, choices: list[Choice]) -> Found:
        file = self.attempt({each.operation: each.precision for each in choices})
        return Found(choices, file, self.judge)

    def _protect(self, first: Found, order: Sequence[int], safer: str) -> Found:
        low, loss = 0, first.file.loss
        high, best = len(order), self._with_safer(first, order, safer, loss)
        tries = _TRIES if best.file.loss <= self.judge.allowed else 0
        while tries and high - low > 1:
            # Few operations usually have most of the noise.
            middle = min(max(low + 1, math.isqrt((low + 1) * high)), high - 1)
            one = self._with_safer(first, order[:middle], safer, loss)
            if one.file.loss <= self.judge.allowed:
                best, high = one, middle
            else:
                low, loss = middle, one.file.loss
            tries -= 1
        return best

    def _with_safer(
        self, first: Found, order: Sequence[int], safer: str, loss: float
    ) -> Found:
        choices = list(first.choices)
        for n in order:
            before = choices[n].precision
            precision = self.candidates.safer(choices[n], safer)
            if precision != before:
                reason = self._reason(choices[n], loss)
                choices[n] = replace(choices[n], precision=precision, reason=reason)
        return self._attempt_with(choices)

    def _reason(self, previous: Choice, loss: float) -> str:
        before = previous.precision
        if math.isinf(loss):
            return f"because the file in {before} was not written or its output is NaN"
        result = f"the loss of the file is {loss:.3g} ({self.judge.measure})"
        if before not in (INT8, INT16, DYNAMIC_INT4):
            return f"because in {before} {result}"
        power = self.candidates.noise(previous.operation, before)
        decibels = 10 * math.log10(max(power, 1e-12))
        return (
            f"because in {before} the rounding noise is {decibels:.0f} dB and {result}"
        )


def int4_noise(kernel: np.ndarray) -> float:
    """Return the noise power of int4 codes relative to the power of a kernel."""
    rows = kernel.reshape(len(kernel), -1)
    steps = np.abs(rows).max(axis=1) / 7
    power = float(np.square(rows).mean())
    return float(np.square(steps).mean()) / 12 / power if power else 0.0


def integer_share(choices: Sequence[Choice]) -> float:
    """Return the fraction of multiplications with integer inputs."""
    total = sum(choice.multiplications for choice in choices)
    whole = sum(c.multiplications for c in choices if c.precision in INTEGER_INPUTS)
    return whole / total if total else 1.0
