"""Places that replace a method or a class of an object, found in the syntax tree.

An assignment to an attribute is looked at in any form: `x.name = value`, `setattr`,
`object.__setattr__`, `vars(x)["name"] = value`, and a call of a function of the package
that assigns an attribute by its own arguments. It counts if one of these holds:

- The attribute is `__class__`, or has the name of a class.
- The value is a function, a bound method or a callable object, and the object is not
  the method's own `self` or `cls`.
- The attribute is a method or a class attribute of Keras, or a compiled step.
- The name of the attribute is not a constant, or is in a starred argument.
- It passes by the object's own `__setattr__` and is put back in the same function.

An attribute that Keras declares as a property with a setter, such as `trainable`, never
counts, nor does putting back a saved value. Calls of `patch_method` and of
`unittest.mock.patch` count as well.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.scopes import Function, Scope, assignments, dotted, last, scopes

PATCHES = {"patch_method", "shadow"}
KERAS = (
    "backend/common/variables.py",
    "callbacks/callback.py",
    "layers/layer.py",
    "losses/loss.py",
    "metrics/metric.py",
    "models/model.py",
    "ops/operation.py",
    "optimizers/base_optimizer.py",
    "trainers/trainer.py",
)
"""Files of Keras with the classes whose methods should stay as they are."""
STEPS = {"train_function", "test_function", "predict_function"}
"""Attributes in which a model holds its compiled steps."""
_MAKES_A_FUNCTION = {"partial", "partialmethod", "MethodType", "wraps", "__get__"}
_ANY = "*"
_MAKES_A_FUNCTION |= {"staticmethod", "classmethod", "property"}


@dataclass(frozen=True)
class Write:
    """An assignment to an attribute.

    Args:
        owner: The object.
        name: The attribute's name.
        value: The value, `None` if it is not known.
        is_past: Whether it passes by the object's own `__setattr__`.
    """

    owner: ast.expr
    name: ast.expr
    value: ast.expr | None
    is_past: bool = False


@dataclass(frozen=True)
class Setter:
    """A function that assigns an attribute by its own arguments.

    Args:
        parameters: Names of all parameters, in order.
        owner: Name of the parameter with the object.
        name: The attribute's name, or the parameter with it.
        value: Name of the parameter with the value, `None` if it makes the value.
    """

    parameters: tuple[str, ...]
    owner: str
    name: ast.expr
    value: str | None


@cache
def keras_names() -> tuple[frozenset[str], frozenset[str]]:
    """Return names of methods and class attributes of Keras, and of its properties."""
    methods, properties = set(), set()
    source = Path(str(find_spec("keras").origin)).parent / "src"
    for path in KERAS:
        for node in ast.parse((source / path).read_text()).body:
            for part in node.body if isinstance(node, ast.ClassDef) else ():
                match part:
                    case ast.FunctionDef(name=name):
                        kinds = {last(each) for each in part.decorator_list}
                        is_data = kinds & {"property", "setter"}
                        (properties if is_data else methods).add(name)
                    case ast.Assign(targets=[ast.Name(id=name)]):
                        methods.add(name)
    return frozenset(methods - properties), frozenset(properties)


def places(modules: Mapping[str, ast.AST]) -> list[str]:
    """Return a line for each replaced method or class: place, attribute and kind.

    Args:
        modules: The syntax trees of a package by name.
    """
    package = _Package(modules)
    return [
        f"{module}:{line}: {text}"
        for module in modules
        for line, text in sorted(package.places(module))
    ]


class _Package:
    def __init__(self, modules: Mapping[str, ast.AST]) -> None:
        self._scopes = {name: scopes(tree) for name, tree in modules.items()}
        everything = [scope for group in self._scopes.values() for scope in group]
        defined = [scope for scope in everything if isinstance(scope.node, Function)]
        self._functions = {scope.node.name for scope in defined if scope.owner is None}
        self._callables = {
            scope.owner.name
            for scope in defined
            if scope.owner is not None and scope.node.name == "__call__"
        }
        self._makers: set[tuple[bool, str]] = set()
        others = set()
        for scope in defined:
            key = (scope.owner is not None, scope.node.name)
            (self._makers if self._returns_function(scope) else others).add(key)
        self._makers -= others
        self._setters: dict[str, Setter] = {}
        known = -1
        while known < len(self._setters):
            known = len(self._setters)
            for scope in defined:
                self._add_setter(scope)

    def places(self, module: str) -> Iterator[tuple[int, str]]:
        """Yield line and text of each place of a module."""
        writes = []
        for scope in self._scopes[module]:
            yield from _patches(scope)
            writes += [(scope, w) for w in self._writes(scope)]
        kept: set[object] = set()
        for scope, write in sorted(writes, key=lambda pair: pair[1].owner.lineno):
            name = scope.constant(write.name)
            if _is_by_arguments(scope, write) or _is_saved(scope, write, name):
                continue
            text = f"{ast.unparse(write.owner)}.{name or ast.unparse(write.name)}"
            key = (scope.outermost, *_target(write, name))
            kind = self._certain(scope, write, name)
            if kind is None and key not in kept:
                kind = self._likely(scope, write, name)
            if kind is not None:
                kept.add(key)
                yield write.owner.lineno, f"{text}: {kind}"

    def _certain(self, scope: Scope, write: Write, name: str | None) -> str | None:
        """Return the kind of a place that counts whatever came before."""
        if name == "__class__" or re.match("[A-Z]+[a-z]", name or ""):
            return "class"
        if name in keras_names()[1] or scope.class_of(write.owner) is not None:
            return None
        return "function" if self._is_function(scope, write.value) else None

    def _likely(self, scope: Scope, write: Write, name: str | None) -> str | None:
        """Return the kind of a place that may put back what was there before."""
        methods, properties = keras_names()
        own = scope.class_of(write.owner)
        if name in properties or (own is not None and write.owner.id == "self"):
            return None
        if name in methods:
            return "method of Keras"
        if own is not None:
            return None
        if name is None:
            return "unknown name"
        if name in STEPS:
            is_reset = isinstance(write.value, ast.Constant)
            return None if is_reset else "compiled step"
        same = Counter(ast.dump(w.name) for w in self._writes(scope) if w.is_past)
        is_swapped = write.is_past and same[ast.dump(write.name)] > 1
        return "set and put back" if is_swapped else None

    def _writes(self, scope: Scope) -> Iterator[Write]:
        yield from _assigned(scope)
        for call in scope.calls:
            yield from self._calls_of_setters(call)

    def _calls_of_setters(self, call: ast.Call) -> Iterator[Write]:
        setter = self._setters.get(last(call.func))
        if setter is None or last(call.func) in PATCHES:
            return
        if _is_starred(call):
            yield _of_starred(call)
            return
        arguments = dict(zip(setter.parameters, call.args, strict=False))
        arguments |= {pair.arg: pair.value for pair in call.keywords}
        owner, name = arguments.get(setter.owner), setter.name
        if isinstance(name, ast.Name):
            name = arguments.get(name.id)
        if owner is not None and name is not None:
            value = arguments.get(setter.value) if setter.value else ast.Lambda()
            yield Write(owner, name, value, is_past=True)

    def _add_setter(self, scope: Scope) -> None:
        for write in self._writes(scope):
            if _is_by_arguments(scope, write):
                value = getattr(write.value, "id", None)
                value = value if value in scope.parameters else None
                names = scope.parameters, write.owner.id, write.name
                self._setters[scope.node.name] = Setter(*names, value)

    def _is_function(
        self, scope: Scope, value: ast.AST | None, seen: frozenset[str] = frozenset()
    ) -> bool:
        match value:
            case ast.Lambda() | ast.FunctionDef() | ast.AsyncFunctionDef():
                return True
            case ast.Name(id=name) if name not in seen:
                return self._is_name_of_function(scope, value, seen | {name})
            case ast.Attribute():
                return _is_method(scope, value)
            case ast.Call(func=function):
                owner = getattr(function, "value", None)
                key = (scope.class_of(owner) is not None, last(value))
                known = _MAKES_A_FUNCTION | self._callables
                return last(value) in known or key in self._makers
            case ast.IfExp(body=one, orelse=other):
                return any(self._is_function(scope, x, seen) for x in (one, other))
            case ast.BoolOp(values=values):
                return any(self._is_function(scope, x, seen) for x in values)
        return False

    def _is_name_of_function(
        self, scope: Scope, name: ast.Name, seen: frozenset[str]
    ) -> bool:
        own = scope.class_of(name)
        if own is not None:
            return own.name in self._callables
        values = scope.lookup(name.id)
        if any(isinstance(x, ast.ImportFrom) for x in values):
            return name.id in self._functions
        return any(self._is_function(scope, x, seen) for x in values)

    def _returns_function(self, scope: Scope) -> bool:
        values = [node.value for node in scope.nodes if isinstance(node, ast.Return)]
        return any(self._is_function(scope, value) for value in values)


@cache
def _assigned(scope: Scope) -> list[Write]:
    """Return the assignments to attributes in a scope itself."""
    writes = [write for call in scope.calls for write in _calls_of_setattr(call)]
    for node in scope.nodes:
        for target, value in assignments(node):
            match target:
                case ast.Attribute(value=owner, attr=name):
                    writes.append(Write(owner, ast.Constant(name), value))
                case ast.Subscript(value=names, slice=name):
                    writes += [
                        Write(owner, name, value, is_past=True)
                        for owner in _owners(names)
                    ]
    return writes


def _patches(scope: Scope) -> Iterator[tuple[int, str]]:
    for node in scope.nodes:
        match node:
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                if last(node) in PATCHES:
                    yield node.lineno, f"{last(node)}: patch"
            case ast.Call(func=function) if "patch" in dotted(function):
                yield node.lineno, f"{'.'.join(dotted(function))}: patch"


def _target(write: Write, name: str | None) -> tuple[str, str]:
    """Return object and attribute as one function or class writes them."""
    text = name or ast.unparse(write.name)
    return "" if text == _ANY else last(write.owner).strip("_"), text


def _is_by_arguments(scope: Scope, write: Write) -> bool:
    """Return whether calls of the function count in place of the assignment."""
    if not isinstance(scope.node, Function) or scope.class_of(write.owner) is not None:
        return False
    is_named = getattr(write.name, "value", None) == "__class__"
    parts = (write.owner, write.value if is_named else write.name)
    return all(
        isinstance(x, ast.Name) and x.id in scope.parameters and x.id not in scope.bound
        for x in parts
    )


def _is_saved(scope: Scope, write: Write, name: str | None) -> bool:
    """Return whether the value is a variable that was read from the same attribute."""
    values = scope.lookup(write.value.id) if isinstance(write.value, ast.Name) else []
    return any(_reads(x, write.owner, name) for x in values)


def _reads(value: ast.AST | None, owner: ast.expr, name: str | None) -> bool:
    match value:
        case ast.Attribute(attr=attribute):
            return attribute == name
        case ast.Call(func=ast.Name(id="type"), args=[one]):
            return name == "__class__" and ast.dump(one) == ast.dump(owner)
        case ast.Call(func=ast.Name(id="dict"), args=[names]):
            return name is None and ast.dump(owner) in map(ast.dump, _owners(names))
    return False


def _is_method(scope: Scope, value: ast.Attribute) -> bool:
    """Return whether an attribute is a method, or a function of an imported module."""
    own = scope.class_of(value.value)
    if own is not None:
        methods = [x for x in own.body if isinstance(x, Function)]
        return any(x.name == value.attr and not x.decorator_list for x in methods)
    imported = any(isinstance(x, ast.Import) for x in scope.lookup(dotted(value)[0]))
    is_called = value.attr == "__call__" or value.attr in keras_names()[0]
    return is_called or (imported and value.attr.islower())


def _owners(names: ast.expr) -> list[ast.expr]:
    """Return the object of `vars(x)` or `x.__dict__`, none for another mapping."""
    match names:
        case ast.Call(func=ast.Name(id="vars"), args=[owner]):
            return [owner]
        case ast.Attribute(value=owner, attr="__dict__"):
            return [owner]
    return []


def _is_starred(call: ast.Call) -> bool:
    return any(isinstance(each, ast.Starred) for each in call.args)


def _of_starred(call: ast.Call) -> Write:
    """Return the assignment of a call with starred arguments, to any attribute."""
    first, value = call.args[0], call.args[-1]
    owner = first.value if isinstance(first, ast.Starred) else first
    known = None if isinstance(value, ast.Starred) else value
    return Write(owner, ast.Name(_ANY), known, is_past=True)


def _calls_of_setattr(call: ast.Call) -> Iterator[Write]:
    match call:
        case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function)) if (
            function in ("setattr", "__setattr__") and _is_starred(call)
        ):
            yield _of_starred(call)
        case ast.Call(
            func=ast.Name(id=function) | ast.Attribute(attr=function),
            args=[owner, name, value],
        ) if function in ("setattr", "__setattr__"):
            yield Write(owner, name, value, function != "setattr")
        case ast.Call(
            func=ast.Attribute(value=owner, attr="__setattr__"), args=[name, value]
        ) if not isinstance(owner, ast.Call):
            yield Write(owner, name, value, is_past=True)
        case ast.Call(func=ast.Attribute(value=names, attr="update")):
            pairs = [(ast.Constant(x.arg), x.value) for x in call.keywords if x.arg]
            pairs = pairs or [(ast.Name(_ANY), value) for value in call.args]
            for owner in _owners(names):
                for name, value in pairs:
                    yield Write(owner, name, value, is_past=True)
