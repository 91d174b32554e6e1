from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffmark.secret import (
    as_secrets,
    from_bytes,
    from_hex,
    from_int,
    random_secrets,
    to_bytes,
    to_hex,
    to_int,
)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, 2**n - 1))))
def test_hex_int_and_bytes_both_ways(case):
    length, value = case
    bits = from_int(value, length)
    assert bits.shape == (length,)
    assert to_int(bits) == value
    assert np.array_equal(from_hex(to_hex(bits), length), bits)
    assert np.array_equal(from_bytes(to_bytes(bits), length), bits)


def test_bit_zero_is_the_most_significant():
    assert to_hex([1] + [0] * 63) == "8" + "0" * 15
    assert from_hex("0000000000000001", 64)[-1] == 1


def test_random_secrets_are_fresh_and_fair():
    secrets = random_secrets(2000, 64)
    assert secrets.shape == (2000, 64)
    assert secrets.dtype == np.uint8
    assert len({to_int(s) for s in secrets}) == 2000
    assert abs(secrets.mean() - 0.5) < 0.01  # 7 standard deviations


def test_every_spelling_of_a_secret():
    bits = random_secrets(1)[0]
    spellings = [to_hex(bits), to_int(bits), to_bytes(bits), bits, bits.tolist(), bits[None], [to_hex(bits)]]
    spellings += [
        torch.from_numpy(bits),
        torch.from_numpy(bits[None]),
        bits.astype(bool),
        [bits],
        bits.astype(float),
    ]
    for spelling in spellings:
        assert np.array_equal(as_secrets(spelling, 64), bits[None])
    assert as_secrets([to_hex(bits), to_int(bits)], 64).shape == (2, 64)


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        ("abc", ValueError, "16 hex digits, got 3"),
        ("0x00000000000000", ValueError, "hex digits 0-9 a-f"),
        ("zzzzzzzzzzzzzzzz", ValueError, "hex digits 0-9 a-f"),
        ("+000000000000001", ValueError, "hex digits 0-9 a-f"),
        (2**64, ValueError, "does not fit"),
        (-1, ValueError, "does not fit"),
        (b"1234567", ValueError, "8 bytes, got 7"),
        ([0, 1], ValueError, r"shape \(64,\), got \(2,\)"),
        (np.full(64, 2), ValueError, "0 or 1"),
        (np.zeros((2, 3, 64)), ValueError, "shape"),
        ([], ValueError, "shape"),
        (np.zeros(64) + 0.5, ValueError, "0 or 1"),
    ],
)
def test_bad_secrets_are_rejected(value, error, says):
    with pytest.raises(error, match=says):
        as_secrets(value, 64)


def test_bad_numbers():
    with pytest.raises(TypeError, match="must be an int"):
        from_int(True, 64)
    with pytest.raises(ValueError, match="at least 1"):
        random_secrets(0)
