"""Binary BCH codes: primitive, narrow-sense, shortened; encoded systematically, decoded by Berlekamp and Massey.

A code of length n = 2^m - 1 that corrects t errors has the generator

    g(x) = lcm of the minimal polynomials of a, a^2, ..., a^2t

over GF(2), a being a root of the Conway polynomial of GF(2^m). Shortening by s takes codewords whose first s
message bits are zero. Polynomials over GF(2) are integers here, bit i being the coefficient of x^i.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONWAY = {5: 0b100101, 6: 0b1011011, 7: 0b10000011, 8: 0b100011101}  # by degree m
MIN_DIMENSION = 20  # FF1 needs a million values


class Field:
    """GF(2^m) by its tables of powers and logarithms."""

    def __init__(self, degree: int) -> None:
        self.order = (1 << degree) - 1
        self.powers = [1]
        for _ in range(2 * self.order):
            value = self.powers[-1] << 1
            self.powers.append(value ^ CONWAY[degree] if value >> degree else value)
        self.logs = {value: power for power, value in enumerate(self.powers[: self.order])}

    def power(self, exponent: int) -> int:
        """a^exponent."""
        return self.powers[exponent % self.order]

    def times(self, x: int, y: int) -> int:
        return self.powers[self.logs[x] + self.logs[y]] if x and y else 0

    def over(self, x: int, y: int) -> int:
        return self.powers[self.logs[x] - self.logs[y] + self.order] if x else 0


@dataclass(frozen=True)
class BCH:
    """An [n - s, k - s] code; words are arrays of bits, message first."""

    length: int  # n - s
    dimension: int  # k - s
    t: int  # errors that it corrects
    generator: int  # g(x)

    @functools.cached_property
    def matrix(self) -> NDArray[np.int64]:
        """Systematic generator matrix, (k - s, n - s)."""
        rows = []
        for place in range(self.dimension):
            word = 1 << (self.length - 1 - place)
            word |= _remainder(word, self.generator)
            rows.append([word >> (self.length - 1 - column) & 1 for column in range(self.length)])
        return np.array(rows, np.int64)

    def correct(self, bits: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        """The codeword within t errors of `bits`, (n - s,); None if there is none."""
        field = _field(self.length.bit_length())
        ones = [self.length - 1 - int(place) for place in np.flatnonzero(bits)]  # exponents of x
        syndromes = [0] * (2 * self.t)
        for j in range(2 * self.t):
            for exponent in ones:
                syndromes[j] ^= field.power(exponent * (j + 1))
        locator = _berlekamp_massey(syndromes, field)
        errors = len(locator) - 1
        if errors > self.t:
            return None
        roots = [e for e in range(self.length) if _value(locator, field.power(-e), field) == 0]
        if len(roots) != errors:  # errors beyond t, or in places that shortening took away
            return None
        corrected = bits.copy()
        for exponent in roots:
            corrected[self.length - 1 - exponent] ^= 1
        return corrected


@functools.cache
def codes(length: int) -> tuple[BCH, ...]:
    """Every BCH code of this length with at least MIN_DIMENSION message bits, the longest message first."""
    degree = length.bit_length()
    field = _field(degree)
    shortened = field.order - length
    found: dict[int, BCH] = {}
    roots: set[int] = set()
    generator = 1
    for t in range(1, field.order // 4):
        new = {(2 * t - 1) * 2**i % field.order for i in range(degree)} - roots
        roots |= new
        generator = _multiply(generator, _minimal(new, field))
        dimension = field.order - len(roots) - shortened
        if dimension < MIN_DIMENSION:
            break
        found[dimension] = BCH(length, dimension, t, generator)
    return tuple(found.values())


@functools.cache
def _field(degree: int) -> Field:
    return Field(degree)


def _minimal(conjugates: set[int], field: Field) -> int:
    """The polynomial over GF(2) whose roots are a^i for these i; 1 if there are none."""
    product = [1]  # coefficients in GF(2^m), lowest first
    for exponent in conjugates:
        root = field.power(exponent)
        shifted = [0, *product]
        for i, value in enumerate(product):
            shifted[i] ^= field.times(value, root)
        product = shifted
    return sum(value << i for i, value in enumerate(product))


def _multiply(x: int, y: int) -> int:
    product = 0
    while y:
        product ^= x if y & 1 else 0
        x, y = x << 1, y >> 1
    return product


def _remainder(x: int, divisor: int) -> int:
    while (shift := x.bit_length() - divisor.bit_length()) >= 0:
        x ^= divisor << shift
    return x


def _berlekamp_massey(syndromes: list[int], field: Field) -> list[int]:
    """The shortest locator polynomial that explains the syndromes; coefficients, lowest first."""
    current, before = [1], [1]
    length, gap, last = 0, 1, 1
    for n, syndrome in enumerate(syndromes):
        discrepancy = syndrome
        for i in range(1, min(length, len(current) - 1) + 1):
            discrepancy ^= field.times(current[i], syndromes[n - i])
        if discrepancy == 0:
            gap += 1
            continue
        scale = field.over(discrepancy, last)
        changed = current + [0] * max(0, len(before) + gap - len(current))
        for i, value in enumerate(before):
            changed[i + gap] ^= field.times(scale, value)
        if 2 * length <= n:
            current, before, length, last, gap = changed, current, n + 1 - length, discrepancy, 1
        else:
            current, gap = changed, gap + 1
    while current[-1] == 0:
        current = current[:-1]
    return current


def _value(polynomial: list[int], x: int, field: Field) -> int:
    """The polynomial at x, by Horner's rule."""
    value = 0
    for coefficient in reversed(polynomial):
        value = field.times(value, x) ^ coefficient
    return value
