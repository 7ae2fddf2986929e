"""Knowledge distillation: `km.distill` and `km.Distill`."""

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import keras

from kerasmem.backends import current
from kerasmem.backends.seeding import seeded
from kerasmem.checks import Whole, invalid
from kerasmem.compression.batch_norm import Loss, own_loss, reestimate_if_better
from kerasmem.compression.distill.cache import as_cache
from kerasmem.compression.distill.comparison import check_models, check_outputs
from kerasmem.compression.distill.distiller import (
    HARD_WEIGHT,
    SHARE_OF_LABELS,
    TEMPERATURE,
    Distiller,
)
from kerasmem.compression.distill.losses import Logits, as_losses
from kerasmem.compression.distill.schedules import Number
from kerasmem.compression.technique import Context, Technique, no_samples
from kerasmem.compression.working import preserving
from kerasmem.errors import ConfigError
from kerasmem.files.data import (
    check_data,
    check_ends,
    check_labels,
    check_shared,
    few_inputs,
    fit_arguments,
    in_fixed_batches,
    sample_inputs,
)
from kerasmem.files.data.forms import first_samples
from kerasmem.files.data.tokens import as_samples
from kerasmem.files.load import load_model
from kerasmem.graph.clone import clone, compile_settings, unchanged_state
from kerasmem.graph.input_shapes import fixed_batch
from kerasmem.graph.outputs import as_loss, warn_if_unfit
from kerasmem.graph.values import check_finite
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Model, Optimizer, Tensor

ORIGINAL = "original"


@dataclass(frozen=True)
class Distill(Technique):
    """Knowledge distillation as a compression step.

    Trains the compressed model on `data` and on the outputs of a teacher, so that it
    recovers from pruning. Pruned weights stay zero. Use the step instead of
    `fine_tune_epochs`, or in addition.

    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network",
    2015.

    Args:
        teacher: `"original"` for the input model of `km.compress`, the path of a saved
            model, or a `keras.Model`. Defaults to `"original"`.
        epochs: Positive integer. Number of training epochs. Defaults to 1.
        losses: One or several losses of `km.distillation`, as objects, names or dicts.
            Defaults to `Logits`.
        hard_weight: Float in [0, 1]. Weight of the loss on the labels. Defaults to 0.1.

    Raises:
        ConfigError: If a value is invalid.

    Example:
        >>> Distill(epochs=3).to_json()["teacher"]
        'original'
    """

    teacher: Any = ORIGINAL
    _: KW_ONLY
    epochs: Annotated[int, Whole(1)] = 1
    losses: Any = None
    hard_weight: Annotated[float, SHARE_OF_LABELS] = HARD_WEIGHT

    name: ClassVar[str] = "distill"
    trains: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        is_name_alone = isinstance(self.teacher, str) and self.teacher.startswith(
            "<model "
        )
        if is_name_alone or not isinstance(self.teacher, (str, Path, keras.Model)):
            valid = '"original", the path of a saved model, or a keras.Model'
            raise invalid("Distill", "teacher", self.teacher, valid)
        losses = (Logits(),) if self.losses is None else as_losses(self.losses)
        self._set("losses", losses)

    def to_json(self) -> dict[str, Any]:
        """Returns the config as plain data, which `recipe.from_json` reads.

        A teacher that is a model is stored by name only and cannot be read back.
        """
        teacher = self.teacher
        is_model = isinstance(teacher, keras.Model)
        name = f"<model {teacher.name}>" if is_model else str(teacher)
        return super().to_json() | {"teacher": name}


