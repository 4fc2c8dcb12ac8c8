"""Machine operations for numba kernels that Python has no syntax for: prefetch, block copy, arrays by address.

An intrinsic is a function for which this module emits LLVM's code itself. Its Python function gets the types of the
arguments, and returns the function's signature and ``codegen``, which emits the code. Kernels use `prefetch`,
`copy_block` and `array_at`.
"""

# ruff: noqa: ARG001  numba declares the arguments of an intrinsic by the names of its parameters

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, config, types
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import intrinsic

from gloader.core.kernels import njit

# If a process forked while another thread compiles, its child would wait forever for the compiler's lock. So a fork
# waits until no thread compiles.
os.register_at_fork(
    before=global_compiler_lock.acquire,
    after_in_parent=global_compiler_lock.release,
    after_in_child=global_compiler_lock.release,
)

# Conversion to a signed integer in kernels, where int() leaves an unsigned integer unsigned.
to_int: Any = np.int64


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Emit code for the address of ``array[index]``."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), ir.IntType(8).as_pointer())


@intrinsic
def _prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Start to load the cache line of ``array[index]``. No bound is checked, because a wrong address is harmless."""
    if not isinstance(array, types.Array) or array.ndim != 1:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _address(context, builder, signature.args[0], *args)
        i32 = ir.IntType(32)
        signature_ir = ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
        prefetch_ir = builder.module.declare_intrinsic("llvm.prefetch", [address.type], signature_ir)
        builder.call(prefetch_ir, [address, i32(0), i32(3), i32(1)])  # read, keep in all levels, data cache
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def _copy_block(typingctx: Any, target: Any, to: Any, source: Any, start: Any, length: Any) -> Any:
    """Copy ``source[start : start + length]`` to ``target[to:]`` with memcpy. No bound is checked."""
    arrays = (target, source)
    if any(not isinstance(array, types.Array) or array.ndim != 1 for array in arrays):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to_address = _address(context, builder, signature.args[0], args[0], args[1])
        from_address = _address(context, builder, signature.args[2], args[2], args[3])
        i64, i1 = ir.IntType(64), ir.IntType(1)
        size = context.get_abi_sizeof(context.get_data_type(signature.args[0].dtype))
        num_bytes = builder.mul(args[4], i64(size))
        pointer = to_address.type
        signature_ir = ir.FunctionType(ir.VoidType(), [pointer, pointer, i64, i1])
        memcpy_ir = builder.module.declare_intrinsic("llvm.memcpy", [pointer, pointer, i64], signature_ir)
        builder.call(memcpy_ir, [to_address, from_address, num_bytes, i1(0)])  # 0: not volatile
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), codegen


@intrinsic
def _pointer(typingctx: Any, address: Any) -> Any:
    """Convert the integer ``address`` to a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


def _c_pointer(address: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(int(address))  # ctypes accepts no numpy integers


def _no_prefetch(array: Any, index: Any) -> None:
    """Do nothing: interpreted kernels have no cache lines to fetch."""


def _copy_slice(target: Any, to: Any, source: Any, start: Any, length: Any) -> None:
    target[to : to + length] = source[start : start + length]


# With NUMBA_DISABLE_JIT, kernels run as Python, which one run of the tests uses. An intrinsic has no Python body, so
# Python functions take its place.
prefetch = _no_prefetch if config.DISABLE_JIT else _prefetch
copy_block = _copy_slice if config.DISABLE_JIT else _copy_block
_as_pointer: Any = _c_pointer if config.DISABLE_JIT else _pointer


@njit(cache=True, nogil=True)
def array_at(address: int, length: int, like: Any) -> Any:
    """Return the array (length,) at the memory ``address``, with the dtype of the array ``like``.

    With it, a kernel takes any number of arrays as one array of their addresses. The caller keeps the memory alive.
    """
    return carray(_as_pointer(address), (length,), like.dtype)
