"""Sixteen draws for one node at once, and their ranks, in LLVM vectors.

A lane is one of a vector's entries. LLVM accepts vectors of any size for every target, and maps a vector of sixteen
32-bit lanes to one AVX-512 register or four NEON registers. The compiler does not vectorise the scalar loop by itself.
Hashing, reduction to the range of the draw, and the search for repeats take about 20 ns for up to sixteen draws, a
third of the scalar loop's time.

The functions with a ``builder`` run while numba compiles a kernel. Each emits LLVM instructions and returns the LLVM
value with the result. `draw_sixteen` and `rank_sixteen` are the functions for kernels.
"""

# ruff: noqa: ARG001  numba declares the arguments of an intrinsic by the names of its parameters

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

from gloader.core.hashing import GOLDEN, MUL_1, MUL_2

LANES = 16  # draws in a vector
DISTINCT, REPEATED, REJECTED = 0, 1, 2  # results of `draw_sixteen`; REPEATED may be added to REJECTED

# Eight 64-bit random words make the sixteen draws: draw 2i is the lower half of word i, draw 2i + 1 the upper half.
# Four LLVM types: a word, eight words, eight 32-bit lanes, and sixteen 32-bit lanes.
_I64 = ir.IntType(64)
_WORDS = ir.VectorType(_I64, LANES // 2)
_HALVES = ir.VectorType(ir.IntType(32), LANES // 2)
_DRAWS = ir.VectorType(ir.IntType(32), LANES)
_EVEN, _ODD = range(0, LANES, 2), range(1, LANES, 2)  # numbers of the draws from lower and from upper halves


def _constant(vector: Any, values: Any) -> Any:
    """Return a constant of type ``vector`` with ``values`` in its lanes, modulo the lanes' width."""
    return ir.Constant(vector, [int(value) % 2**vector.element.width for value in values])


def _same(value: int) -> Any:
    """Return a constant vector of words with ``value`` in every lane."""
    return _constant(_WORDS, [value] * _WORDS.count)


def _splat(builder: Any, scalar: Any) -> Any:
    """Emit a vector of words with ``scalar`` in every lane."""
    undefined = ir.Constant(_WORDS, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, _constant(_HALVES, [0] * _WORDS.count))


def _xor_shift(builder: Any, x: Any, shift: int) -> Any:
    """Emit ``x ^ (x >> shift)``, a step of the hash."""
    return builder.xor(x, builder.lshr(x, _same(shift)))


def _words(builder: Any, key: Any) -> Any:
    """Emit `rng.word(key, i)` for i = 0..7."""
    steps = _constant(_WORDS, [int(GOLDEN) * (i + 1) for i in range(_WORDS.count)])
    x = builder.add(_splat(builder, key), steps)
    x = builder.mul(_xor_shift(builder, x, 30), _same(int(MUL_1)))
    x = builder.mul(_xor_shift(builder, x, 27), _same(int(MUL_2)))
    return _xor_shift(builder, x, 31)


def _floyd_draws(builder: Any, bits: Any, top: Any, count: Any, lanes: range) -> tuple[Any, Any, Any]:
    """Emit the draws with the numbers ``lanes``, from 32 random ``bits`` each.

    Draw j is the upper half of bits * (top + j + 1), as in `rng.settle`; ``top`` is degree - count. Returns the draws,
    a mask of used lanes (below ``count``), and a mask of the used lanes whose bits may be biased.
    """
    low_32 = _same(2**32 - 1)
    bound = builder.and_(builder.add(top, _constant(_WORDS, [lane + 1 for lane in lanes])), low_32)
    product = builder.mul(bits, bound)
    used = builder.icmp_unsigned("<", _constant(_WORDS, lanes), count)
    rejected = builder.and_(used, builder.icmp_unsigned("<", builder.and_(product, low_32), bound))
    return builder.lshr(product, _same(32)), used, rejected


def _distinct_when_unused(builder: Any, draws: Any, used: Any, lanes: range) -> Any:
    """Emit the draws in 32 bits. Each unused lane gets its own negative value, which equals no draw."""
    filler = _constant(_WORDS, [-1 - lane for lane in lanes])
    return builder.trunc(builder.select(used, draws, filler), _HALVES)


def _any_equal_pair(builder: Any, draws: Any) -> Any:
    """Emit a flag that is true if two lanes are equal. Eight rotations of the vector compare every pair of lanes."""
    has_equal = None
    for shift in range(1, LANES // 2 + 1):
        order = _constant(_DRAWS, [(lane + shift) % LANES for lane in range(LANES)])
        rotated = builder.shuffle_vector(draws, ir.Constant(_DRAWS, ir.Undefined), order)
        equal = builder.icmp_unsigned("==", draws, rotated)
        has_equal = equal if has_equal is None else builder.or_(has_equal, equal)
    return _any(builder, has_equal)


def _any(builder: Any, flags: Any) -> Any:
    """Emit a flag that is true if one of the ``flags`` is true."""
    mask = ir.IntType(flags.type.count)
    return builder.icmp_unsigned("!=", builder.bitcast(flags, mask), ir.Constant(mask, 0))


@intrinsic
def _draw_sixteen(
    typingctx: Any,
    key: Any,
    start: Any,
    degree: Any,
    count: Any,
    out: Any,
    offset: Any,
) -> Any:
    """Write ``start`` + the draws 0..count-1 of Floyd's algorithm to ``out[offset:]``, repeats included.

    ``count`` is at most 16, ``degree`` below 2**31, and ``out`` (int64) has 16 entries from ``offset`` on; all are
    overwritten. Returns DISTINCT if the draws are final, REPEATED if Floyd's rule must replace repeats, and REJECTED if
    a draw needs more random bits.
    """
    if not isinstance(out, types.Array) or out.dtype != types.int64:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        key, start, degree, count, out, offset = args
        words = _words(builder, key)
        top, used = _splat(builder, builder.sub(degree, count)), _splat(builder, count)
        even, even_used, even_bad = _floyd_draws(
            builder, builder.and_(words, _same(2**32 - 1)), top, used, _EVEN
        )
        odd, odd_used, odd_bad = _floyd_draws(builder, builder.lshr(words, _same(32)), top, used, _ODD)
        draws = builder.shuffle_vector(
            _distinct_when_unused(builder, even, even_used, _EVEN),
            _distinct_when_unused(builder, odd, odd_used, _ODD),
            _constant(_DRAWS, range(LANES)),
        )
        data = context.make_array(signature.args[4])(context, builder, out).data
        # The even and the odd draws are in two vectors. They are stored in the order of their numbers.
        for half, lanes in enumerate(([0, 8, 1, 9, 2, 10, 3, 11], [4, 12, 5, 13, 6, 14, 7, 15])):
            in_order = builder.shuffle_vector(even, odd, _constant(_HALVES, lanes))
            address = builder.gep(data, [builder.add(offset, ir.Constant(_I64, half * len(lanes)))])
            edges = builder.add(_splat(builder, start), in_order)
            builder.store(edges, builder.bitcast(address, _WORDS.as_pointer()), align=8)
        repeated = builder.zext(_any_equal_pair(builder, draws), _I64)
        rejected = builder.zext(_any(builder, builder.or_(even_bad, odd_bad)), _I64)
        return builder.or_(repeated, builder.shl(rejected, ir.Constant(_I64, 1)))

    i64 = types.int64
    return i64(types.uint64, i64, i64, i64, out, i64), codegen


@intrinsic
def _rank_sixteen(
    typingctx: Any, values: Any, first: Any, count: Any, base: Any, out: Any, offset: Any
) -> Any:
    """Write ``base`` + each value's rank in ``values[first : first + count]`` to ``out[offset:]``.

    A rank is the number of smaller values. ``count`` is at most 16. ``values`` and ``out`` (int64) have 16 entries from
    ``first`` and ``offset`` on; all are read or overwritten. Returns True if the ranks are right: two values 2**31 or
    more apart make them wrong.
    """
    if any(not isinstance(array, types.Array) or array.dtype != types.int64 for array in (values, out)):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values, first, count, base, out, offset = args
        source = context.make_array(signature.args[0])(context, builder, values).data
        target = context.make_array(signature.args[4])(context, builder, out).data
        # The values become 32-bit distances from the first value. Unused lanes are larger than all used lanes.
        origin = _splat(builder, builder.load(builder.gep(source, [first])))
        used_end, halves, is_far = _splat(builder, count), [], None
        for half in range(2):
            lanes = range(half * _WORDS.count, (half + 1) * _WORDS.count)
            address = builder.gep(source, [builder.add(first, ir.Constant(_I64, lanes[0]))])
            words = builder.load(builder.bitcast(address, _WORDS.as_pointer()), align=8)
            used = builder.icmp_unsigned("<", _constant(_WORDS, lanes), used_end)
            distance = builder.select(used, builder.sub(words, origin), _same(2**31 - 1))
            short = builder.trunc(distance, _HALVES)
            far = builder.icmp_signed("!=", builder.sext(short, _WORDS), distance)
            is_far = far if is_far is None else builder.or_(is_far, far)
            halves.append(short)
        every = _constant(_DRAWS, range(LANES))
        draws = builder.shuffle_vector(halves[0], halves[1], every)
        ranks = _constant(_DRAWS, [0] * LANES)
        for shift in range(1, LANES):
            order = _constant(_DRAWS, [(lane + shift) % LANES for lane in range(LANES)])
            rotated = builder.shuffle_vector(draws, ir.Constant(_DRAWS, ir.Undefined), order)
            # A true comparison is the number -1, so a subtraction counts it.
            ranks = builder.sub(ranks, builder.sext(builder.icmp_signed(">", draws, rotated), _DRAWS))
        for half in range(2):
            lanes = range(half * _WORDS.count, (half + 1) * _WORDS.count)
            part = builder.shuffle_vector(ranks, ir.Constant(_DRAWS, ir.Undefined), _constant(_HALVES, lanes))
            results = builder.add(_splat(builder, base), builder.zext(part, _WORDS))
            address = builder.gep(target, [builder.add(offset, ir.Constant(_I64, lanes[0]))])
            builder.store(results, builder.bitcast(address, _WORDS.as_pointer()), align=8)
        return builder.not_(_any(builder, is_far))

    i64 = types.int64
    return types.boolean(values, i64, i64, i64, out, i64), codegen


def _rank_nothing(values: Any, first: Any, count: Any, base: Any, out: Any, offset: Any) -> bool:
    """Return False: no ranks were written."""
    return False


def _draw_nothing(key: int, start: int, degree: int, count: int, out: Any, offset: int) -> int:
    """Return REJECTED: the draws have to be made one by one."""
    return REJECTED


# An intrinsic cannot run without the compiler. These substitutes make the callers use their scalar loops, which draw
# and order the same edges, only more slowly.
draw_sixteen = _draw_nothing if config.DISABLE_JIT else _draw_sixteen
rank_sixteen = _rank_nothing if config.DISABLE_JIT else _rank_sixteen
