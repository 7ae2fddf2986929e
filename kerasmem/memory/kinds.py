"""What is known of an object by its type alone, asked once a type."""

from collections.abc import Callable
from inspect import Parameter, Signature
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GenericAlias,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any, ForwardRef
from weakref import ReferenceType


class KindTable(dict[type, bool]):
    """Whether something is so, by type; each type is asked for once.

    Args:
        asked: returns it for a type.
    """

    def __init__(self, asked: Callable[[type], bool]) -> None:
        super().__init__()
        self._asked = asked

    def __missing__(self, kind: type) -> bool:
        """Return what a type that is new gives, and note it."""
        self[kind] = is_so = self._asked(kind)
        return is_so


_OF_PROGRAMS = frozenset(
    {
        BuiltinFunctionType,
        ClassMethodDescriptorType,
        CodeType,
        ForwardRef,
        FunctionType,
        GenericAlias,
        GetSetDescriptorType,
        MappingProxyType,
        MemberDescriptorType,
        MethodDescriptorType,
        ModuleType,
        Parameter,
        ReferenceType,
        Signature,
        UnionType,
        WrapperDescriptorType,
        classmethod,
        property,
        staticmethod,
    }
)


def is_of_program(kind: type) -> bool:
    """Return True for functions, types and what they consist of.

    They are most of what a process has, and hold no arrays themselves: what they refer
    to, such as cells and dictionaries, does.
    """
    return kind in _OF_PROGRAMS or issubclass(kind, type)


def is_own(kind: type) -> bool:
    """Return True for what kerasmem itself keeps."""
    return module_of(kind).startswith("kerasmem.")


def module_of(kind: type) -> str:
    """Return the module of a type, empty where that is no text."""
    module = attribute(kind, "__module__")
    return module if isinstance(module, str) else ""  # some classes give it a property


def attribute(kind: type, name: str) -> Any:
    """Return an attribute that every type has, without code of its metaclass.

    Example:
        >>> attribute(int, "__name__")
        'int'
    """
    return type.__dict__[name].__get__(kind)
