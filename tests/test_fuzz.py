"""Every parser that takes foreign bytes, fed with damaged ones: it reads them or refuses them, and never crashes.

Whole inputs with some bytes exchanged, repeated, cut or made extreme, or bytes at random. A few hundred cases run
always; `make test-slow` runs 100,000.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import EXTREMES, originals

from diffmark.bulk.sources import Shard, find
from diffmark.bulk.sources import read as read_shard
from diffmark.cli.identify import read_logits
from diffmark.disclosure import declared_in, xmp
from diffmark.disclosure.embedding import disclose
from diffmark.images import ImageError, read_image
from diffmark.keys.ring import parse
from diffmark.latent.calibration import Calibration
from diffmark.latent.config import CodecConfig
from diffmark.latent.dosing import Dosing
from diffmark.latent.files import read_config as read_codec
from diffmark.metadata import read_metadata
from diffmark.payload.scheme import PayloadScheme
from diffmark.pixel.animation import Animation
from diffmark.private import given as given_secret
from diffmark.registry import Registry
from diffmark.registry.errors import RegistryError
from diffmark.registry.exchange import import_file
from diffmark.registry.store import Store
from diffmark.secret import from_hex
from diffmark.training.config import read_config as read_training
from diffmark.verdict import jws
from diffmark.verdict.keys import PublicKeys, SigningKey

REFUSALS = (ValueError, OSError, RegistryError)
CASES = {  # in `make test-slow`
    "images": 12_000,
    "metadata": 4_000,
    "animations": 2_000,
    "rings": 20_000,
    "secrets": 12_000,
    "payloads": 2_000,
    "signed verdicts": 14_000,
    "public keys": 6_000,
    "registry csv": 2_000,
    "registry parquet": 1_000,
    "registry urls": 3_000,
    "logits": 4_000,
    "training config": 8_000,
    "codec config": 6_000,
    "calibrations": 2_000,
    "manifests": 2_000,
    "declarations": 3_000,
    "disclosures": 2_000,
    "tars": 1_000,
    "tables of pictures": 1_000,
}
FEW = 25
DEEP = (b"[" * 5000, b'{"a":' * 5000, b"<a>" * 5000)  # nesting without end

edit = st.tuples(
    st.integers(0, 5),
    st.floats(0, 1),
    st.one_of(st.sampled_from((*EXTREMES, *DEEP)), st.binary(min_size=1, max_size=24)),
)


def changed(sample: bytes, edits: list[tuple[int, float, bytes]]) -> bytes:
    data = bytearray(sample)
    for kind, where, piece in edits:
        place = int(where * len(data))
        if kind == 0:
            data[place : place + len(piece)] = piece
        elif kind == 1:
            data[place:place] = piece
        elif kind == 2:
            del data[place : place + len(piece)]
        elif kind == 3:
            data = data[:place]
        elif kind == 4:
            data[place:place] = data[place : place + 20] * min(len(piece), 24)
        elif len(data):
            data[min(place, len(data) - 1)] ^= piece[0]
    return bytes(data)


def damaged(*samples: bytes) -> st.SearchStrategy[bytes]:
    """One of these with a few changes; or any bytes."""
    from_sample = st.builds(changed, st.sampled_from(samples), st.lists(edit, max_size=4))
    return st.one_of(from_sample, from_sample, from_sample, st.binary(max_size=400))


@cache
def parquet() -> bytes:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({"key": ["00112233445566aa"], "principal": ["a"], "created": [1]}), buffer)
    return buffer.getvalue()


@cache
def npy() -> bytes:
    import io

    buffer = io.BytesIO()
    np.save(buffer, np.zeros((2, 64, 2), np.float32))
    return buffer.getvalue()


@cache
def tars() -> tuple[bytes, ...]:
    """A tar with a picture in it, plain and packed."""
    import io
    import tarfile

    found = []
    for mode in ("w", "w:gz"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode) as tar:
            member = tarfile.TarInfo("a/b.png")
            member.size = len(originals()["PNG"])
            tar.addfile(member, io.BytesIO(originals()["PNG"]))
        found.append(buffer.getvalue())
    return tuple(found)


@cache
def picture_table() -> bytes:
    """A Parquet file of pictures."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({"image": [originals()["PNG"], b"", None]}), buffer)
    return buffer.getvalue()


