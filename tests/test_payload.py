from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffmark.payload.bch import codes
from diffmark.payload.permutation import FF1
from diffmark.payload.scheme import Code, PayloadScheme, rates
from diffmark.statistics import clopper_pearson

KEY = bytes(range(32))
SCHEMES = {k: PayloadScheme(KEY, 64, k - 18, 6, 12) for k, _ in rates(64)}


def digits(text: str) -> int:
    return int(text, 36)


def test_ff1_gives_the_samples_of_nist():
    """NIST SP 800-38G, FF1 samples 1, 2, 3 (AES-128) and 7 (AES-256)."""
    key = bytes.fromhex("2B7E151628AED2A6ABF7158809CF4F3C")
    assert FF1(key, 10, 10).encrypt(123456789) == 2433477484
    assert FF1(key, 10, 10, bytes.fromhex("39383736353433323130")).encrypt(123456789) == 6124200773
    tweak = bytes.fromhex("3737373770717273373737")
    assert FF1(key, 19, 36, tweak).encrypt(digits("0123456789abcdefghi")) == digits("a9tv40mll9kdu509eum")
    long_key = key + bytes.fromhex("EF4359D8D580AA4F7F036D6F04FC6A94")
    assert FF1(long_key, 10, 10).encrypt(123456789) == 6657667009


@given(st.binary(min_size=16, max_size=16), st.integers(20, 130), st.data())
def test_ff1_is_a_permutation(key, bits, data):
    value = data.draw(st.integers(0, 2**bits - 1))
    permutation = FF1(key, bits)
    assert permutation.decrypt(permutation.encrypt(value)) == value
    assert permutation.encrypt(permutation.decrypt(value)) == value


def test_ff1_bad_arguments():
    with pytest.raises(ValueError, match="16, 24 or 32 bytes, got 5"):
        FF1(b"short", 45)
    with pytest.raises(ValueError, match="too few"):
        FF1(KEY, 10)
    with pytest.raises(ValueError, match="outside"):
        FF1(KEY, 45).encrypt(2**45)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(SCHEMES)), st.data())
def test_every_pattern_of_up_to_t_errors_is_corrected(dimension, data):
    scheme = SCHEMES[dimension]
    account = data.draw(st.integers(0, 2**scheme.account_bits - 1))
    nonce = data.draw(st.integers(0, 2**scheme.nonce_bits - 1))
    bits = scheme.encode(account, nonce)
    wrong = data.draw(st.sets(st.integers(0, 63), max_size=scheme.code.correctable))
    bits[list(wrong)] ^= 1
    payload = scheme.decode(2.0 * bits - 1)
    assert (payload.verified, payload.account, payload.nonce) == (True, account, nonce)
    assert payload.errors == len(wrong)


@pytest.mark.parametrize("length", [48, 100, 128])
def test_other_lengths(length):
    dimension, t = rates(length)[2]
    scheme = PayloadScheme(KEY, length, dimension - 12, 0, 12)
    bits = scheme.encode(5)
    assert bits.shape == (length,)
    bits[:t] ^= 1
    assert scheme.decode(2.0 * bits - 1).account == 5


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([45, 36, 24]))
def test_soft_decoding_is_never_worse_than_hard(seed, dimension):
    scheme, rng = SCHEMES[dimension], np.random.default_rng(seed)
    account = int(rng.integers(2**scheme.account_bits))
    bits = scheme.encode(account, 3)
    margins = 2.0 * bits - 1 + rng.normal(0, 0.75, 64)
    hard = scheme.code.decode_hard(((margins > 0) ^ scheme._mask).astype(np.uint8))
    if hard is not None and np.array_equal(hard ^ scheme._mask, bits):
        assert scheme.decode(margins).account == account


def test_soft_decoding_reads_what_hard_decoding_cannot():
    scheme, rng = SCHEMES[45], np.random.default_rng(0)
    hard = soft = both = 0
    for _ in range(150):
        codeword = scheme.code.encode(rng.integers(0, 2, 45).astype(np.uint8))
        margins = 2.0 * codeword - 1 + rng.normal(0, 0.65, 64)
        found = scheme.code.decode_hard((margins > 0).astype(np.uint8))
        right = found is not None and np.array_equal(found, codeword)
        likely = np.array_equal(scheme.code.decode_soft(margins), codeword)
        hard, soft, both = hard + right, soft + likely, both + (right and likely)
    assert soft > hard + 30
    assert both >= hard - 1  # hardly ever does soft decoding alone lose what hard decoding reads


