"""Warnings and post-mortems of a training in which memory ran out, or would have."""

import os
import warnings

import keras

from kerasmem.errors import KerasMemWarning, without_config
from kerasmem.files.run_dir import add_post_mortem
from kerasmem.graph.layers import has_own_step, sublayers
from kerasmem.graph.values import other_optimizers
from kerasmem.records import PostMortem, Remedy
from kerasmem.types import Model
from kerasmem.units import format_bytes

_RECURRENT = (keras.layers.RNN, keras.layers.Bidirectional)


def stateful_layers(model: Model) -> list[str]:
    """Return the names of the recurrent layers that go on from batch to batch."""
    return [
        layer.name
        for layer in sublayers(model)
        if isinstance(layer, _RECURRENT) and layer.stateful
    ]


def smaller_batches(model: Model) -> Remedy | None:
    """Return what to do instead if batches cannot be split, None if they can."""
    optimizers = other_optimizers(model)
    if optimizers:
        return Remedy(
            name="smaller batches",
            how=f"the `train_step` has optimizers of its own ({', '.join(optimizers)}) "
            "besides `model.optimizer`, so a batch cannot be split; pass a smaller "
            "batch_size if it does not fit",
        )
    names = stateful_layers(model)
    if not names:
        return None
    return Remedy(
        name="smaller batches",
        how=f"the layer {names[0]!r} is stateful: its state has a row for each sample "
        "of the batch that the model was made for, so a batch cannot go in parts; make "
        "the model for a smaller one",
    )


class Notices:
    """Warns once of each thing, and writes post-mortems into a run's folder.

    Args:
        log_dir: the folder; None for none.
    """

    def __init__(self, log_dir: str | os.PathLike[str] | None) -> None:
        self._log_dir = log_dir
        self._issued: set[str] = set()

    def not_estimated(self, error: Exception, limit_bytes: int | None) -> None:
        """Warn that a batch is tried as a whole, without the limit of the user."""
        cause = without_config(" ".join(str(error).split()))
        if limit_bytes is None:
            self._warn(
                "Whether a batch will fit could not be estimated, so it is tried: "
                f"{cause}"
            )
            return
        self._warn(
            "The memory of a training step could not be estimated, so the batch is "
            f"trained as a whole, without the limit: {cause} Received: memory_limit="
            f"{format_bytes(limit_bytes)}. Next: remove the cause, or pass a smaller "
            "batch_size."
        )

    def foreseen(self, model: Model, size: int, parts: int) -> None:
        """Say that a batch will be trained in parts."""
        self._warn(
            f"By the estimate a batch of {size} does not fit into memory; it is "
            f"trained in {parts} micro-batches, with one update as before."
        )
        self._warn_of_differences(model)

    def failed(self, model: Model, report: PostMortem, parts: int, lost: int) -> None:
        """Say that memory ran out, and what happens now."""
        back = (
            "The model is as it was before the step."
            if not lost
            else f"The model is back at where it was {lost} updates ago: such steps "
            "had run before, and of what has run copies are made only now and then."
        )
        self._warn(
            f"Memory ran out in step {(report.step or 0) + 1} of the fit, with a batch "
            f"of {report.batch_size} {_in_parts(report.micro_batches)}. {back} It is "
            f"tried again in {parts} parts, with one update as before."
        )
        self._warn_of_differences(model)

    def failed_evaluation(self, report: PostMortem, parts: int, lost: int) -> None:
        """Say that memory ran out in a validation, and what happens now."""
        back = (
            ""
            if not lost
            else f" The {lost} batches before it are missing in the metrics: such "
            "steps had run before, and of what has run copies are made only now and "
            "then."
        )
        self._warn(
            f"Memory ran out in a validation, with a batch of {report.batch_size} "
            f"{_in_parts(report.micro_batches)}. It is evaluated in {parts} parts, "
            f"with the same result.{back}"
        )

    def tried_whole(self, size: int, remedy: Remedy) -> None:
        """Say that a batch that will hardly fit is tried all the same."""
        self._warn(
            f"By the estimate a batch of {size} does not fit into memory. It is tried "
            f"as a whole: {remedy.how}."
        )

    def not_checked(self, error: Exception) -> None:
        """Warn that a loss that couples samples would go unnoticed."""
        self._warn(
            "The losses could not be checked before the batch is split. They are taken "
            "for means or sums over the samples. The check failed with: "
            f"{' '.join(str(error).split())}"
        )

    def write(self, report: PostMortem) -> None:
        """Write a post-mortem down."""
        try:
            add_post_mortem(self._log_dir, report)
        except OSError as error:
            self._warn(f"The post-mortem could not be written: {error}.")

    def _warn_of_differences(self, model: Model) -> None:
        if has_own_step(model) and not _uses_compiled_loss(model):
            self._warn(
                "The loss of a custom `train_step` cannot be checked before the batch "
                "is split. It is taken for a mean over the samples. If it compares "
                "samples of a batch, keep the batch whole with on_oom='raise'."
            )
        if _has_batch_statistics(model):
            self._warn(
                "BatchNormalization sees one part of the batch at a time, so its "
                "statistics are those of smaller batches: here the training is not "
                "exactly that of the whole batch. Where that matters, use "
                "GroupNormalization or LayerNormalization, or keep the batch whole "
                "with kerasmem.rematerialize(model)."
            )

    def _warn(self, text: str) -> None:
        if text not in self._issued:
            self._issued.add(text)
            warnings.warn(text, KerasMemWarning, stacklevel=2)


def _uses_compiled_loss(model: Model) -> bool:
    code = getattr(type(model).train_step, "__code__", None)
    names = getattr(code, "co_names", ())
    calls = any("compute_loss" in n or n == "train_step" for n in names)
    return calls and model._compile_loss is not None


def _in_parts(parts: int) -> str:
    return "as a whole" if parts == 1 else f"in {parts} parts"


def _has_batch_statistics(model: Model) -> bool:
    kind = keras.layers.BatchNormalization
    return any(isinstance(layer, kind) for layer in sublayers(model))
