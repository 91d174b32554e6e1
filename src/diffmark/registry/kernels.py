"""Compiled loops over keys: the fast path of every search. Importing this module compiles them, once (cached).

A query is (bits, planes): the cost of a key is sum_b 2^b popcount((key ^ bits) & planes[b]). A hard query has one
plane of all ones, a soft one WEIGHT_BITS of them.
Tests cover these loops through their results; coverage cannot see into compiled code.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from diffmark.statistics import WEIGHT_BITS

GROUP = 64  # keys judged at once: eight vectors of eight
CHUNK = 4096  # keys that all queries of a batch look at before the next ones are read: 32 KiB
PREFETCH_DISTANCE = 512  # keys between what is judged and what is fetched from memory

_Words = types.Array(types.uint64, 1, "C", readonly=True)
_Offsets = types.Array(types.uint32, 1, "C", readonly=True)
_Limits = types.Array(types.int64, 1, "C", readonly=True)
_word, _int = types.uint64, types.int64


@intrinsic
def popcount(typing_context: Any, word: Any) -> Any:
    """The processor's population count."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # pragma: no cover
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for array[index] to be brought into the cache; past the end is harmless."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:  # pragma: no cover
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        flag, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
        function = builder.module.declare_intrinsic("llvm.prefetch.p0", (), kind)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), pointer)
        builder.call(function, [address, flag(0), flag(3), flag(1)])  # read, keep, data

    return types.void(array, types.intp), generate


def _any_within(count: int) -> Any:
    """Makes the test whether one of the GROUP keys from `start` costs at most `limit`, for `count` planes.

    Written as vectors of eight words: LLVM splits them where registers are shorter, but would not itself use
    the long registers, and this loop is most of a scan.
    """

    def any_within(typing_context: Any, keys: Any, start: Any, bits: Any, planes: Any, limit: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # pragma: no cover
            data, masks = (
                context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 3)
            )
            word, lane = ir.IntType(64), ir.IntType(32)
            vector = ir.VectorType(word, 8)
            empty, zeros = ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(lane, 8), [0] * 8)

            def spread(value: Any) -> Any:
                return builder.shuffle_vector(builder.insert_element(empty, value, lane(0)), empty, zeros)

            query, most = spread(arguments[2]), spread(arguments[4])
            plane = [spread(builder.load(builder.gep(masks, [lane(b)]))) for b in range(count)]
            ones = builder.module.declare_intrinsic("llvm.ctpop.v8i64", (), ir.FunctionType(vector, [vector]))
            double = spread(word(1))
            found = None
            for offset in range(0, GROUP, 8):
                place = builder.gep(data, [builder.add(arguments[1], word(offset))])
                eight = builder.load(builder.bitcast(place, vector.as_pointer()), align=8)
                difference = builder.xor(eight, query)
                cost = None
                for b in reversed(range(count)):
                    here = builder.call(ones, [builder.and_(difference, plane[b])])
                    cost = here if cost is None else builder.add(builder.shl(cost, double), here)
                passes = builder.icmp_unsigned("<=", cost, most)
                found = passes if found is None else builder.or_(found, passes)
            return builder.icmp_unsigned("!=", builder.bitcast(found, ir.IntType(8)), ir.IntType(8)(0))

        return types.boolean(keys, types.intp, types.uint64, planes, types.uint64), generate

    return intrinsic(any_within)


any_within_hard = _any_within(1)
any_within_soft = _any_within(WEIGHT_BITS)


@njit([_word(_Words)], cache=True, nogil=True)
def read_all(keys):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Sum of all keys: does nothing but read them, for benchmarks."""
    total = np.uint64(0)
    for start in range(0, keys.size - GROUP + 1, GROUP):
        for i in range(start, start + GROUP, 8):
            prefetch(keys, i + PREFETCH_DISTANCE)
        for i in range(start, start + GROUP):
            total += keys[i]
    for i in range(keys.size - keys.size % GROUP, keys.size):
        total += keys[i]
    return total


@njit([_int(_word, _Words)], cache=True, nogil=True)
def cost_of(difference, planes):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Cost of one difference."""
    cost = np.uint64(0)
    for b in range(planes.size):
        cost += popcount(difference & planes[b]) << np.uint64(b)
    return np.int64(cost)


@njit([_int(_int[::1], _word[::1], _int, _int, _word)], cache=True, nogil=True)
def insert(costs, found, filled, cost, key):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Put (cost, key) into the sorted list of the best; returns how many it holds now."""
    place = filled
    if filled == costs.size:
        place = filled - 1
        if cost > costs[place] or (cost == costs[place] and key >= found[place]):
            return filled
    while place > 0 and (costs[place - 1] > cost or (costs[place - 1] == cost and found[place - 1] > key)):
        costs[place] = costs[place - 1]
        found[place] = found[place - 1]
        place -= 1
    costs[place] = cost
    found[place] = key
    return min(filled + 1, costs.size)


@njit([_int(_int[::1], _int, _int)], cache=True, nogil=True)
def cutoff_of(costs, filled, within):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The largest cost that may still become an answer."""
    if filled == costs.size:
        return min(within, costs[filled - 1])
    return within


