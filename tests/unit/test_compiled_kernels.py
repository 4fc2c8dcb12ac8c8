"""The list of kernels that are compiled before the tests."""

import importlib
import inspect

import compiled_kernels
import numpy as np
import pytest
from compiled_kernels import as_json, cached_types, compile_module, from_json, read_list
from numba import from_dtype, typeof, types

from gloader.core.offsets import Offsets

RECORD = np.dtype([("dst", "<u4"), ("src", "<i4"), ("time", "<i8")])


def test_every_listed_kernel_is_there_and_takes_so_many_arguments():
    """`make durations` lists anew what was moved; an entry may be moved or deleted by hand as well."""
    for module, kernels in read_list().items():
        for name, signatures in kernels.items():
            kernel = getattr(importlib.import_module(module), name)
            taken = len(inspect.signature(kernel.py_func).parameters)
            assert {len(signature) for signature in signatures} == {taken}, f"{module}.{name}"
            for signature in signatures:
                assert [as_json(from_json(kind)) for kind in signature] == signature


@pytest.mark.parametrize(
    "kind",
    [
        types.int64,
        types.boolean,
        types.none,
        typeof(np.zeros((2, 3), np.float32)),
        typeof(np.zeros((2, 3), np.float32).T),
        types.Array(types.int32, 1, "C", readonly=True),
        types.Array(from_dtype(RECORD), 1, "C", aligned=False),
        typeof(Offsets(np.zeros(1, np.uint16), np.zeros(1, np.int64), np.zeros(1, np.int64))),
        typeof(Offsets(*np.zeros((3, 1), np.int64))),
    ],
    ids=str,
)
def test_a_type_is_read_back(kind):
    assert from_json(as_json(kind)) == kind


def test_types_that_only_kernels_give_each_other_are_not_listed():
    with pytest.raises(ValueError, match="Literal"):
        as_json(types.literal(0))


def test_a_listed_kernel_is_compiled_into_the_cache_once_and_an_outdated_entry_is_named(monkeypatch):
    module, name = "gloader.core.value_kernels", "first_descent"
    kernel = getattr(importlib.import_module(module), name)
    asked = []
    monkeypatch.setattr(kernel, "compile", asked.append)
    listed = {name: [[["<i8", 1, "C", True, True], "int64"]], "gone": [["int64"]]}
    monkeypatch.setattr(compiled_kernels, "read_list", lambda: {module: listed})
    monkeypatch.setattr(compiled_kernels, "cached_types", lambda _: [])
    wanted = (types.Array(types.int64, 1, "C", readonly=True), types.int64)
    assert compile_module(module) == [f"{module}.gone"]
    assert asked == [wanted]
    monkeypatch.setattr(compiled_kernels, "cached_types", lambda _: [wanted])
    compile_module(module)
    assert asked == [wanted]


def test_the_cache_says_what_it_holds():
    kernel = importlib.import_module("gloader.core.value_kernels").first_descent
    kernel(np.arange(3), 0)
    assert (typeof(np.arange(3)), types.int64) in cached_types(kernel)
