"""`python tests/compiled_kernels.py`: the kernels that tests need, compiled before the tests, each once, on all cores.

Without it, workers that begin at the same time compile the same kernels side by side. `compiled_kernels.json` lists the
types of arguments for each kernel; with `--write`, which `make durations` does, it lists what numba's cache holds. A
kernel that the list lacks is compiled by the first test that calls it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import pkgutil
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import from_dtype, types
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError
from numba.np.numpy_support import as_dtype

import gloader
from gloader.core.kernels import KernelCache

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_PROCESSES = 4  # each takes up to 1 GB, as a worker of the tests does
LIST = Path(__file__).with_suffix(".json")
# Of each module, of each kernel: the types of the arguments, as JSON.
Signatures = dict[str, dict[str, list[Any]]]


def as_json(kind: Any) -> Any:
    """Return a type as JSON: a name, an array's dtype and layout, or a named tuple's class and fields.

    Raises
    ------
    ValueError : another type; only kernels that call each other are given one
    """
    if isinstance(kind, types.Array):
        dtype = as_dtype(kind.dtype)
        fields = [list(field) for field in dtype.descr] if dtype.names else dtype.str
        return [fields, kind.ndim, kind.layout, not kind.mutable, kind.aligned]
    if isinstance(kind, types.NamedTuple | types.NamedUniTuple):
        of = kind.instance_class
        return {f"{of.__module__}:{of.__qualname__}": [as_json(each) for each in kind]}
    if getattr(types, str(kind), None) == kind:
        return str(kind)
    raise ValueError(kind)


def from_json(found: Any) -> Any:
    """Return the type that `as_json` made ``found`` of."""
    if isinstance(found, str):
        return getattr(types, found)
    if isinstance(found, dict):
        ((name, fields),) = found.items()
        module, _, of = name.partition(":")
        named = getattr(importlib.import_module(module), of)
        return types.BaseTuple.from_types([from_json(each) for each in fields], named)
    fields, ndim, layout, is_readonly, is_aligned = found
    dtype = np.dtype(fields if isinstance(fields, str) else [tuple(field) for field in fields])
    return types.Array(from_dtype(dtype), ndim, layout, readonly=is_readonly, aligned=is_aligned)


def read_list() -> Signatures:
    """Return the recorded signatures."""
    found: Signatures = json.loads(LIST.read_text("utf-8"))
    return found


def cached_types(kernel: Dispatcher) -> list[tuple[Any, ...]]:
    """Return the types of arguments for which numba's cache holds a kernel."""
    if not isinstance(kernel._cache, KernelCache) or not kernel._cache.is_filled():
        return []
    return [arguments for arguments, *_ in kernel._cache._cache_file._load_index()]


def compile_module(name: str) -> list[str]:
    """Compile the kernels of a module for the listed types into numba's cache; return the entries that are outdated."""
    outdated = []
    for kernel_name, signatures in read_list()[name].items():
        try:
            kernel = getattr(importlib.import_module(name), kernel_name)
            held = cached_types(kernel)
            for signature in signatures:
                arguments = tuple(from_json(kind) for kind in signature)
                if arguments not in held:
                    kernel.compile(arguments)
        except (ImportError, AttributeError, NumbaError):
            outdated.append(f"{name}.{kernel_name}")
    return outdated


def compile_all() -> None:
    """Compile every listed kernel: the modules on all cores, those with most kernels first."""
    found = read_list()
    by_size = sorted(found, key=lambda name: -sum(map(len, found[name].values())))
    gc.disable()  # numba makes objects by the million, and hardly garbage
    with multiprocessing.get_context("fork").Pool(min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)) as pool:
        outdated = list(chain(*pool.imap_unordered(compile_module, by_size)))
    if outdated:
        print(f"not compiled, for `make durations` listed other types: {', '.join(sorted(outdated))}")


def _modules_with_kernels() -> Iterator[str]:
    for info in pkgutil.walk_packages(gloader.__path__, "gloader."):
        spec = info.module_finder.find_spec(info.name, None)
        if spec is not None and spec.origin is not None and "@njit" in Path(spec.origin).read_text("utf-8"):
            yield info.name


def write_list() -> None:
    """List what numba's cache holds of the package's kernels."""
    found: Signatures = {}
    for module in _modules_with_kernels():
        for name, kernel in vars(importlib.import_module(module)).items():
            if isinstance(kernel, Dispatcher) and kernel.py_func.__module__ == module:
                for arguments in cached_types(kernel):
                    with contextlib.suppress(ValueError):
                        signature = [as_json(kind) for kind in arguments]
                        found.setdefault(module, {}).setdefault(name, []).append(signature)
    lines = (
        f" {json.dumps(module)}: {{\n"
        + ",\n".join(
            f"  {json.dumps(name)}: [\n   " + ",\n   ".join(sorted(map(json.dumps, kernels[name]))) + "\n  ]"
            for name in sorted(kernels)
        )
        + "\n }"
        for module, kernels in sorted(found.items())
    )
    LIST.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write_list()
    else:
        compile_all()