def distill(  # noqa: PLR0913  (the public entry point of the contract)
    teacher: Model,
    student: Model,
    data: Dataset,
    *,
    epochs: int = 1,
    batch_size: int = 32,
    losses: Any = None,
    temperature: Number = TEMPERATURE,
    hard_weight: float = HARD_WEIGHT,
    teacher_weights: Any = None,
    cache: Any = None,
    validation_data: Dataset = None,
    loss: Any = None,
    optimizer: Optimizer = None,
    callbacks: Any = None,
    verbose: Any = "auto",
    seed: int | None = None,
) -> Any:
    """Trains a copy of `student` on the outputs of `teacher`.

    Each training step combines the loss on the labels with the distance to the teacher
    outputs (see `Distiller`). Neither input model is changed. A teacher without weights
    is built on the first batch.

    After training, BatchNormalization statistics of the student are re-estimated on up
    to 512 samples of `data`, because moving averages lag behind. The new statistics are
    kept if the loss on 256 other samples does not increase. Without labels, this is the
    distillation loss. Frozen BatchNormalization layers are not changed.

    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network",
    2015.

    Args:
        teacher: A trained `keras.Model`, or a list of them.
        student: The `keras.Model` to train, starting from its current weights.
        data: `x` (no labels, so only the teacher is used), `(x, y)`,
            `(x, y, sample_weight)`, a `tf.data.Dataset` or a `keras.utils.PyDataset`.
            For a student of KerasHub with a tokenizer also a list of texts, or the path
            of a `.txt` file.
        epochs: Positive integer. Number of training epochs. Defaults to 1.
        batch_size: Integer. Samples per batch, unless `data` is batched. Defaults to
            32.
        losses: One or several losses of `km.distillation`, as objects, names or dicts.
            Defaults to `Logits`.
        temperature: Temperature of `Logits`, ignored if `losses` is given: a positive
            float, a `LearningRateSchedule` or a function of the step. 2 to 8 suits most
            classifiers. Defaults to 4.
        hard_weight: Float in [0, 1]. Weight of the loss on the labels. Defaults to 0.1.
        teacher_weights: List with a weight for each teacher. `None` weights all
            teachers equally. Defaults to `None`.
        cache: Folder or `km.distillation.Cache`. Teacher outputs are stored there and
            computed once for all epochs, students and runs. Needs arrays or a
            `PyDataset` with unchanging samples.
        validation_data: Validation samples in the same forms, evaluated after each
            epoch.
        loss: Loss on the labels. Defaults to the compiled loss of the student. A name
            can have arguments: `"binary_crossentropy(from_logits=True)"`.
        optimizer: Name or `keras.optimizers.Optimizer`, which is copied. Defaults to
            the compiled optimizer of the student.
        callbacks: List of Keras callbacks. Checkpoints contain the student.
        verbose: Verbosity, as in `keras.Model.fit`. Defaults to `"auto"`.
        seed: Integer. Seed of shuffling and dropout.

    Returns:
        The trained student, compiled with its metrics and the chosen loss and
        optimizer. It has no reference to the teacher. Its attribute `history` contains
        the metrics of each epoch.

    Raises:
        ConfigError: If an argument is invalid, or the student has no loss.
        DataError: If the data does not fit the models.
        ModelError: If teacher and student are incompatible, or training produced NaN or
            infinite weights.

    Example:
        >>> layers = [keras.layers.Dense(8), keras.layers.Dense(2)]
        >>> teacher = keras.Sequential([keras.Input((4,)), *layers])
        >>> student = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> student.compile("sgd", "mse")
        >>> x, y = keras.ops.ones((8, 4)), keras.ops.ones((8, 2))
        >>> trained = distill(teacher, student, (x, y), verbose=0)
        >>> "distillation_loss" in trained.history.history
        True
    """
    teachers = list(teacher) if isinstance(teacher, (list, tuple)) else [teacher]
    check_models(teachers, student)
    Whole(1).check("distill", "epochs", epochs)
    data, validation_data = as_samples(student, data, validation_data)
    check_data(student, data)
    check_ends(data, "the training")
    check_ends(validation_data, "the validation")
    _check_weighed(data, hard_weight)
    for samples in (data, validation_data):
        if samples is not None:
            check_shared(samples, batch_size)
    size = fixed_batch(student)
    sample = sample_inputs(data, size or 1)
    for one in teachers:
        check_data(one, (first_samples(data)["x"],))  # the teacher needs no labels
        if not one.built:
            one(sample)
    data = in_fixed_batches(size, data)
    validation_data = in_fixed_batches(size, validation_data)
    with current().replicating(student), seeded(seed), unchanged_state(*teachers):
        new_student = clone(student)
        _compile_copy(new_student, loss, optimizer)
        _check_labels(new_student, data, validation_data)
        distiller = Distiller(
            teachers,
            new_student,
            losses=losses,
            temperature=temperature,
            hard_weight=hard_weight,
            teacher_weights=teacher_weights,
            sample=sample,
        )
        distiller.compile(**student_settings(new_student, data))
        original_data = data
        if cache is not None:
            answers = as_cache(cache)
            data, validation_data = distiller.answered(data, validation_data, answers)
        history = distiller.fit(
            **fit_arguments(data, batch_size),
            **_validation(validation_data, batch_size),
            epochs=epochs,
            callbacks=callbacks,
            verbose=verbose,
        )
        current().release_graphs()  # compiled graphs refer to the teacher
        reestimate_if_better(new_student, original_data, _loss(distiller), batch_size)
    check_finite(new_student, student)
    history.set_model(new_student)  # releases the teacher
    new_student.history = history
    return new_student


