"""Modules, functions and the names in them, read from the syntax tree."""

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache, cached_property

Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes of a syntax tree, each before those inside of it."""
    return list(ast.walk(tree))


def last(expression: ast.AST) -> str:
    """Return the last identifier of a dotted expression, or of a call's function."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return last(function)
    return ""


def dotted(expression: ast.AST) -> list[str]:
    """Return the identifiers of a dotted expression."""
    if isinstance(expression, ast.Attribute):
        return [*dotted(expression.value), expression.attr]
    return [last(expression)]


@dataclass(eq=False)
class Scope:
    """A module, a function or a lambda, without the functions inside of it.

    Args:
        node: The module or the function.
        outer: The scope around it, `None` for a module.
        owner: The class whose method it is, `None` for any other function.
        nodes: All nodes, those of class bodies included.
    """

    node: ast.AST
    outer: "Scope | None" = None
    owner: ast.ClassDef | None = None
    nodes: list[ast.AST] = field(default_factory=list)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters, in order."""
        if not isinstance(self.node, _FUNCTIONS):
            return ()
        a = self.node.args
        rest = [x for x in (a.vararg, a.kwarg) if x is not None]
        return tuple(x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, *rest))

    @cached_property
    def calls(self) -> list[ast.Call]:
        """Calls, in order."""
        return [node for node in self.nodes if isinstance(node, ast.Call)]

    @cached_property
    def bound(self) -> dict[str, list[ast.AST | None]]:
        """Values and definitions by name; `None` for a value that is not known."""
        bound: dict[str, list[ast.AST | None]] = defaultdict(list)
        values: dict[ast.AST, ast.AST | None] = {}
        for node in self.nodes:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    bound[name].append(node)
                case ast.ClassDef(name=name):
                    bound[name].append(node)
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    for each in names:
                        bound[each.asname or each.name.partition(".")[0]].append(node)
                case ast.Name(id=name, ctx=ast.Store()):
                    bound[name].append(values.get(node))
                case _:
                    values |= {t: v for t, v in assignments(node) if v is not None}
        return bound

    def lookup(self, name: str) -> list[ast.AST | None]:
        """Return all values of a name; none if it is a parameter or not known."""
        if name in self.bound or name in self.parameters or self.outer is None:
            return self.bound.get(name, [])
        return self.outer.lookup(name)

    def class_of(self, expression: ast.AST | None) -> ast.ClassDef | None:
        """Return the class whose `self` or `cls` an expression is, `None` if none."""
        if not isinstance(expression, ast.Name) or expression.id in self.bound:
            return None
        if expression.id in self.parameters:
            return self.owner if expression.id == self.parameters[0] else None
        return self.outer.class_of(expression) if self.outer else None

    @property
    def outermost(self) -> ast.AST:
        """The outermost class or function around the scope, or the module."""
        if self.outer is None or self.outer.outer is None:
            return self.owner or self.node
        return self.outer.outermost

    def constant(self, text: ast.expr) -> str | None:
        """Return the value of a text, `None` if it is not a constant."""
        match text:
            case ast.Constant(value=str(value)):
                return value
            case ast.Name(id=name):
                match self.lookup(name):
                    case [ast.Constant(value=str(value))]:
                        return value
            case ast.Attribute(value=ast.Name(id=name), attr="__name__"):
                if any(isinstance(x, Function) for x in self.lookup(name)):
                    return name
        return None


@cache
def scopes(module: ast.AST) -> list[Scope]:
    """Return the scopes of a module, its own first."""
    found = [Scope(module)]

    def visit(node: ast.AST, scope: Scope, owner: ast.ClassDef | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _FUNCTIONS):
                if owner is None:  # a method is no name of the scope around its class
                    scope.nodes.append(child)
                found.append(Scope(child, scope, owner))
                visit(child, found[-1], None)
                continue
            scope.nodes.append(child)
            visit(child, scope, child if isinstance(child, ast.ClassDef) else owner)

    visit(module, found[0], None)
    return found


def assignments(node: ast.AST) -> list[tuple[ast.expr, ast.expr | None]]:
    """Return targets and values of a statement, `None` for an unknown value."""
    match node:
        case ast.Assign(targets=targets, value=value):
            return [pair for target in targets for pair in _pairs(target, value)]
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            return [(target, value)]
        case ast.AugAssign(target=target) | ast.For(target=target):
            return _pairs(target, None)
        case ast.NamedExpr(target=target, value=value):
            return [(target, value)]
        case ast.withitem(optional_vars=ast.expr() as target):
            return _pairs(target, None)
    return []


def _pairs(
    target: ast.expr, value: ast.expr | None
) -> list[tuple[ast.expr, ast.expr | None]]:
    if not isinstance(target, ast.Tuple | ast.List):
        return [(target, value)]
    is_alike = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
    values = value.elts if is_alike else [None] * len(target.elts)
    both = zip(target.elts, values, strict=True)
    return [pair for each, part in both for pair in _pairs(each, part)]