FIELDS = xmp.Fields("trainedAlgorithmicMedia", "Example AI", "DiffMark", "1", aigc={"Label": "1"})
SIGNING = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(32)))  # the same cases in every run
PUBLIC = PublicKeys(SIGNING.public)
SIGNED = jws.sign({"a": 1, "b": ["x"]}, SIGNING).encode()
JWKS = json.dumps(PUBLIC.to_jwks()).encode()
TOML = (
    b'seed = 3\n[model]\nvae = "vista"\n[data]\npictures = "painted"\ncount = 10\n[optimiser]\nrate = 1e-3\n'
)
CODEC = json.dumps(
    {"format": "diffmark-codec", "version": 1, "config": {"length": 64, "injection": {"mode": "final"}}}
)
SCHEME = PayloadScheme(bytes(32))


def images(data: bytes, folder) -> None:
    read_image(data, 1_000_000)


def metadata(data: bytes, folder) -> None:
    file = folder / "x"
    file.write_bytes(data)
    read_metadata(read_image(file, 1_000_000))


def animations(data: bytes, folder) -> None:
    file = folder / "x.gif"
    file.write_bytes(data)
    found = Animation.open(file)
    if found is not None:
        list(found.frames)


def rings(data: bytes, folder) -> None:
    parse(data.decode("utf-8", "replace"), "ring")


def secrets(data: bytes, folder) -> None:
    text = data.decode("utf-8", "replace")
    if not text.startswith("@"):
        from_hex(given_secret(text, "secrets"), 64)


def payloads(data: bytes, folder) -> None:
    values = np.frombuffer(data.ljust(256, b"\0")[:256], np.float32).astype(np.float64)
    if np.isfinite(values).all():  # `decide` lets no other through
        found = SCHEME.decode(np.clip(values, -1e30, 1e30))
        assert found.verified == (found.account is not None)


def signed(data: bytes, folder) -> None:
    claims, _ = jws.verify(data.decode("utf-8", "replace"), PUBLIC)
    assert claims == {"a": 1, "b": ["x"]}  # nothing else was ever signed


def public_keys(data: bytes, folder) -> None:
    file = folder / "keys.json"
    file.write_bytes(data)
    PublicKeys.from_file(file)


def registry_file(suffix: str) -> Callable[[bytes, object], None]:
    def read(data: bytes, folder) -> None:
        file = folder / f"keys{suffix}"
        file.write_bytes(data)
        with Registry.open("sqlite://", actor="root", cache=False) as registry:
            import_file(registry, file)

    return read


def registry_urls(data: bytes, folder) -> None:
    text = data.decode("utf-8", "replace")
    if not text.startswith(("sqlite", "postgresql")):  # those would be opened
        Store(text)


def logits(data: bytes, folder) -> None:
    file = folder / "x.npy"
    file.write_bytes(data)
    list(read_logits(file))


def training(data: bytes, folder) -> None:
    file = folder / "run.toml"
    file.write_bytes(data)
    read_training(file)


def codec(data: bytes, folder) -> None:
    (folder / "config.json").write_bytes(data)
    document = read_codec(folder)
    try:
        CodecConfig(**document["config"])
        Dosing.from_dict(document["dosing"])
    except (KeyError, TypeError, AttributeError) as error:  # `Codec.from_pretrained` names the file then
        raise ValueError("no codec") from error


def calibration(data: bytes, folder) -> None:
    try:
        Calibration.from_dict(json.loads(data))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:  # likewise
        raise ValueError("no calibration") from error


def manifests(data: bytes, folder) -> None:
    from diffmark.c2pa import active_only, inspect

    file = folder / "x.png"
    file.write_bytes(data)
    for call in (lambda: inspect(file), lambda: active_only(data)):
        with suppress(*REFUSALS):
            call()


def declarations(data: bytes, folder) -> None:
    declared_in(data)
    xmp.read(data)
    assert xmp.read(xmp.write(FIELDS, data)) == FIELDS  # whatever was there before


def disclosures(data: bytes, folder) -> None:
    file = folder / "x"
    file.write_bytes(data)
    disclose(file, FIELDS)


def tar(data: bytes, folder) -> None:
    for name in ("x.tar", "x.tgz"):
        file = folder / name
        file.write_bytes(data)
        list(read_shard(Shard("tar", (str(file),))))


def tables(data: bytes, folder) -> None:
    file = folder / "x.parquet"
    file.write_bytes(data)
    for shard in find(str(file), "image")[0]:
        list(read_shard(shard))


