"""Counts that say how the house is built; each may only get better.

`python -m pytest tests/test_house.py` reads the source code and runs nothing of it.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from tests import house

pytestmark = pytest.mark.one_backend

Kind = TypeVar("Kind", bound=ast.AST)
BACKENDS = {"tensorflow", "jax", "torch"}
MOST_PATCHED_METHODS = 15
MOST_LINES, MOST_FILES = 400, 25

REQUESTED = {
    "request.backend",
    "backend",  # an argument: the name that somebody asks for
    "self.backend",  # likewise, of the ledger of an optimizer's slots
    "t.how.kernels",  # whose operations a requested backend is made of
}
"""What may be compared with the name of a backend outside of `kerasmem.backends`."""

FOREIGN = {
    "backends/mapped.py": {"mmap"},  # the operating system's
    "backends/tf_data.py": {"os"},
    "backends/steps.py": {"function"},  # the framework's compiled function
    "compression/checkpoints.py": {"leaf"},  # the user's data
    "compression/distill/features.py": {"x"},  # what a user's layer returned
    "compression/judge.py": {"labels"},
    "compression/prune/schedules.py": {"given", "schedule"},  # tfmot's
    "files/data/check.py": {"labels", "array"},
    "files/data/forms.py": {"value"},
    "files/data/source.py": {"mapping"},
    "graph/channels/families/elementwise.py": {"x"},  # an argument of an operation
    "graph/from_config.py": {"layer"},  # a user's layer
    "graph/clone.py": {"type(layer)", "value"},  # a user's layer
    "memory/estimate/scratch.py": {"os"},
    "memory/oom/fitting.py": {"leaf"},
    "memory/pipeline/stages.py": {"value"},
}
"""What `hasattr` may be asked of, by file: nothing that kerasmem itself has made."""


def nodes(kind: type[Kind]) -> Iterator[tuple[str, Kind]]:
    for source in house.sources():
        for node in ast.walk(source.tree):
            if isinstance(node, kind):
                yield source.name, node


def calls(name: str) -> list[tuple[str, ast.Call]]:
    def is_it(function: ast.expr) -> bool:
        match function:
            case ast.Name(id=called) | ast.Attribute(attr=called):
                return called == name
        return False

    return [(path, call) for path, call in nodes(ast.Call) if is_it(call.func)]


def names_a_backend(node: ast.AST) -> bool:
    inside = ast.walk(node)
    return any(isinstance(n, ast.Constant) and n.value in BACKENDS for n in inside)


def sides(node: ast.Compare | ast.Match) -> Iterator[str]:
    """Yield what a comparison with the name of a backend compares with it."""
    if isinstance(node, ast.Match):
        if any(names_a_backend(case.pattern) for case in node.cases):
            yield ast.unparse(node.subject)
        return
    both = [node.left, *node.comparators]
    if any(map(names_a_backend, both)):
        yield from (ast.unparse(side) for side in both if not names_a_backend(side))


def test_few_methods_are_patched():
    places = house.patched_methods(house.sources())
    assert len(places) <= MOST_PATCHED_METHODS, places


def test_no_name_is_one_that_the_glossary_avoids():
    assert house.glossary_hits(house.sources()) == []


def test_a_name_that_the_glossary_avoids_is_found_in_every_place(tmp_path):
    path = tmp_path / "riders.py"
    path.write_text(
        '"""Parcel."""\ndef told(given):\n    given.kept = both = 1\n    return both\n'
    )
    source = house.Source(path, tmp_path)
    assert [hit.partition(" ")[2] for hit in house.glossary_hits([source])] == [
        "riders",
        "told",
        "given",
        "kept",
        "Parcel",
    ]


def test_files_and_folders_stay_small():
    lengths = {s.name: len(s.text.splitlines()) for s in house.sources()}
    assert {name for name, lines in lengths.items() if lines > MOST_LINES} == set()
    folders = Counter(name.rpartition("/")[0] for name in lengths)
    assert max(folders.values()) <= MOST_FILES, folders.most_common(1)


@pytest.mark.parametrize("kind", [ast.Compare, ast.Match])
def test_only_a_requested_backend_is_compared_with_a_name(kind):
    found = [
        f"{path}:{node.lineno}: {side}"
        for path, node in nodes(kind)
        if not path.startswith("backends/")
        for side in sides(node)
        if side not in REQUESTED
    ]
    assert found == []


def test_nothing_of_ours_is_asked_what_it_has():
    found = [
        f"{path}:{call.lineno}: {asked}"
        for path, call in calls("hasattr")
        if (asked := ast.unparse(call.args[0])) not in FOREIGN.get(path, ())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "compared"),
    [
        ("keras.backend.backend() == 'jax'", ["keras.backend.backend()"]),
        ("'torch' != current().name", ["current().name"]),
        ("name in ('jax', 'torch')", ["name"]),
        ("kind == 'gpu'", []),
        ("match name:\n case 'jax' | 'torch': pass", ["name"]),
    ],
)
def test_a_comparison_is_found_in_any_form(code, compared):
    kinds: tuple[Callable[..., ast.AST], ...] = (ast.Compare, ast.Match)
    (node,) = [n for n in ast.walk(ast.parse(code)) if isinstance(n, kinds)]
    assert list(sides(node)) == compared
