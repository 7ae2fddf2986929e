"""Every test here compiles quickly."""

from tests.memory.quick_compiler import quick_compiler

__all__ = ["quick_compiler"]
