"""The order in which a framework runs the operations of a step."""

from collections import deque
from collections.abc import Collection, Sequence

from kerasmem.memory.program.operations import Op, Tensor


def as_written(ops: Sequence[Op], _kept: Sequence[Tensor]) -> list[Op]:
    """Return the operations one after another, as an eager framework runs them."""
    return list(ops)


def as_ready(ops: Sequence[Op], _kept: Sequence[Tensor]) -> list[Op]:
    """Return the operations in the order of TensorFlow's executor on a GPU."""
    maker = {y: number for number, op in enumerate(ops) for y in op.writes}
    before = [{maker[x.root] for x in op.reads if x.root in maker} for op in ops]
    return [ops[number] for number in by_readiness(before)]


def by_readiness(before: Sequence[Collection[int]]) -> list[int]:
    """Return the numbers of operations in the order of TensorFlow's executor on a GPU.

    Launching a kernel costs it nothing, so one thread takes what is ready, first come,
    first served, and puts what has become ready to the end of the queue. The order was
    compared with recorded steps: it agrees but for neighbors.

    Args:
        before: for each operation, those that must have run, each once.
    """
    users: list[list[int]] = [[] for _ in before]
    missing = [len(earlier) for earlier in before]
    for number, earlier in enumerate(before):
        for one in earlier:
            users[one].append(number)
    queue = deque(number for number, count in enumerate(missing) if not count)
    ordered: list[int] = []
    while queue:
        ordered.append(number := queue.popleft())
        for user in users[number]:
            missing[user] -= 1
            if not missing[user]:
                queue.append(user)
    return ordered
