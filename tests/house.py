"""Counts of the house: `python -m tests.house`, or `nox -s count`.

Counts read the source code and run nothing of it. A line of code is one that holds a
token which is neither a comment nor part of a docstring. A text under an attribute is a
docstring, too.

`tests/rooms.toml` holds the number of code lines that each room may have. `python -m
tests.house --lower` writes the smaller figures after a change that removed code. Larger
ones are written by hand, with a reason.
"""

import ast
import io
import re
import tokenize
from argparse import ArgumentParser
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import median
from typing import Any

from tests.imports import cycles
from tests.prose import VAGUE_ARGUMENT, Prose, is_message, participles
from tests.replaced import places
from tests.scopes import nodes

ROOT = Path(__file__).parents[1]
RATCHET = Path("tests/rooms.toml")
BASE = "b220913"
"""The table of the ratchet file with the figures that larger ones are compared with."""
RIM = "extras"
"""The folder of optional features; each folder in it is a room."""
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "kerasmem/**/README.md",
)
_LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


@dataclass(frozen=True)
class Source:
    """One module as text, tokens and syntax tree.

    Args:
        path: Path of the file.
        home: Folder of the package.
    """

    path: Path
    home: Path = ROOT / "kerasmem"

    @cached_property
    def text(self) -> str:
        """The content of the file."""
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the syntax tree."""
        return nodes(self.tree)

    @cached_property
    def _by_kind(self) -> dict[type[ast.AST], list[ast.AST]]:
        kinds: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        for node in self.nodes:
            kinds[type(node)].append(node)
        return kinds

    def of(self, *kinds: type[ast.AST]) -> list[Any]:
        """Return the nodes of some kinds."""
        return [node for kind in kinds for node in self._by_kind[kind]]

    @property
    def name(self) -> str:
        """Path below the package, with slashes."""
        return self.path.relative_to(self.home).as_posix()

    @property
    def module(self) -> str:
        """Name of the module, with dots."""
        parts = self.path.relative_to(self.home.parent).with_suffix("").parts
        return ".".join(parts).removesuffix(".__init__")

    @property
    def room(self) -> str:
        """The first folder below the package, below `extras` the first two."""
        *folders, _ = self.path.relative_to(self.home).parts
        return "/".join(folders[: 2 if folders[:1] == [RIM] else 1]) or "."

    @cached_property
    def docstrings(self) -> list[ast.Constant]:
        """Statements that are a text alone."""
        values = [node.value for node in self.of(ast.Expr)]
        constants = [value for value in values if isinstance(value, ast.Constant)]
        return [value for value in constants if isinstance(value.value, str)]

    @cached_property
    def docstring_lines(self) -> set[int]:
        """Numbers of the lines of docstrings, from 1."""
        spans = [range(x.lineno, x.end_lineno + 1) for x in self.docstrings]
        return {line for span in spans for line in span}

    @cached_property
    def messages(self) -> list[ast.Constant]:
        """Sentences in the code, and parts of sentences."""
        skipped = set(self.docstrings)
        texts = [node for node in self.of(ast.Constant) if is_message(node)]
        return [text for text in texts if text not in skipped]

    @cached_property
    def _tokens(self) -> list[tokenize.TokenInfo]:
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    @cached_property
    def comment_lines(self) -> set[int]:
        """Numbers of the lines with a comment."""
        return {t.start[0] for t in self._tokens if t.type == tokenize.COMMENT}

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        """Tokens of code."""
        code = [token for token in self._tokens if token.type not in _LAYOUT]
        return [token for token in code if token.start[0] not in self.docstring_lines]

    @cached_property
    def code_lines(self) -> set[int]:
        """Numbers of the lines with code."""
        lines = enumerate(map(str.strip, self.text.splitlines()), 1)
        code = {n for n, line in lines if line and not line.startswith("#")}
        for node in self.of(ast.Constant, ast.JoinedStr):
            # A line of a text counts, whatever it holds.
            code.update(range(node.lineno, node.end_lineno + 1))
        return code - self.docstring_lines

    @cached_property
    def identifiers(self) -> list[tuple[str, int]]:
        """Names that the module defines, but for local variables, with their lines."""
        names = [(self.path.stem, 1)]
        for node in self.nodes:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    names.append((node.name, node.lineno))
                case ast.arg():
                    names.append((node.arg, node.lineno))
                case ast.Attribute(ctx=ast.Store()):
                    names.append((node.attr, node.lineno))
                case _:
                    pass
        return names


@cache
def sources(root: Path = ROOT) -> list[Source]:
    """Return every module of the package, by path."""
    home = root / "kerasmem"
    return [Source(path, home) for path in sorted(home.rglob("*.py"))]


def avoided(root: Path = ROOT) -> tuple[set[str], set[str]]:
    """Return the glossary's words to avoid: identifiers, and words in any text."""
    text = (root / "docs/glossary.md").read_text().partition("## Units")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    identifiers = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    (coined,) = re.findall(r"^Coined words[^:]*: (.*)$", text, re.MULTILINE)
    return identifiers, set(re.findall(r"`([^`]+)`", coined))


def glossary_hits(modules: list[Source], root: Path = ROOT) -> list[str]:
    """Return places where a word of the glossary's left column is used."""
    identifiers, coined = avoided(root)
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, coined))})\b")
    hits = [
        f"{module.name}:{line}: {name}"
        for module in modules
        for name, line in module.identifiers
        if name.strip("_") in identifiers
    ]
    for module in modules:
        for number, line in enumerate(module.text.splitlines(), 1):
            hits += [f"{module.name}:{number}: {hit}" for hit in pattern.findall(line)]
    return hits


