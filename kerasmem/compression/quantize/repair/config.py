"""The choices of what to repair before weights are quantized."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from kerasmem.compression import batch_norm
from kerasmem.compression.quantize.repair.equalize import NAME as EQUALIZE
from kerasmem.compression.quantize.repair.equalize import equalize, without_relu6
from kerasmem.compression.quantize.repair.fold import NAME as FOLD
from kerasmem.compression.quantize.repair.fold import fold_batch_norm
from kerasmem.compression.technique import Remake, Technique
from kerasmem.errors import ConfigError, ModelError
from kerasmem.files.data import check_data
from kerasmem.records import WeightChange


@dataclass(frozen=True)
class FoldBatchNorm(Remake):
    """Fold each BatchNormalization into the layer with a kernel right before it.

    The result computes in inference what the original does, with fewer layers. What
    cannot be folded stays, and the account of the weights tells why.

    Example:
        >>> FoldBatchNorm().to_json()
        {'technique': 'fold_batch_norm'}
    """

    name: ClassVar[str] = FOLD
    undoes: ClassVar[tuple[str, ...]] = ("cluster",)
    trains_on: ClassVar[bool] = False

    def applied(self, model: Any, data: Any = None) -> tuple[Any, list[WeightChange]]:
        """Return a model without what could be folded; the one given is not touched.

        Raises:
            ModelError: if there is nothing that could be folded.
        """
        del data
        folded, changes = fold_batch_norm(model)
        if folded is model:
            reasons = [
                f"{change.weight} {change.detail}"
                for change in changes
                if change.weight.endswith("moving_mean")
            ]
            raise ModelError(
                f"The model {model.name!r} has no BatchNormalization that could be "
                f"folded. Received: {'; '.join(reasons[:3]) or 'a model without'}."
            )
        return folded, changes


@dataclass(frozen=True)
class Equalize(Technique):
    """Scale channels of neighboring layers until they are equally large.

    What the model computes stays. Rounding with one scale for a whole kernel loses less
    then; rounding per channel has less to gain. Fold BatchNormalization first: through
    it no scale can pass.

    Args:
        replace_relu6: True to make a ReLU of each ReLU6 between two such layers, which
            are left alone else. The model then computes something else wherever a
            value was cut off at 6.

    Raises:
        ConfigError: if the argument is no bool.

    Example:
        >>> Equalize(replace_relu6=True).to_json()
        {'technique': 'equalize', 'replace_relu6': True}
    """

    _: KW_ONLY
    replace_relu6: bool = False

    name: ClassVar[str] = EQUALIZE
    undoes: ClassVar[tuple[str, ...]] = ("cluster",)
    trains_on: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.replace_relu6, bool):
            raise ConfigError(
                "The replace_relu6 of Equalize is True or False. Received: "
                f"replace_relu6={self.replace_relu6!r}."
            )

    def apply(self, model: Any, data: Any = None) -> list[WeightChange]:
        """Scale the weights of `model` in place; it takes no data.

        Raises:
            ConfigError: if a ReLU6 is to be replaced, which takes a new model.
            ModelError: if no two layers can be equalized, or weights are not finite.
        """
        del data
        if self.replace_relu6 and without_relu6(model) is not model:
            raise ConfigError(
                "To replace a ReLU6 takes a new model. Next: use km.compress, or "
                "`model, changes = Equalize(...).applied(model)`. Received: "
                f"replace_relu6=True, apply({model.name!r})."
            )
        return equalize(model)

    def applied(self, model: Any, data: Any = None) -> tuple[Any, list[WeightChange]]:
        """Return the model, changed in place, or a new one without ReLU6.

        Raises:
            ModelError: if no two layers can be equalized, or weights are not finite.
        """
        del data
        made = without_relu6(model) if self.replace_relu6 else model
        return made, equalize(made)


@dataclass(frozen=True)
class ReestimateBatchNorm(Technique):
    """Gather the statistics of BatchNormalization anew, on the model as it is now.

    After pruning, rounding or another step that changes what layers make; it takes
    samples and no labels.

    Args:
        samples: most samples to look at, from 2.

    Raises:
        ConfigError: if there are too few samples.

    Example:
        >>> ReestimateBatchNorm(samples=256).to_json()
        {'technique': 'reestimate_batch_norm', 'samples': 256}
    """

    _: KW_ONLY
    samples: int = batch_norm.SAMPLES

    name: ClassVar[str] = batch_norm.NAME
    trains_on: ClassVar[bool] = False

    def __post_init__(self) -> None:
        count = self.samples
        if not isinstance(count, int) or isinstance(count, bool) or count < 2:
            raise ConfigError(
                "The samples of ReestimateBatchNorm are a whole number from 2. "
                f"Received: samples={count!r}."
            )

    def apply(self, model: Any, data: Any = None) -> list[WeightChange]:
        """Gather the statistics of `model` on `data`, in place.

        Raises:
            ConfigError: if there is no data.
            DataError: if the data does not fit the model, or something is not finite.
            ModelError: if the model has no BatchNormalization.
        """
        if data is None:
            raise ConfigError(
                "Statistics are gathered on samples: give data=x (--data on the "
                "command line). Received: data=None."
            )
        check_data(model, data)
        return batch_norm.reestimate(model, data, self.samples)
