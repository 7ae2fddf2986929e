"""`kerasmem distill`: train a student model with a teacher model."""

from argparse import Namespace
from dataclasses import asdict
from typing import Any

from kerasmem.cli.command import (
    DATA,
    IMPORT,
    LOSS,
    METRIC,
    OUTPUT,
    REPORT,
    SEED,
    CommandResult,
    at_least,
    batch_of,
    command,
    option,
    origin_of,
    say,
    varied,
)
from kerasmem.errors import ConfigError
from kerasmem.records.regular import check_output


@command(
    "distill",
    "Train a small student model with a large teacher model.",
    option("teacher", metavar="TEACHER", help="Trained model file."),
    option(
        "student",
        metavar="STUDENT",
        nargs="?",
        help="Untrained or trained model file; or use --student-ratio.",
    ),
    option(
        "--student-ratio",
        type=float,
        metavar="X",
        help="Float in (0, 1). Creates a narrower student with this fraction of the "
        "teacher's parameters.",
    ),
    OUTPUT,
    varied(
        DATA,
        "Without a test split, the last tenth of arrays is held out.",
        required=True,
    ),
    LOSS,
    METRIC,
    option(
        "--epochs",
        type=at_least(1),
        default=1,
        metavar="N",
        help="Number of training epochs (default: 1).",
    ),
    batch_of(32),
    option(
        "--cache",
        metavar="DIR",
        help="Folder for the teacher's outputs, reused by later runs (default: no "
        "cache).",
    ),
    option(
        "--temperature",
        type=float,
        default=4.0,
        metavar="X",
        help="Float above 0. Higher values emphasize small probabilities (default: "
        "4.0).",
    ),
    SEED,
    REPORT,
    IMPORT,
)
def distill(options: Namespace) -> CommandResult:
    """Train and save the student, and compare it with its teacher."""
    from kerasmem.compression.distill import distill as train_student
    from kerasmem.files import save_model
    from kerasmem.report.progress import FitProgress

    check_output(options.output, ".keras")
    if options.report:
        check_output(options.report, ".html")
    if (options.student is None) == (options.student_ratio is None):
        raise ConfigError(
            "Expected either a student file or --student-ratio. Received: "
            f"STUDENT={options.student!r}, --student-ratio={options.student_ratio!r}."
        )
    teacher, student, train, test = _load(options)
    say("distilling")
    new_student = train_student(
        teacher,
        student,
        train,
        epochs=options.epochs,
        batch_size=options.batch_size,
        temperature=options.temperature,
        cache=options.cache,
        callbacks=[FitProgress()],
        verbose=0,
        seed=options.seed,
    )
    save_model(new_student, options.output)
    models = {"teacher": teacher, "student": new_student}
    return _outcome(options, models, test)


def _load(options: Namespace) -> tuple[Any, Any, Any, Any]:
    from kerasmem.cli.evaluation import check_judging, compile_for, split_to_judge
    from kerasmem.compression.student import make_student
    from kerasmem.files import load_model
    from kerasmem.files.data import load_data

    teacher = load_model(options.teacher)
    if options.student is not None:
        student = load_model(options.student)
    else:
        student = make_student(teacher, options.student_ratio)
    splits = load_data(options.data)
    train, test = splits.train, splits.test
    for name, model in (("teacher", teacher), ("student", student)):
        compile_for(model, options.loss, options.metrics)
        check_judging(model, train, options.batch_size, name)
    if test is None:
        train, test = split_to_judge(train)
    for model in (teacher, student):
        check_judging(model, test, options.batch_size)
    return teacher, student, train, test


def _outcome(options: Namespace, models: dict[str, Any], test: Any) -> CommandResult:
    from kerasmem.cli.evaluation import file_sentence, of_its_file
    from kerasmem.compression.judge import chance_of, far_worse
    from kerasmem.compression.measure import measure
    from kerasmem.records.comparison import comparison_table

    say("measuring teacher and student")
    figures = {
        name: measure(model, test, options.batch_size) for name, model in models.items()
    }
    figures["teacher"] = of_its_file(figures["teacher"], options.teacher)
    teacher, student = (figure.metrics for figure in figures.values())
    warning = far_worse(teacher, student, chance_of(models["teacher"], test))
    if options.report:
        from kerasmem.report.compression import Page, write_page

        page = Page(
            f"{options.output.name}, distilled",
            figures,
            origin=origin_of(options),
            warning=warning or "",
        )
        write_page(options.report, page)
    data = {
        "teacher": options.teacher,
        "output": str(options.output),
        "warning": warning,
        "figures": {name: asdict(figure) for name, figure in figures.items()},
    }
    first = (warning,) if warning else ()
    table = comparison_table(figures, str(options.output))
    sizes = (figures["teacher"].file_bytes, figures["teacher"].optimizer_file_bytes)
    file = file_sentence("Teacher file", *sizes)
    return CommandResult(data, (*first, table, file))
