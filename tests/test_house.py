"""Counts that say how the house is built; each may only get better.

`python -m pytest tests/test_house.py` reads the source code and runs nothing of it.
"""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from kerasmem.checks import BACKENDS
from tests import house
from tests.imports import cycles, imported
from tests.prose import Prose, long_sentences, participles

pytestmark = pytest.mark.one_backend

Kind = TypeVar("Kind", bound=ast.AST)
MOST_REPLACED = 26
"""To be lowered to 15."""
MOST_CYCLES = 0
"""Groups of modules that import each other, to be lowered to 0."""
MOST_PATTERNS = {"docstrings": 0.1, "messages": 0.2, "pages": 0.2}
"""Per 1,000 words. These limits may only fall."""
MOST_LONG_SENTENCES = {"docstrings": 4, "messages": 4, "pages": 5}
"""Citations, tables of names and the text of a license."""
MOST_PAGE_WORDS, MOST_DOCSTRING_LINES = 38_000, 14_500
MOST_LINES, MOST_FILES = 400, 25
DOORS = {
    f"kerasmem.{name}" for name in ("layers", "optimizers", "public", "registered")
}
"""Modules of the core that may import extras, or each other, outside of functions."""
SLACK = 30
"""Lines that a figure of the ratchet file may be above the size of its room."""

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
    "memory/pipeline/inspect.py": {"value"},
}
"""What `hasattr` may be asked of, by file: nothing that kerasmem itself has made."""


def nodes(kind: type[Kind]) -> Iterator[tuple[str, Kind]]:
    for source in house.sources():
        for node in source.nodes:
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


def ratchet() -> dict[str, dict]:
    return tomllib.loads((house.ROOT / house.RATCHET).read_text())


def test_rooms_and_local_names_stay_below_their_figures():
    file = ratchet()
    allowed = {**file["rooms"], **file["names"]}
    larger = {
        name: f"{figure}, allowed are {allowed.get(name, 0)}"
        for name, figure in house.figures().items()
        if figure > allowed.get(name, 0)
    }
    assert larger == {}, "Write larger figures and the reasons to tests/rooms.toml."


def test_figures_follow_a_house_that_shrinks():
    file, today = ratchet(), house.figures()
    too_large = {
        name: f"{figure}, today {today.get(name, 'none')}"
        for name, figure in {**file["rooms"], **file["names"]}.items()
        if name not in today or figure > today[name] + SLACK
    }
    assert too_large == {}, "Run `python -m tests.house --lower`."


def test_each_figure_above_that_of_b220913_has_a_reason():
    file = ratchet()
    allowed, before = {**file["rooms"], **file["names"]}, file[house.BASE]
    larger = {name for name, n in allowed.items() if n > before.get(name, 0)}
    assert larger == file["reasons"].keys()
    assert all(len(text.split()) > 3 for text in file["reasons"].values())


def test_figures_are_lowered_and_never_raised():
    text = (
        "# Rooms.\n[rooms]\nbig = 90\nsmall = 5\n"
        '"extras/old" = 7\n"extras/new" = 8\n\n[b220913]  # Then.\nbig = 99\n'
        "[reasons]\n"
        'small = "It reads a = b."\n"extras/old" = "It was needed."\n'
    )
    assert house.lowered(text, {"big": 80, "small": 6, "extras/new": 8}) == (
        "# Rooms.\n[rooms]\nbig = 80\nsmall = 5\n"
        '"extras/new" = 8\n\n[b220913]  # Then.\nbig = 99\n[reasons]\n'
        'small = "It reads a = b."\n'
    )


def test_lines_are_counted_by_room_without_docstrings_and_comments(tmp_path):
    home = tmp_path / "kerasmem"
    (home / "extras/plans").mkdir(parents=True)
    (home / "files").mkdir()
    (home / "top.py").write_text('x = 1\n"""An attribute."""\n')
    (home / "extras/plans/a.py").write_text(
        '"""A module."""\n\n# Why.\ndef f():\n    """Do.\n\n    More.\n    """\n'
        '    return """a\n\n# b"""  # why\n'
    )
    (home / "files/b.py").write_text("y = (\n    1,\n\n    2,\n)\n")
    assert house.rooms(tmp_path) == {".": 1, "extras/plans": 4, "files": 4}
    assert list(map(house.is_rim, house.rooms(tmp_path))) == [True, False, False]
    assert [len(s.tokens) for s in house.sources(tmp_path)] == [7, 8, 3]


def test_few_groups_of_modules_import_each_other():
    groups = house.import_cycles()
    assert len(groups) <= MOST_CYCLES, groups


@pytest.mark.parametrize(
    ("code", "is_cycle"),
    [
        ("import kerasmem.b", True),
        ("from kerasmem import b", True),
        ("from kerasmem.b import name", True),
        ("def f():\n    from kerasmem.b import name", True),
        ("import importlib\nx = importlib.import_module('kerasmem.b')", True),
        ("x = import_module('.b', __package__)", True),
        ("if TYPE_CHECKING:\n    from kerasmem.b import name", False),
        ("if typing.TYPE_CHECKING:\n    pass\nelse:\n    import kerasmem.b", True),
        ("import_module('json')", False),
        ("import kerasmem.c", False),
    ],
)
def test_a_cycle_is_found_by_any_import(code, is_cycle):
    codes = {"kerasmem.a": code, "kerasmem.b": "import kerasmem.a", "kerasmem.c": ""}
    codes["kerasmem"] = "import_module('kerasmem.a')"
    modules = {name: ast.parse(text) for name, text in codes.items()}
    assert cycles(modules) == [["kerasmem.a", "kerasmem.b"]] * is_cycle


