"""Warnings and post-mortems for out-of-memory errors during training."""

import os
import warnings
from collections.abc import Callable

from kerasmem.errors import KerasMemWarning, without_config
from kerasmem.files.run_dir import add_plan, add_post_mortem
from kerasmem.graph.layers import has_batch_statistics, has_own_step
from kerasmem.records import PostMortem, Remedy
from kerasmem.records.memory_plan import PlanRecord
from kerasmem.types import Model
from kerasmem.units import format_bytes


class Notices:
    """Issues each warning once, and writes post-mortems to a run folder."""

    def __init__(self, log_dir: str | os.PathLike[str] | None) -> None:
        self._log_dir = log_dir
        self._issued: set[str] = set()

    def not_estimated(self, error: Exception, limit_bytes: int | None) -> None:
        """Warn that a batch is trained as a whole, without an estimate."""
        cause = without_config(" ".join(str(error).split()))
        if limit_bytes is None:
            self._warn(
                "The memory of a training step could not be estimated, so the batch is "
                f"trained as a whole: {cause}"
            )
            return
        self._warn(
            "The memory of a training step could not be estimated, so the batch is "
            f"trained as a whole, without the limit: {cause} Received: memory_limit="
            f"{format_bytes(limit_bytes)}. Next: remove the cause, or pass a smaller "
            "batch_size."
        )

    def not_planned(self, error: Exception) -> None:
        """Warn that activations are not planned because of an error."""
        self._warn(
            "No memory plan was found because of an error, so a large batch can only "
            f"be split: {without_config(' '.join(str(error).split()))}"
        )

    def foreseen(
        self, model: Model, size: int, parts: int, *, by_plan: bool = False
    ) -> None:
        """Warn that a batch is split because of the estimate or the model's plan."""
        why = "is estimated not to fit into memory. It "
        self._warn(
            f"A batch of {size} {'' if by_plan else why}is trained in {parts} "
            f"micro-batches{', as planned' if by_plan else ''}, with one update as "
            "before."
        )
        self._warn_of_differences(model)

    def planned(self, model: Model, plan: PlanRecord, process: int) -> None:
        """Warn that a batch is trained by a memory plan, and write the plan."""
        self._write(lambda: add_plan(self._log_dir, plan, process))
        if not plan.changes_activations:
            self.foreseen(model, plan.batch_size, plan.micro_batches)
            return
        self._warn(
            f"A batch of {plan.batch_size} is estimated not to fit into memory. It is "
            f"trained by a memory plan: {plan.sentences()[0]}"
        )
        if plan.micro_batches > 1:
            self._warn_of_differences(model)

    def failed(self, model: Model, report: PostMortem, parts: int, lost: int) -> None:
        """Warn that a training step ran out of memory and is repeated."""
        back = (
            "The model is unchanged."
            if not lost
            else f"The model was rolled back by {lost} updates, to the latest copy. "
            "After the first steps, copies are made only from time to time."
        )
        self._warn(
            f"Memory ran out in step {(report.step or 0) + 1} of the fit, with a batch "
            f"of {report.batch_size} {_in_parts(report.micro_batches)}. {back} The "
            f"batch is repeated in {parts} parts, with one update as before."
        )
        self._warn_of_differences(model)

    def failed_evaluation(self, report: PostMortem, parts: int, lost: int) -> None:
        """Warn that a validation step ran out of memory and is repeated."""
        back = (
            ""
            if not lost
            else f" The metrics exclude the {lost} previous batches, because copies "
            "are made only from time to time after the first steps."
        )
        self._warn(
            f"Memory ran out in a validation, with a batch of {report.batch_size} "
            f"{_in_parts(report.micro_batches)}. The batch is repeated in {parts} "
            f"parts, with the same result.{back}"
        )

    def tried_whole(self, size: int, remedy: Remedy) -> None:
        """Warn that a batch is trained as a whole although it may not fit."""
        self._warn(
            f"A batch of {size} is estimated not to fit into memory. It is trained as "
            f"a whole: {remedy.how}."
        )

    def not_checked(self, error: Exception) -> None:
        """Warn that losses that couple samples would not be detected."""
        self._warn(
            "The losses could not be checked before the batch is split. They are "
            "assumed to be means or sums over the samples. The check failed with: "
            f"{' '.join(str(error).split())}"
        )

    def write(self, report: PostMortem) -> None:
        """Write a post-mortem to the run folder."""
        self._write(lambda: add_post_mortem(self._log_dir, report))

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._warn(f"The run folder could not be written: {error}.")

    def _warn_of_differences(self, model: Model) -> None:
        if has_own_step(model) and not _uses_compiled_loss(model):
            self._warn(
                "The loss of a custom `train_step` cannot be checked before the batch "
                "is split. It is assumed to be a mean over the samples. If it compares "
                "samples of a batch, keep the batch whole with on_oom='raise'."
            )
        if has_batch_statistics(model):
            self._warn(
                "BatchNormalization computes its statistics per micro-batch, so the "
                "training differs from training on whole batches. To avoid this, use "
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
