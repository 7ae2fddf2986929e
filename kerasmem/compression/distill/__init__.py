"""Teaching a small model what a large one knows: `km.distill` and `km.Distill`."""

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
from kerasmem.files.load import load_model
from kerasmem.graph.clone import clone, compile_settings
from kerasmem.graph.input_shapes import fixed_batch
from kerasmem.graph.outputs import as_loss, warn_if_unfit
from kerasmem.graph.values import check_finite
from kerasmem.records import WeightChange
from kerasmem.types import Dataset, Model, Optimizer, Tensor

ORIGINAL = "original"


@dataclass(frozen=True)
class Distill(Technique):
    """Knowledge distillation as a step: train the compressed model on a teacher.

    It is the step in which a model recovers from pruning: it learns from `data` again,
    and from the model that it was. What is removed stays removed. Use it in place of
    `fine_tune_epochs`, or beside it.

    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network",
    2015.

    Args:
        teacher: `"original"` for the model that was handed to `km.compress`, the path
            of a saved model, or a model.
        epochs: passes over the data, at least 1.
        losses: what is learned of the teacher: one or several losses of
            `km.distillation`, as objects, names or plain data; None for `Logits` alone.
        hard_weight: share of the labels in the loss, in [0, 1].

    Raises:
        ConfigError: if a value cannot be used.

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
        """Return the choice as plain data; `recipe.from_json` reads it back.

        Of a teacher that is a model only the name is described.
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
    """Return a trained copy of `student`, a plain model without a trace of `teacher`.

    Every batch, the student learns how far it is from the labels and from the
    teacher's answers (see `Distiller` for the loss and what is compared). Both models
    are left as they are; a teacher without weights gets them from its first batch.

    In the end the statistics of the student's BatchNormalization are gathered anew on
    at most 512 samples of `data`, for they follow slowly in training. They are kept if
    the student's loss on the labels, without labels that of the distillation, does not
    rise by it on 256 others; frozen BatchNormalization stays as it is.

    Sources: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network",
    2015; of `"confidence"` Zhang, Chen and Wang, "Confidence-Aware Multi-Teacher
    Knowledge Distillation", 2022.

    Args:
        teacher: a trained model, or a list of them.
        student: the model to train, from the weights that it has.
        data: `x` (then only the teacher teaches), `(x, y)`, `(x, y, sample_weight)`, a
            `tf.data.Dataset` or a `keras.utils.PyDataset`.
        epochs: passes over the data, at least 1.
        batch_size: samples per step, where the data is not batched already.
        losses: what the student learns of the teacher: one or several losses of
            `km.distillation`, as objects, names or plain data; None for `Logits` alone.
        temperature: of `Logits` where no losses are given, above 0: a number, a
            `LearningRateSchedule` of Keras, or any other function of the step; 2 to 8
            suits most classifiers.
        hard_weight: share of the labels in the loss, in [0, 1].
        teacher_weights: what each of several teachers counts; None for all the same;
            `"confidence"` for less where its answer to a sample is more wrong.
        cache: a folder, or a `km.distillation.Cache`: what the teachers say is kept
            there and asked for only once, over all epochs, students and runs. For
            arrays and `PyDataset`s whose samples stay the same.
        validation_data: data of the same forms, judged after every epoch.
        loss: the student's loss on the labels, instead of its compiled one; a name may
            have arguments, as in `"binary_crossentropy(from_logits=True)"`.
        optimizer: instead of the student's compiled one; its name or a
            `keras.optimizers.Optimizer`, of which a copy is used.
        callbacks: Keras callbacks. What they save is the student.
        verbose: as in `keras.Model.fit`.
        seed: makes shuffling and dropout repeatable.

    Returns:
        The trained student, compiled with its own or the given loss and optimizer and
        with its own metrics. Its `history` holds what each epoch reported.

    Raises:
        ConfigError: if an argument has a value that cannot be used, or the student has
            no loss.
        DataError: if the data does not fit the models.
        ModelError: if teacher and student do not fit each other, or training left NaN
            or infinity in the student.

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
        check_data(one, (first_samples(data)["x"],))  # it is asked, not judged
        if not one.built:
            one(sample)
    data = in_fixed_batches(size, data)
    validation_data = in_fixed_batches(size, validation_data)
    with current().replicating(student), seeded(seed):
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
        current().release_graphs()  # which know the teacher
        reestimate_if_better(new_student, original_data, _loss(distiller), batch_size)
    check_finite(new_student, student)
    history.set_model(new_student)  # it would keep the teacher alive
    new_student.history = history
    return new_student


def with_teacher(config: Distill, context: Context) -> Distill:
    """Return the config of a step with its teacher loaded, which was asked once.

    Raises:
        DataError: if the data does not fit the teacher.
        ModelError: if the outputs of teacher and student do not fit each other.
        ModelFileError: if the teacher's file cannot be loaded.
    """
    teacher, original = config.teacher, context.original
    if isinstance(teacher, (str, Path)):
        is_original = teacher == ORIGINAL
        objects = context.custom_objects
        teacher = original if is_original else load_model(teacher, objects)
    check_data(teacher, (first_samples(context.data)["x"],))  # asked, not judged
    if teacher is not original:
        sample = few_inputs(teacher, context.data)
        check_outputs(*(one(sample, training=False) for one in (teacher, original)))
    return replace(config, teacher=teacher)


def train_step(
    model: Model, config: Distill, context: Context
) -> tuple[Any, list[WeightChange]]:
    """Return a model trained on what a teacher knows; it has no change of a weight.

    Raises:
        ConfigError: if there is no data.
    """
    if context.data is None:
        raise no_samples(config.name)
    if not isinstance(config.teacher, keras.Model):
        if context.original is None:
            context = replace(context, original=clone(model))
        config = with_teacher(config, context)
    data = context.data
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
            "The data has no labels, so the student learns from the teacher alone. "
            f"Received: hard_weight={hard_weight!r}. Next: hand in data=(x, y), or no "
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
            "Received: loss=None. Next: compile it, or hand in loss=."
        )
    if changes:
        defaults = compile_settings(trained) or {"optimizer": "adam"}
        trained.compile(**(defaults | changes))
        # Once more, so that the optimizer is a copy of the caller's.
        trained.compile(**(compile_settings(trained) or {}))


def student_settings(student: Model, data: Dataset) -> dict[str, Any]:
    """Return what a distiller is compiled with: nothing that needs labels we lack."""
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
