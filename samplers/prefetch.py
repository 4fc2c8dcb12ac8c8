"""Cache-line prefetch for numba kernels: a hint that never faults and never changes a result."""

# ruff: noqa: ARG001  numba declares the arguments of an intrinsic by the names of its parameters

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic


@intrinsic
def _prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Fetch the cache line of ``array[index]``; the address is not dereferenced, so no bound is checked."""
    if not isinstance(array, types.Array) or array.ndim != 1:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type = signature.args[0]
        data = context.make_array(array_type)(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        signature_ir = ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
        prefetch_ir = builder.module.declare_intrinsic("llvm.prefetch", [address.type], signature_ir)
        builder.call(prefetch_ir, [address, i32(0), i32(3), i32(1)])  # read, keep in all levels, data cache
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


def _no_prefetch(array: Any, index: int) -> None:
    """Do nothing: interpreted kernels have no cache lines to fetch."""


prefetch = _no_prefetch if config.DISABLE_JIT else _prefetch
