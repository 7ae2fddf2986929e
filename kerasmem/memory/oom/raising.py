"""A post-mortem as an error."""

from kerasmem.errors import (
    DeviceOutOfMemoryError,
    FragmentationError,
    InputPipelineOutOfMemoryError,
    OutOfMemoryError,
    TornStateError,
)
from kerasmem.records import PostMortem
from kerasmem.records.post_mortem_words import cause_sentence, fitting_sentence

_CLASSES: dict[str, type[OutOfMemoryError]] = {
    "device": DeviceOutOfMemoryError,
    "one tensor": DeviceOutOfMemoryError,
    "fragmentation": FragmentationError,
    "input pipeline": InputPipelineOutOfMemoryError,
    "host": OutOfMemoryError,
}


def out_of_memory_error(
    found: PostMortem, kind: type[OutOfMemoryError] | None = None
) -> OutOfMemoryError:
    """Return the error that carries a post-mortem, to be raised.

    Args:
        found: the post-mortem.
        kind: class of the error, such as `TornStateError`; None for that of the cause.
    """
    sentences = [cause_sentence(found.cause), fitting_sentence(found)]
    sentences.append(
        f"Received: batch_size={found.batch_size}, in {found.micro_batches} "
        "micro-batches."
    )
    if kind is TornStateError:
        sentences.append(
            "The model in this process is not as before the step and cannot be put "
            "back. Go on in a new process, from a file or a checkpoint, in smaller "
            "batches or without jit_compile."
        )
    elif found.remedies:
        first = found.remedies[0]
        sentences.append(f"Next: {first.name} ({first.how}).")
    sentences.append("All of it: print(error.post_mortem.text()).")
    chosen = kind or _CLASSES[found.cause.kind]
    return chosen(" ".join(filter(None, sentences)), found)