def with_teacher(config: Distill, context: Context) -> Distill:
    """Returns a copy of the config with its teacher loaded and checked.

    Raises:
        DataError: If the data does not fit the teacher.
        ModelError: If the outputs of teacher and student differ in shape.
        ModelFileError: If the teacher cannot be loaded.
    """
    teacher, original = config.teacher, context.original
    if isinstance(teacher, (str, Path)):
        is_original = teacher == ORIGINAL
        objects = context.custom_objects
        teacher = original if is_original else load_model(teacher, objects)
    check_data(teacher, (first_samples(context.data)["x"],))  # needs no labels
    if teacher is not original:
        sample = few_inputs(teacher, context.data)
        both = teacher, original
        with unchanged_state(*both):
            check_outputs(*(one(sample, training=False) for one in both))
    return replace(config, teacher=teacher)


def train_step(
    model: Model, config: Distill, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Trains a model by distillation in place. Returns no weight changes.

    Raises:
        ConfigError: If there is no data.
    """
    if context.data is None:
        raise no_samples(config.name)
    if not isinstance(config.teacher, keras.Model):
        if context.original is None:
            context = replace(context, original=clone(model))
        config = with_teacher(config, context)
    data = context.data
    with unchanged_state(config.teacher):
        distiller = Distiller(
            config.teacher,
            model,
            losses=config.losses,
            hard_weight=config.hard_weight,
            sample=few_inputs(model, data),
        )
        distiller.compile(**student_settings(model, data))
        fit = context.fit or {**fit_arguments(data), "verbose": 0}
        with preserving(context, context.earlier, model, distiller):
            distiller.fit(**fit, epochs=config.epochs)
    return model, []


def _check_labels(student: Model, data: Dataset, validation_data: Dataset) -> None:
    for samples in (data, validation_data):
        if samples is not None:
            check_labels(student, samples)
    if first_samples(data).get("y") is not None:
        warn_if_unfit(student)


def _check_weighed(data: Dataset, hard_weight: float) -> None:
    if hard_weight not in (0, HARD_WEIGHT) and first_samples(data).get("y") is None:
        raise ConfigError(
            "The data has no labels, so hard_weight has no effect. Received: "
            f"hard_weight={hard_weight!r}. Next: give data=(x, y), or leave out "
            "hard_weight."
        )


def _loss(distiller: Distiller) -> Loss:

    def loss(x: Tensor, y: Tensor, weight: Any) -> float:
        model = distiller if y is None else distiller.student
        with current().inference():
            return own_loss(model, (x, y, weight), model(x, training=False))

    return loss


def _compile_copy(trained: Any, loss: Any, optimizer: Optimizer) -> None:
    settings = {"loss": as_loss(loss), "optimizer": optimizer}
    changes = {name: value for name, value in settings.items() if value is not None}
    if not (trained.compiled or loss is not None):
        raise ConfigError(
            f"The student {trained.name!r} is not compiled, so it has no loss. "
            "Received: loss=None. Next: compile it, or give loss=."
        )
    if changes:
        defaults = compile_settings(trained) or {"optimizer": "adam"}
        trained.compile(**(defaults | changes))
        # Compiled again, so that the optimizer is a copy of the caller's.
        trained.compile(**(compile_settings(trained) or {}))


def student_settings(student: Model, data: Dataset) -> dict[str, Any]:
    """Returns compile settings, without loss and metrics if the data has no labels."""
    settings = compile_settings(student) or {"optimizer": "adam"}
    if first_samples(data).get("y") is None:
        settings |= {"loss": None, "loss_weights": None}
        settings |= {"metrics": None, "weighted_metrics": None}
    return settings


def _validation(data: Dataset, batch_size: int) -> dict[str, Any]:
    if data is None:
        return {}
    arguments = fit_arguments(data, batch_size)
    if "batch_size" not in arguments:
        return {"validation_data": data}
    names = ("x", "y", "sample_weight")
    return {
        "validation_data": tuple(arguments.get(name) for name in names),
        "validation_batch_size": batch_size,
    }
