"""Counts of the house: `python -m tests.house`, or `nox -s count`.

Counts read the source code and run nothing of it. A line of code is one that holds a
token which is neither a comment nor part of a docstring.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
HOME = Path(str(find_spec("kerasmem").origin)).parent
GLOSSARY = ROOT / "docs" / "glossary.md"
PATCHES = ("patch_method",)
"""What replaces a method of an object that is not ours."""
_LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Source:
    """One module as text, tokens and syntax tree.

    Args:
        path: of the file.
        home: the folder that its name begins below.
    """

    path: Path
    home: Path = HOME

    @cached_property
    def text(self) -> str:
        """Everything that the file holds."""
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @property
    def name(self) -> str:
        """Path below the package, with slashes."""
        return self.path.relative_to(self.home).as_posix()

    @cached_property
    def docstring_lines(self) -> set[int]:
        """Numbers of lines of docstrings, from 1."""
        lines: set[int] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
                lines.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
        return lines

    @cached_property
    def _tokens(self) -> list[tokenize.TokenInfo]:
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    @cached_property
    def comment_lines(self) -> set[int]:
        """Numbers of lines with a comment."""
        return {t.start[0] for t in self._tokens if t.type == tokenize.COMMENT}

    @cached_property
    def code_lines(self) -> set[int]:
        """Numbers of lines with code."""
        lines: set[int] = set()
        for token in self._tokens:
            if token.type not in _LAYOUT:
                lines.update(range(token.start[0], token.end[0] + 1))
        return lines - self.docstring_lines

    @cached_property
    def identifiers(self) -> list[tuple[str, int]]:
        """Names that the module gives, with their lines; a local variable has none."""
        found = [(self.path.stem, 1)]
        for node in ast.walk(self.tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    found.append((node.name, node.lineno))
                case ast.arg():
                    found.append((node.arg, node.lineno))
                case ast.Attribute(ctx=ast.Store()):
                    found.append((node.attr, node.lineno))
                case _:
                    pass
        return found


def sources() -> list[Source]:
    """Return every module of the package, by path."""
    return [Source(path) for path in sorted(HOME.rglob("*.py"))]


def avoided() -> tuple[set[str], set[str]]:
    """Return the glossary's words to avoid: identifiers, and words in any text."""
    text = GLOSSARY.read_text().partition("## Units")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    identifiers = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    (coined,) = re.findall(r"^Coined words[^:]*: (.*)$", text, re.MULTILINE)
    return identifiers, set(re.findall(r"`([^`]+)`", coined))


def glossary_hits(modules: list[Source]) -> list[str]:
    """Return places where a word of the glossary's left column is used."""
    identifiers, coined = avoided()
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


def patched_methods(modules: list[Source]) -> list[str]:
    """Return places that replace a method of an object that is not ours."""
    return [
        f"{module.name}:{node.lineno}"
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in PATCHES
    ]


def counts() -> dict[str, object]:
    """Return the figures of the house, in the order in which they are printed."""
    modules = sources()
    code = {module.name: len(module.code_lines) for module in modules}
    lengths = {module.name: len(module.text.splitlines()) for module in modules}
    folders = Counter(name.rpartition("/")[0] or "." for name in code)
    longest = max(lengths, key=lengths.__getitem__)
    ((fullest, files),) = folders.most_common(1)
    return {
        "modules": len(modules),
        "lines of code": sum(code.values()),
        "lines of docstrings": sum(len(m.docstring_lines) for m in modules),
        "lines with a comment": sum(len(m.comment_lines) for m in modules),
        "median lines a module": int(median(lengths.values())),
        "longest module": f"{lengths[longest]} ({longest})",
        "fullest folder": f"{files} ({fullest})",
        "patched methods": len(patched_methods(modules)),
        "words the glossary avoids": len(glossary_hits(modules)),
    }


if __name__ == "__main__":
    for title, value in counts().items():
        print(f"{title:28} {value}")
