"""Cycles of modules that import each other, imports inside functions included."""

import ast
from collections.abc import Iterator, Mapping

from tests.scopes import Function, last, nodes


def cycles(modules: Mapping[str, ast.AST]) -> list[list[str]]:
    """Return groups of modules each of which imports all others, the largest first.

    Args:
        modules: The syntax trees of a package by dotted name.
    """
    direct = {name: imported(name, modules) - {name} for name in modules}
    reached = {name: _reached(name, direct) for name in modules}
    groups = {
        tuple(sorted(other for other in others if name in reached[other]))
        for name, others in reached.items()
        if name in others
    }
    return sorted(map(list, groups), key=lambda group: (-len(group), group))


def imported(
    name: str, modules: Mapping[str, ast.AST], *, at_start: bool = False
) -> set[str]:
    """Return the modules that a module imports, but for type checking.

    An import by `importlib.import_module` counts too, except in the package's own
    `__init__.py`, which imports public names when they are used. Names that
    `kerasmem.optional.feature` resolves are not followed: `kerasmem/registered.py`
    lists them.

    Args:
        name: The module.
        modules: The syntax trees of the package by dotted name.
        at_start: Whether to leave out imports inside functions.
    """
    is_package = "." not in name
    names: set[str] = set()
    for node in _running(modules[name], at_start=at_start):
        match node:
            case ast.Import(names=aliases):
                names.update(alias.name for alias in aliases)
            case ast.ImportFrom(module=str(source), names=aliases):
                parts = {f"{source}.{alias.name}" for alias in aliases}
                is_all = parts <= modules.keys()
                names |= parts if is_all else {source, *parts}
            case ast.Call(args=[ast.Constant(value=str(text)), *_]) if not is_package:
                if last(node) in ("import_module", "__import__"):
                    names |= _named(text, modules)
    return names & modules.keys()


def _named(text: str, modules: Mapping[str, ast.AST]) -> set[str]:
    """Return the modules that a text may name; it may begin with a dot."""
    relative = "." + text.lstrip(".")
    return {text} | {m for m in modules if text[:1] == "." and m.endswith(relative)}


def _running(tree: ast.AST, *, at_start: bool) -> Iterator[ast.AST]:
    """Yield the nodes of a module, but for blocks of `if TYPE_CHECKING`."""
    skipped: set[ast.AST] = set()
    for node in nodes(tree):
        is_for_types = isinstance(node, ast.If) and last(node.test) == "TYPE_CHECKING"
        if is_for_types or (at_start and isinstance(node, Function)):
            skipped.update(below for each in node.body for below in ast.walk(each))
        if node not in skipped:
            yield node


def _reached(start: str, direct: Mapping[str, set[str]]) -> set[str]:
    """Return the modules that are imported from one, directly or not."""
    reached: set[str] = set()
    waiting = [*direct[start]]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += direct[name]
    return reached
