"""The decorator for every kernel: numba's, with a disk cache that also notices changes of the kernel's callees.

A kernel is a function that numba compiles. With ``cache=True``, numba keeps its machine code on disk until the kernel's
own file changes. That is not enough: after a change of a callee in another file, numba would run old machine code. And
numba's *index*, the file that lists a kernel's machine code by argument types, cannot be read after a class of a
kernel's argument was moved. So `njit` replaces numba's cache by `KernelCache`. It compares a *stamp*, a digest of all
files and constants on which the kernel depends.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PACKAGE = __name__.partition(".")[0]  # "gloader"
# Errors while numba reads an index or a kernel of an earlier version: a module or a class moved, or a field is gone.
_OUTDATED = (ImportError, AttributeError, TypeError, EOFError, KeyError)


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return `numba.njit` with a disk cache that notices changes of callees.

    Parameters
    ----------
    options : options of `numba.njit`; without ``cache=True`` nothing is kept on disk
    """

    def decorate(function: Callable[..., Any]) -> Any:
        compiled = numba.njit(**options)(function)
        if type(getattr(compiled, "_cache", None)) is FunctionCache:
            compiled._cache = KernelCache(function)  # noqa: SLF001 - numba has no public way
        return compiled

    return decorate


class KernelCache(FunctionCache):  # type: ignore[misc, unused-ignore]
    """numba's cache of one kernel, valid while the kernel, its callees and their constants are unchanged."""

    _is_stamped = False

    def is_filled(self) -> bool:
        """Return True if the disk holds machine code for the kernel's current version."""
        self._stamp()
        try:
            return bool(self._cache_file._load_index())  # noqa: SLF001 - numba has no public way
        except _OUTDATED:
            return False

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the machine code for the types ``sig``. None means that compilation is needed."""
        self._stamp()
        try:
            return super().load_overload(sig, target_context)
        except _OUTDATED:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the machine code ``data`` for the types ``sig``."""
        self._stamp()
        try:
            super().save_overload(sig, data)
        except _OUTDATED:  # numba reads the old index before it writes
            self.flush()
            super().save_overload(sig, data)

    def _stamp(self) -> None:
        """Set the stamp that numba compares with the stamp in its index."""
        # This is done at the first use, and not by the decorator, because callees may be defined below the kernel in
        # its file.
        if not self._is_stamped:
            self._cache_file._source_stamp = kernel_stamp(self._py_func)  # noqa: SLF001 - as above
            self._is_stamped = True


def kernel_stamp(function: FunctionType) -> str:
    """Return a digest of the files of ``function`` and its callees, and of the constants in their globals.

    Constants are included by value, because a number does not have its source file as an attribute.
    """
    files, constants = set(), set()
    visited: set[FunctionType] = set()
    waiting = [function]
    while waiting:
        caller = waiting.pop()
        if caller in visited:
            continue
        visited.add(caller)
        files.add(caller.__code__.co_filename)
        # A Dispatcher is a kernel that is called. Other values become constants, or the file that defines them.
        for name in _names(caller.__code__):
            value = caller.__globals__.get(name)
            if isinstance(value, Dispatcher):
                waiting.append(value.py_func)
            elif isinstance(value, int | float | str | tuple):
                constants.add(f"{name}={value!r}")
            elif isinstance(value, np.ndarray):
                constants.add(f"{name}={value.dtype}{value.tolist()}")
            elif (path := _own_file(value)) is not None:
                files.add(path)  # the file of a named tuple, an intrinsic or an overloaded function
    parts = [*sorted(map(_digest, files)), *sorted(constants)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that ``code`` and its inner functions use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _own_file(value: object) -> str | None:
    """Return the file of gloader that defines ``value``, or None."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None or module.__name__.partition(".")[0] != _PACKAGE:
        return None
    return inspect.getsourcefile(module)


@cache
def _digest(path: str) -> str:
    """Return a digest of the file at ``path``."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:  # the source is in an archive, or was removed while the program runs
        return path