@cache
def rooms(root: Path = ROOT) -> Counter[str]:
    """Return the number of code lines of each room."""
    lines: Counter[str] = Counter()
    for source in sources(root):
        lines[source.room] += len(source.code_lines)
    return lines


def is_rim(room: str) -> bool:
    """Return whether a room holds optional features."""
    return room.partition("/")[0] == RIM


@cache
def import_cycles(root: Path = ROOT) -> list[list[str]]:
    """Return the groups of modules that import each other."""
    return cycles({source.module: source.tree for source in sources(root)})


@cache
def replaced(root: Path = ROOT) -> list[str]:
    """Return the places that replace a method or a class."""
    return places({source.name: source.tree for source in sources(root)})


def pages(root: Path = ROOT) -> list[Path]:
    """Return the files of all pages."""
    return [path for pattern in PAGES for path in sorted(root.glob(pattern))]


@cache
def prose(root: Path = ROOT) -> dict[str, Prose]:
    """Return words and patterns of docstrings, messages and pages."""
    texts = {name: Prose() for name in ("docstrings", "messages", "pages")}
    for source in sources(root):
        for text in source.docstrings:
            texts["docstrings"].add(source.name, text.value)
        for text in source.messages:
            texts["messages"].add(source.name, text.value)
    for path in pages(root):
        texts["pages"].add(path.relative_to(root).as_posix(), path.read_text())
    return texts


@cache
def local_names(root: Path = ROOT) -> Counter[str]:
    """Return how often a local variable is named by a participle alone."""
    return participles(source.tree for source in sources(root))


def figures(root: Path = ROOT) -> dict[str, int]:
    """Return the figures of today that the ratchet file bounds."""
    return {**rooms(root), "participles": local_names(root).total()}


def lowered(text: str, today: dict[str, int]) -> str:
    """Return the ratchet file with smaller figures, and without rooms that are gone.

    The figures of the table `b220913` stay.

    Args:
        text: The content of the file.
        today: The figures of today by name.
    """
    lines, table = [], ""
    for line in text.splitlines():
        table = line if line.startswith("[") else table
        key, is_entry, value = line.partition(" = ")
        name = key.strip('"')
        if not is_entry or line.startswith("#") or table.startswith(f"[{BASE}]"):
            lines.append(line)
        elif name in today:
            is_figure = value.isdecimal()
            lines.append(
                f"{key} = {min(int(value), today[name])}" if is_figure else line
            )
    return "\n".join(lines) + "\n"


def counts(root: Path = ROOT) -> dict[str, object]:
    """Return the figures of the house, in the order in which they are printed."""
    modules = sources(root)
    lines = rooms(root)
    lengths = {module.name: len(module.text.splitlines()) for module in modules}
    folders = Counter(name.rpartition("/")[0] or "." for name in lengths)
    longest = max(lengths, key=lengths.__getitem__)
    ((fullest, files),) = folders.most_common(1)
    rim = sum(number for room, number in lines.items() if is_rim(room))
    return {
        "modules": len(modules),
        "lines of code": lines.total(),
        "  core": lines.total() - rim,
        "  rim": rim,
        **{f"    {room}": number for room, number in lines.most_common()},
        "tokens of code": sum(len(m.tokens) for m in modules),
        "lines of docstrings": sum(len(m.docstring_lines) for m in modules),
        "lines with a comment": sum(len(m.comment_lines) for m in modules),
        "median lines a module": int(median(lengths.values())),
        "longest module": f"{lengths[longest]} ({longest})",
        "fullest folder": f"{files} ({fullest})",
        "words the glossary avoids": len(glossary_hits(modules, root)),
        "import cycles": len(import_cycles(root)),
        **{
            f"  {number}. of {len(group)}": " ".join(m.partition(".")[2] for m in group)
            for number, group in enumerate(import_cycles(root), 1)
        },
        "replaced methods and classes": len(replaced(root)),
        **_counts_of_language(root),
    }


def _counts_of_language(root: Path) -> dict[str, object]:
    lines: dict[str, object] = {}
    for kind, texts in prose(root).items():
        hits = ", ".join(f"{name} {n}" for name, n in texts.hits.most_common())
        rate = f"{texts.rate:.1f} per 1,000 of {texts.words} words"
        lines[f"patterns in {kind}"] = f"{rate}: {hits}"
    docstrings = [text.value for source in sources(root) for text in source.docstrings]
    vague = sum(len(re.findall(VAGUE_ARGUMENT, text)) for text in docstrings)
    names = local_names(root)
    common = ", ".join(f"{name} {n}" for name, n in names.most_common(12))
    return lines | {
        "arguments without a noun": vague,
        "participles as local names": f"{names.total()}: {common}",
    }


def places_to_look_at(root: Path = ROOT) -> Iterator[str]:
    """Yield replaced methods, avoided words, and where most of the others are."""
    yield from replaced(root)
    yield from glossary_hits(sources(root), root)
    for kind, texts in prose(root).items():
        worst = ", ".join(f"{name} {n}" for name, n in texts.files.most_common(10))
        yield f"most patterns in {kind}: {worst}"
    names = ", ".join(f"{name} {n}" for name, n in local_names(root).most_common())
    yield f"local names: {names}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, or write the smaller ones to the ratchet file."""
    parser = ArgumentParser(prog="python -m tests.house", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="root of the project")
    parser.add_argument("--places", action="store_true", help="print places as well")
    parser.add_argument("--lower", action="store_true", help=f"lower {RATCHET}")
    options = parser.parse_args(arguments)
    if options.lower:
        file = options.root / RATCHET
        file.write_text(lowered(file.read_text(), figures(options.root)))
        return
    for title, value in counts(options.root).items():
        print(f"{title:28} {value}")
    for line in places_to_look_at(options.root) if options.places else ():
        print(line)


if __name__ == "__main__":
    main()
