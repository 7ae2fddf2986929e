"""The order in which a framework runs the operations of a step."""

from collections import deque
from collections.abc import Sequence

from kerasmem.memory.estimate.analytic.tensor import Op, Tensor


def as_written(ops: Sequence[Op], _kept: Sequence[Tensor]) -> list[Op]:
    """Return the operations one after another, as an eager framework runs them."""
    return list(ops)


def as_ready(ops: Sequence[Op], _kept: Sequence[Tensor]) -> list[Op]:
    """Return the operations in the order of TensorFlow's executor on a GPU.

    Launching a kernel costs it nothing, so one thread takes what is ready, first come,
    first served, and puts what has become ready to the end of the queue.
    """
    maker = {y: op for op in ops for y in op.writes}
    missing: dict[Op, int] = {}
    users: dict[Op, list[Op]] = {}
    for op in ops:
        before = {maker[x.root] for x in op.reads if x.root in maker}
        missing[op] = len(before)
        for earlier in before:
            users.setdefault(earlier, []).append(op)
    queue = deque(op for op in ops if not missing[op])
    ordered: list[Op] = []
    while queue:
        op = queue.popleft()
        ordered.append(op)
        for user in users.get(op, ()):
            missing[user] -= 1
            if not missing[user]:
                queue.append(user)
    return ordered
