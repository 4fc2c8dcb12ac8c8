"""Machine operations that numba lacks: atomics, raw memory, calls through an address.

A kernel is a function that numba compiles. The kernels for io_uring and for reading threads call these operations.
Each is a numba intrinsic: numba calls it once per call in a kernel, with a typing context and the operands' types. It
returns the call's signature, and ``generate``, which emits the LLVM instructions; ``args`` are the operands' values.

Every operand is an int64, also addresses, so that kernels have one signature and numba can cache them. A ctypes
function as a global would prevent the cache.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# Memory accesses with an order: an io_uring is shared with the operating system, which fills it on another core. Only
# loads that acquire and stores that release keep their order relative to other accesses; numba has only plain ones.
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


def _pointer(builder: Any, address: Any, element: Any) -> Any:
    """Emit the conversion of an integer ``address`` to a pointer to the LLVM type ``element``."""
    return builder.inttoptr(address, element.as_pointer())


@intrinsic
def load_acquire32(_context: Any, _address: Any) -> Any:
    """Load an unsigned 32-bit word that another thread or the kernel publishes; later accesses stay after it."""

    def generate(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        word = builder.load_atomic(_pointer(builder, args[0], _I32), "acquire", 4)
        return builder.zext(word, _I64)

    return types.int64(types.int64), generate


@intrinsic
def store_release32(_context: Any, _address: Any, _value: Any) -> Any:
    """Publish a 32-bit word; earlier accesses stay before it."""

    def generate(ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        builder.store_atomic(builder.trunc(args[1], _I32), _pointer(builder, args[0], _I32), "release", 4)
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def fetch_add64(_context: Any, _address: Any, _amount: Any) -> Any:
    """Add to a 64-bit counter shared by threads and return its old value."""

    def generate(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, args[0], _I64), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def load32(_context: Any, _address: Any) -> Any:
    """Load a signed 32-bit word."""

    def generate(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        return builder.sext(builder.load(_pointer(builder, args[0], _I32)), _I64)

    return types.int64(types.int64), generate


@intrinsic
def load64(_context: Any, _address: Any) -> Any:
    """Load a signed 64-bit word."""

    def generate(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0], _I64))

    return types.int64(types.int64), generate


@intrinsic
def store32(_context: Any, _address: Any, _value: Any) -> Any:
    """Store the low 32 bits of ``value``."""

    def generate(ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        builder.store(builder.trunc(args[1], _I32), _pointer(builder, args[0], _I32))
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def store64(_context: Any, _address: Any, _value: Any) -> Any:
    """Store a 64-bit word."""

    def generate(ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        builder.store(args[1], _pointer(builder, args[0], _I64))
        return ctx.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def call_pread(_context: Any, _function: Any, _fd: Any, _buffer: Any, _count: Any, _offset: Any) -> Any:
    """Call ``ssize_t pread(int, void *, size_t, off_t)`` at the address ``function``."""

    def generate(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        signature = ir.FunctionType(_I64, [_I32, _I64, _I64, _I64])
        function = _pointer(builder, args[0], signature)
        return builder.call(function, [builder.trunc(args[1], _I32), args[2], args[3], args[4]])

    return types.int64(*[types.int64] * 5), generate


@intrinsic
def call_syscall(
    _context: Any, _function: Any, _number: Any, _a: Any, _b: Any, _c: Any, _d: Any, _e: Any, _f: Any
) -> Any:
    """Call ``long syscall(long number, ...)`` with six arguments at the address ``function``."""

    def generate(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        signature = ir.FunctionType(_I64, [_I64], var_arg=True)
        return builder.call(_pointer(builder, args[0], signature), list(args[1:]))

    return types.int64(*[types.int64] * 8), generate


@intrinsic
def call_errno(_context: Any, _function: Any) -> Any:
    """Return the calling thread's ``errno``; ``function`` is the address of ``__errno_location``."""

    def generate(_ctx: Any, builder: Any, _sig: Any, args: Any) -> Any:
        signature = ir.FunctionType(_I32.as_pointer(), [])
        where = builder.call(_pointer(builder, args[0], signature), [])
        return builder.sext(builder.load(where), _I64)

    return types.int64(types.int64), generate