def test_a_wrong_key_verifies_no_more_often_than_stated():
    """Another operator's marks are no more likely to verify than noise is, and the p-value tells how likely."""
    widths = (50, 5, 2)  # few check bits, so that the rate can be measured
    scheme = PayloadScheme(KEY, 64, *widths)
    p_values = []
    for other in range(150):
        stranger = PayloadScheme(bytes([other]) * 32, 64, *widths)
        p_values += [stranger.decode(2.0 * scheme.encode(account) - 1).p_value for account in range(2)]
    for level in (0.01, 0.03, 0.1, 0.3):
        hits = sum(p <= level for p in p_values)
        assert clopper_pearson(hits, len(p_values), 0.999)[0] <= level


def test_a_secret_is_no_codeword_to_outsiders():
    scheme = PayloadScheme(KEY)
    words = [scheme.encode(account) for account in range(20)]
    assert all(scheme.decode(2.0 * word - 1).errors == 0 for word in words)
    plain = [scheme.code.decode_hard(word) for word in words]
    assert (
        sum(
            found is not None and np.array_equal(found, word)
            for found, word in zip(plain, words, strict=True)
        )
        == 0
    )


def test_unmarked_bits_verify_no_more_often_than_the_p_value_says():
    scheme, rng = PayloadScheme(KEY, 64, 50, 5, 2), np.random.default_rng(0)
    p_values = [scheme.decode(rng.normal(0, 1, 64)).p_value for _ in range(400)]
    for level in (0.01, 0.03, 0.1, 0.3):
        hits = sum(p <= level for p in p_values)
        assert clopper_pearson(hits, 400, 0.999)[0] <= level


def test_images_of_one_account_look_unrelated():
    """Fresh nonces flip half of the message bits: averaging many secrets of one account leaves nothing."""
    scheme = PayloadScheme(KEY)
    secrets = np.stack([scheme.encode(7, nonce) for nonce in range(400)])
    assert np.abs(secrets.mean(axis=0) - 0.5).max() < 0.12  # 4.8 standard deviations
    assert len({s.tobytes() for s in secrets}) == 400


def test_bad_arguments():
    with pytest.raises(ValueError, match="no code of 46 bits in 64; there are 57"):
        PayloadScheme(KEY, 64, 20, 14, 12)
    with pytest.raises(ValueError, match="at least 1 bit"):
        PayloadScheme(KEY, 64, 45, 0, 0)
    with pytest.raises(ValueError, match="account 1048576 does not fit in 20 bits"):
        PayloadScheme(KEY).encode(2**20)
    with pytest.raises(ValueError, match="nonce"):
        PayloadScheme(KEY).encode(1, 2**13)
    with pytest.raises(ValueError, match="margins have shape"):
        PayloadScheme(KEY).decode([1.0])
    with pytest.raises(ValueError, match="32 to 256 bits"):
        rates(16)
    with pytest.raises(ValueError, match="there are"):
        Code(64, 64)
    assert len(PayloadScheme.new_key()) == 32


def test_codes_stay_the_same():
    """Secrets that were issued must stay readable: the generators are those of `galois`, which made the first."""
    digest = hashlib.sha256()
    for length in (32, 48, 64, 100, 128, 256):
        for code in codes(length - 1):
            matrix = code.matrix
            parity = matrix.sum(axis=1, keepdims=True) % 2
            digest.update(np.packbits(np.concatenate([matrix, parity], axis=1).astype(np.uint8)).tobytes())
            digest.update(bytes([code.dimension % 256, code.t]))
    assert digest.hexdigest() == "b834e0756aa14ee45c671fbc1ce01df8710c390ea344eb5c7dd6e6c6598bd967"
    secret = "1001100011111001110000101000111100000101111001110001001011000001"
    assert "".join(map(str, PayloadScheme(KEY).encode(12345, 678))) == secret


def test_more_errors_than_t_are_refused_or_lie_near_a_codeword():
    code = codes(63)[3]
    rng = np.random.default_rng(0)
    for _ in range(200):
        bits = rng.integers(0, 2, 63).astype(np.uint8)
        found = code.correct(bits)
        if found is not None:
            assert (found != bits).sum() <= code.t
            assert np.array_equal(found[: code.dimension].astype(int) @ code.matrix % 2, found)
