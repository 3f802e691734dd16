"""Reading and writing numbers at any byte of an array, inside compiled loops.

Nothing here checks bounds. Numba's cache looks at the age of the file with the loops alone: whoever
changes this file touches all that import it.
"""

# ruff: noqa: ARG001
# Numba looks at the arguments of intrinsics for their types alone.

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def pointer(typingctx, array):  # type: ignore[no-untyped-def]
    """Pointer to the first byte of an array that the loop was given: one that it has made itself is
    gone behind its last mention, whoever still has a pointer to it.

    With arrays themselves numba counts references around each inlined call, which takes longer
    than hashing. Integer addresses would do too, but LLVM miscompiles arithmetic on them.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        held = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.bitcast(held.data, ir.IntType(8).as_pointer())

    return types.voidptr(array), codegen


def _load(bits: int) -> Any:
    """Intrinsic that reads the little-endian number at pointer + offset, as uint64."""

    def typed(typingctx: Any, base: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            wide = ir.IntType(bits)
            place = builder.gep(args[0], [args[1]], source_etype=ir.IntType(8))
            number = builder.load(builder.bitcast(place, wide.as_pointer()), align=1, typ=wide)
            return number if bits == 64 else builder.zext(number, ir.IntType(64))

        return types.uint64(types.voidptr, types.intp), codegen

    return intrinsic(typed)


@intrinsic
def trailing_zeros(typingctx, number):  # type: ignore[no-untyped-def]
    """How many of the lowest bits of a uint64 are 0; 64 where all are."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


@intrinsic
def bits_set(typingctx, number):  # type: ignore[no-untyped-def]
    """How many bits of a uint64 are 1."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


def bytes_between(first: int, last: int) -> Any:
    """Intrinsic that says of 64 bytes from pointer + offset on which are ``first`` to ``last``: a
    uint64, the lowest bit of the first byte."""

    def typed(typingctx: Any, base: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            wide = ir.VectorType(ir.IntType(8), 64)
            place = builder.gep(args[0], [args[1]], source_etype=ir.IntType(8))
            found = builder.load(builder.bitcast(place, wide.as_pointer()), align=1, typ=wide)
            above = builder.sub(found, ir.Constant(wide, [first] * 64))
            within = builder.icmp_unsigned("<=", above, ir.Constant(wide, [last - first] * 64))
            return builder.bitcast(within, ir.IntType(64))

        return types.uint64(types.voidptr, types.intp), codegen

    return intrinsic(typed)


def _store(bits: int) -> Any:
    """Intrinsic that writes the lowest bits of a uint64 at pointer + offset."""

    def typed(typingctx: Any, base: Any, offset: Any, number: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            wide = ir.IntType(bits)
            place = builder.gep(args[0], [args[1]], source_etype=ir.IntType(8))
            value = args[2] if bits == 64 else builder.trunc(args[2], wide)
            builder.store(value, builder.bitcast(place, wide.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.voidptr, types.intp, types.uint64), codegen

    return intrinsic(typed)


load64 = _load(64)
load32 = _load(32)
load8 = _load(8)
store64 = _store(64)
store32 = _store(32)
store8 = _store(8)