PARSERS: dict[str, tuple[Callable[..., None], st.SearchStrategy[bytes]]] = {
    "images": (images, damaged(*originals().values())),
    "metadata": (metadata, damaged(*originals().values())),
    "animations": (animations, damaged(originals()["GIF"], originals()["WEBP"])),
    "rings": (rings, damaged(b"00" * 32 + b" 2027-01-31\n" + b"11" * 32 + b" # old\n")),
    "secrets": (secrets, damaged(b"0123456789abcdef")),
    "payloads": (payloads, st.binary(min_size=256, max_size=256)),
    "signed verdicts": (signed, damaged(SIGNED, json.dumps(jws.flattened(SIGNED.decode())).encode())),
    "public keys": (public_keys, damaged(JWKS)),
    "registry csv": (
        registry_file(".csv"),
        damaged(b"key,principal,created\n00112233445566aa,a,5\n", b"key\nff" * 9),
    ),
    "registry parquet": (registry_file(".parquet"), damaged(parquet())),
    "registry urls": (registry_urls, damaged(b"sqlite:///x.db", b"clickhouse://u:p@host/db?rows=x")),
    "logits": (logits, damaged(npy())),
    "training config": (training, damaged(TOML)),
    "codec config": (codec, damaged(CODEC.encode())),
    "calibrations": (
        calibration,
        damaged(json.dumps(Calibration.measure(np.arange(30.0)).to_dict()).encode()),
    ),
    "manifests": (manifests, damaged(originals()["PNG"], b"\0\0\0\x20jumb\0\0\0\x18jumdc2pa" + bytes(16))),
    "declarations": (declarations, damaged(xmp.write(FIELDS))),
    "disclosures": (disclosures, damaged(*(originals()[name] for name in ("PNG", "JPEG", "WEBP")))),
    "tars": (tar, damaged(*tars())),
    "tables of pictures": (tables, damaged(picture_table())),
}


def fuzz(name: str, cases: int, folder) -> None:
    parser, inputs = PARSERS[name]
    ran = 0

    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=inputs)
    def check(data: bytes) -> None:
        nonlocal ran
        ran += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what libraries think of a file is no crash
            try:
                parser(data, folder)
            except REFUSALS as refusal:
                assert str(refusal)

    check()
    assert ran >= cases


def test_every_parser_has_its_share_of_a_hundred_thousand_cases():
    assert PARSERS.keys() == CASES.keys()
    assert sum(CASES.values()) >= 100_000


@pytest.mark.parametrize("name", CASES)
def test_some_damaged_inputs_are_read_or_refused(name, tmp_path):
    fuzz(name, FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_hundred_thousand_damaged_inputs_are_read_or_refused(name, tmp_path):
    fuzz(name, CASES[name], tmp_path)


def test_an_image_that_is_refused_names_its_source():
    with pytest.raises(ImageError, match="bytes"):
        read_image(b"nothing")


DEEPEST = "[" * 200_000


def test_json_that_is_nested_without_end_is_no_declaration_and_no_verdict(tmp_path):
    """The parser of JSON gives up with an error of its own kind, which was a 500 of the public verifier."""
    assert xmp.read_aigc(DEEPEST) is None
    assert xmp.read_aigc(json.dumps({"Label": "1", "ProduceID": [[1]]})) == {"Label": "1"}
    with pytest.raises(ValueError, match="not a signed verdict"):
        jws.verify('{"protected":' + DEEPEST[:5000], PUBLIC)
    (tmp_path / "keys.json").write_text('{"keys":' + DEEPEST)
    with pytest.raises(ValueError, match="neither a JWK set"):
        PublicKeys.from_file(tmp_path / "keys.json")


def test_fields_beside_a_damaged_name_are_found_again():
    """A wrong namespace of the packet's root was kept, under a prefix that no reader looks for."""
    packet = xmp.write(FIELDS).replace(b"adobe:ns:meta/", b"ados:meta/")
    assert xmp.read(xmp.write(FIELDS, packet)) == FIELDS


def test_xmp_that_is_nested_without_end_is_not_kept():
    packet = xmp.write(FIELDS).replace(b"</rdf:RDF>", b"<a>" * 50_000 + b"</a>" * 50_000 + b"</rdf:RDF>")
    assert xmp.read(packet) == xmp.Fields()
    assert xmp.read(xmp.write(FIELDS, packet)) == FIELDS


def test_no_more_of_an_archive_is_unpacked_than_a_picture_may_have(monkeypatch):
    import io
    import zipfile

    from diffmark.integrations import pictures

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(50_000))
    monkeypatch.setattr(pictures, "MAX_UNPACKED_BYTES", 50_000)
    assert pictures.mark_archive(buffer.getvalue(), lambda data: data)
    monkeypatch.setattr(pictures, "MAX_UNPACKED_BYTES", 49_999)
    with pytest.raises(ImageError, match="49,999 bytes"):
        pictures.mark_archive(buffer.getvalue(), lambda data: data)
