"""What helps against one cause of out-of-memory; nobody can tell what that saves."""

from collections.abc import Callable, Mapping

import keras

from kerasmem.records import Cause, Remedy


def remedies_for(cause: Cause) -> tuple[Remedy, ...]:
    """Return what is made for this cause; nothing where the device is too small."""
    find = _BY_KIND.get(cause.kind)
    return find(cause) if find else ()


def _in_one_piece(cause: Cause) -> tuple[Remedy, ...]:
    if (cause.device or "").lower().startswith("cpu"):
        return ()
    if keras.backend.backend() == "torch":
        return (
            Remedy(
                name="segments that grow",
                how="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the "
                "environment, before Python starts",
            ),
        )
    return (
        Remedy(
            name="one pool from the start",
            how="km.memory.configure(preallocate=True) at the top of the script",
        ),
        Remedy(
            name="an allocator that fragments less",
            how="km.memory.configure(allocator='cuda_malloc_async') at the top of the "
            "script",
        ),
    )


def _smaller_tensor(cause: Cause) -> tuple[Remedy, ...]:
    whose = f"in {cause.layer}" if cause.layer else "that is asked for"
    how = f"the tensor {whose} alone is larger than the limit: make the layer smaller"
    return (Remedy(name="a smaller layer", how=f"{how}, or split it"),)


def _less_data_ahead(cause: Cause) -> tuple[Remedy, ...]:  # noqa: ARG001 - one shape
    return (
        Remedy(
            name="a smaller shuffle buffer",
            how="dataset.shuffle(buffer_size) keeps so many elements: bound it, or "
            "shuffle file names or indices instead of samples",
        ),
        Remedy(
            name="fewer batches ahead",
            how="prefetch(2) and a small num_parallel_calls instead of AUTOTUNE; no "
            "cache() in memory",
        ),
        Remedy(
            name="data from files",
            how="km.memory.stream(...) reads batches as they are needed; "
            "km.memory.inspect_data(dataset) tells what each stage keeps",
        ),
    )


_BY_KIND: Mapping[str, Callable[[Cause], tuple[Remedy, ...]]] = {
    "fragmentation": _in_one_piece,
    "one tensor": _smaller_tensor,
    "input pipeline": _less_data_ahead,
    "host": _less_data_ahead,
}
