"""Tasks: `nox -s fast`, `full`, `lint`, `site`, `fuzz`, `gpu`, `count`."""

import nox

nox.options.sessions = ["lint", "fast"]
nox.options.reuse_existing_virtualenvs = True
BACKENDS = ("tensorflow", "jax", "torch")
TESTS = ("python", "-m", "pytest", "-n", "2", "--dist", "loadfile")


def install(session: nox.Session) -> None:
    """Install the package with everything that development needs."""
    session.install("torch==2.13.0")  # a wider choice fetches gigabytes of GPU code
    session.install("-e", ".[dev,jax,torch]")


def on(backend: str) -> dict[str, str]:
    """Return the environment of one lane."""
    return {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}


@nox.session
def fast(session: nox.Session) -> None:
    """Every capability on TensorFlow: the README's test line."""
    session.install("-e", ".[test]")
    session.run(*TESTS, "-m", "not slow", *session.posargs, env=on("tensorflow"))


@nox.session
@nox.parametrize("backend", BACKENDS)
def full(session: nox.Session, backend: str) -> None:
    """The whole suite on one backend: `nox -s "full(backend='jax')"`."""
    install(session)
    session.run(*TESTS, *session.posargs, env=on(backend))


@nox.session
def lint(session: nox.Session) -> None:
    """Format, lint, import contract and types."""
    install(session)
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("lint-imports")
    session.run("pyright")


@nox.session
def site(session: nox.Session) -> None:
    """The site into `site/`; a warning or a lost link is an error."""
    session.install("-e", ".[docs]")
    session.run("mkdocs", "build", "--strict")


@nox.session
def fuzz(session: nox.Session) -> None:
    """Random graphs, damaged files and folders: `nox -s fuzz -- --minutes 10`."""
    install(session)
    for lane in ("graphs", "files", "states"):
        command = ("python", "-m", "tests.fuzz", lane)
        session.run(*command, *session.posargs, env=on("tensorflow"))


@nox.session
def gpu(session: nox.Session) -> None:
    """The tests that need a GPU, with the frameworks that the environment has."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "pytest", "-m", "gpu", *session.posargs)


@nox.session
def count(session: nox.Session) -> None:
    """Count lines, import cycles, replaced methods and patterns of language."""
    session.run("python", "-m", "tests.house")