def test_few_methods_and_classes_are_replaced():
    places = house.replaced()
    assert len(places) <= MOST_REPLACED, places


def test_each_replacement_has_a_comment_with_the_issue_or_that_none_is_known():
    silent = []
    for place in house.replaced():
        path, line, _ = place.split(":", 2)
        code = (house.ROOT / "kerasmem" / path).read_text().splitlines()
        above = " ".join(code[max(int(line) - 12, 0) : int(line)])
        if not re.search("# .*issue", above):
            silent.append(place)
    assert silent == []


def test_texts_have_few_patterns_of_translated_english():
    rates = {kind: texts.rate for kind, texts in house.prose().items()}
    assert {k: r for k, r in rates.items() if r > MOST_PATTERNS[k]} == {}


def test_sentences_and_cells_are_short():
    long = {kind: texts.long for kind, texts in house.prose().items()}
    assert {k: s for k, s in long.items() if len(s) > MOST_LONG_SENTENCES[k]} == {}


def test_pages_and_docstrings_do_not_grow():
    assert (
        sum(len(page.read_text().split()) for page in house.pages()) < MOST_PAGE_WORDS
    )
    lines = sum(len(source.docstring_lines) for source in house.sources())
    assert lines < MOST_DOCSTRING_LINES


def test_long_sentences_are_found_in_text_lists_and_tables():
    short, long = "word " * 25, "word " * 26
    text = f"{short}. {short}\n\n- {short}\n| {short} | {short} |\n    x: {short}"
    assert long_sentences(text) == [], text
    for text in (
        f"Yes. {long}.",
        f"- {long}",
        f"| a | {long} |",
        f"Args:\n  x: {long}",
    ):
        assert len(long_sentences(f"\n{text}\n")) == 1, text


def test_patterns_are_counted_outside_of_code():
    texts = Prose()
    texts.add("a.md", "Of what it says, `what` is a part.\n\n```\nwhat\n```\n")
    texts.add("b.md", ">>> what\nThat of all, made of it. Of which one? As of old.")
    assert +texts.hits == {
        "what": 1,
        "tell, told, says": 1,
        "that of": 1,
        "of which": 1,
        "begins with Of": 2,
    }
    assert texts.files == {"a.md": 3, "b.md": 3}


def test_a_participle_alone_is_found_among_local_names():
    code = (
        "found = 1\ndef f(given):\n    found, (_kept, *told) = 1, (2, 3)\n"
        "    for asked in seed: need = found\n    made_layers = [done for done in x]\n"
        "    self.left = 1\n    with a as held: return (saved := lambda kept: 1)\n"
    )
    names = ["_kept", "asked", "done", "found", "held", "saved", "told"]
    assert sorted(participles([ast.parse(code)]).elements()) == names


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


def imports_of_extras(modules: dict[str, ast.Module]) -> dict[str, set[str]]:
    """What modules of the core import of extras or of the doors, outside functions."""
    upper = {n for n in modules if n.startswith("kerasmem.extras")} | DOORS
    hits = {n: imported(n, modules, at_start=True) & upper for n in modules}
    return {name: names for name, names in hits.items() if names and name not in upper}


def test_the_core_imports_extras_only_inside_functions():
    assert imports_of_extras({s.module: s.tree for s in house.sources()}) == {}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import kerasmem.extras.plans as plans", "kerasmem.extras.plans"),
        ("from kerasmem.extras import plans", "kerasmem.extras.plans"),
        ("from kerasmem import extras", "kerasmem.extras"),
        (
            "try: from kerasmem.extras.plans import x\nfinally: f()",
            "kerasmem.extras.plans",
        ),
        ("if a:\n with b:\n  import kerasmem.extras.plans", "kerasmem.extras.plans"),
        ("class A:\n import kerasmem.extras.plans", "kerasmem.extras.plans"),
        ("from kerasmem.layers import ChunkedVocabulary", "kerasmem.layers"),
        ("def f(): import kerasmem.extras.plans", None),
        ("class A:\n async def f(self): import kerasmem.extras.plans", None),
        ("if TYPE_CHECKING:\n import kerasmem.extras.plans", None),
    ],
)
def test_an_import_of_extras_is_found_in_any_statement(code, name):
    names = {"kerasmem", "kerasmem.extras", "kerasmem.extras.plans", *DOORS}
    modules = dict.fromkeys(names, ast.parse("import kerasmem.extras.plans"))
    modules |= {"kerasmem": ast.parse(""), "kerasmem.cli": ast.parse(code)}
    assert imports_of_extras(modules) == ({"kerasmem.cli": {name}} if name else {})


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