@njit([_int(_Words, _int, _int, _word, _Words, _int, _int[::1], _word[::1], _int)], cache=True, nogil=True)
def scan_few(keys, start, stop, bits, planes, within, costs, found, filled):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Look at keys[start:stop] one by one for one query; returns how many answers there are now."""
    cutoff = cutoff_of(costs, filled, within)
    for i in range(start, stop):
        cost = cost_of(keys[i] ^ bits, planes)
        if cost <= cutoff:
            filled = insert(costs, found, filled, cost, keys[i])
            cutoff = cutoff_of(costs, filled, within)
    return filled


@njit(
    [
        types.void(
            _Words,
            _Words,
            types.Array(types.uint64, 2, "C", readonly=True),
            _int,
            _int[:, ::1],
            _word[:, ::1],
            _int[::1],
        )
    ],
    cache=True,
    nogil=True,
)
def scan(keys, bits, planes, within, costs, found, filled):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The best of all keys for Q queries at once: each chunk of keys is read from memory once for all of them."""
    hard = planes.shape[1] == 1
    for first in range(0, keys.size, CHUNK):
        last = min(first + CHUNK, keys.size)
        whole = last - (last - first) % GROUP
        for q in range(bits.size):
            own = planes[q]
            limit = np.uint64(cutoff_of(costs[q], filled[q], within))
            for start in range(first, whole, GROUP):
                if q == 0:
                    for i in range(start, start + GROUP, 8):
                        prefetch(keys, i + PREFETCH_DISTANCE)
                if hard:
                    near = any_within_hard(keys, start, bits[q], own, limit)
                else:
                    near = any_within_soft(keys, start, bits[q], own, limit)
                if near:
                    filled[q] = scan_few(
                        keys, start, start + GROUP, bits[q], own, within, costs[q], found[q], filled[q]
                    )
                    limit = np.uint64(cutoff_of(costs[q], filled[q], within))
            filled[q] = scan_few(keys, whole, last, bits[q], own, within, costs[q], found[q], filled[q])


@njit([types.void(_Words, _int, types.uint32[::1])], cache=True, nogil=True)
def bucket_offsets(ordered, width, offsets):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Where the keys with each value of the top `width` bits start in the ordered keys; one more entry: the end."""
    shift = np.uint64(64 - width)
    bucket = 0
    for i in range(ordered.size):
        while bucket <= np.int64(ordered[i] >> shift):
            offsets[bucket] = i
            bucket += 1
    while bucket < offsets.size:
        offsets[bucket] = ordered.size
        bucket += 1


@njit([_word(_word, _int)], cache=True, nogil=True)
def rotate(word, places):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Rotate to the left; `places` in 0 ... 63."""
    return (word << np.uint64(places)) | (word >> np.uint64((64 - places) % 64)) if places else word


@njit(
    [
        _int(
            _Words, _Offsets, _int, _int, _Words, _word, _Words, _int, _Words, _Limits,
            _int[::1], _word[::1], _int,
        )
    ],
    cache=True,
    nogil=True,
)  # fmt: skip
def probe(  # type: ignore[no-untyped-def]  # pragma: no cover
    ordered,
    offsets,
    turn,
    width,
    patterns,
    bits,
    planes,
    within,
    others,
    seen,
    costs,
    found,
    filled,
):
    """Look into the buckets `pattern` away from the query's in one table of the index; everything is rotated.

    `others` and `seen`: masks of the other parts and the part cost up to which a look there finds, or has found,
    the key: such keys are left to that look, so that none is counted twice.
    """
    shift = np.uint64(64 - width)
    own = bits >> shift
    cutoff = cutoff_of(costs, filled, within)
    for j in range(patterns.size):
        if j + 16 < patterns.size:
            prefetch(offsets, np.int64(own ^ patterns[j + 16]))
        if j + 8 < patterns.size:
            ahead = np.int64(offsets[np.int64(own ^ patterns[j + 8])])
            for i in range(ahead, ahead + 48, 8):
                prefetch(ordered, i)
        bucket = np.int64(own ^ patterns[j])
        for i in range(np.int64(offsets[bucket]), np.int64(offsets[bucket + 1])):
            difference = ordered[i] ^ bits
            cost = cost_of(difference, planes)
            if cost > cutoff:
                continue
            fresh = True
            for part in range(others.size):
                difference_there = difference & others[part]
                fresh = fresh and cost_of(difference_there, planes) > seen[part]
            if fresh:
                filled = insert(costs, found, filled, cost, rotate(ordered[i], (64 - turn) % 64))
                cutoff = cutoff_of(costs, filled, within)
    return filled


@njit(
    [types.void(_Words, _Offsets, _Words, _Offsets, _Offsets, _int, types.boolean, types.boolean[::1])],
    cache=True,
    nogil=True,
)
def mark_near(others, other_offsets, keys, offsets, positions, least, itself, near):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Mark near[position] of the `keys` that differ from one of `others` in fewer than `least` bits.

    Both are grouped by the same 16 bits; only pairs whose 16 bits differ in at most one place are compared.
    `itself`: both are the same keys, of which each pair is compared once and both are marked.
    """
    for value in range(offsets.size - 1):
        for flip in range(17):
            bucket = value if flip == 16 else value ^ (1 << flip)
            if itself and bucket < value:
                continue
            for i in range(np.int64(other_offsets[value]), np.int64(other_offsets[value + 1])):
                start = i + 1 if itself and bucket == value else np.int64(offsets[bucket])
                for j in range(start, np.int64(offsets[bucket + 1])):
                    if np.int64(popcount(others[i] ^ keys[j])) < least:
                        near[np.int64(positions[j])] = True
                        if itself:
                            near[np.int64(positions[i])] = True
