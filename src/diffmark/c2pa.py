"""C2PA: signed manifests that name the mark, so that stripped metadata can be found again through the image itself.

A manifest holds a `c2pa.soft-binding` assertion with our algorithm and the key's public handle, and the action
`c2pa.watermarked.bound` (C2PA 2.4). It holds neither the secret nor the prompt nor a file's name.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffmark import __version__
from diffmark.private import check_private

if TYPE_CHECKING:
    import c2pa

    from diffmark.disclosure.provider import Disclosure

ALGORITHM = "org.diffmark.latent64.1"  # 64 bits in the latents, read by this project's decoder
SOURCE_TYPES = "http://cv.iptc.org/newscodes/digitalsourcetype/"
GENERATED = f"{SOURCE_TYPES}trainedAlgorithmicMedia"
DISCLOSURE = "org.diffmark.disclosure"  # assertion: provider, system, version, time, id
COMMAND_SECONDS = 60  # that a signing command may take
FORMATS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
_NO_COPIES = {"builder": {"thumbnail": {"enabled": False}}, "verify": {"remote_manifest_fetch": False}}


class ManifestError(ValueError):
    """A file has no manifest, or cannot be signed; the message names it and says why."""


@dataclass(frozen=True)
class Inspection:
    """What a manifest says and whether that holds."""

    manifest: str  # URN
    generator: str
    signer: str
    signature: str  # trusted, valid (by a signer that is not among the trusted ones) or broken
    content: str  # unchanged, or changed: these are not the bytes that were signed
    algorithm: str | None  # of the soft binding
    value: str | None
    actions: tuple[str, ...]
    source_type: str | None  # IPTC term of how the image was made
    disclosure: dict[str, str] | None  # provider, system, version, time, id
    time: str | None  # of the time-stamping authority, if one was asked
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class ManifestSigner:
    """Signs images with a certificate chain and a private key, both PEM files, or a command that holds the key.

    The command gets what is to be signed on standard input and writes the signature to standard output: DER or raw
    for elliptic curves. `ta_url` is a time-stamping authority (RFC 3161) that is asked at every signature.
    """

    def __init__(
        self,
        chain: Path,
        key: Path | None = None,
        *,
        command: Sequence[str] = (),
        algorithm: str = "es256",
        ta_url: str | None = None,
    ) -> None:
        library = _library()
        if (key is None) == (not command):
            raise ManifestError(f"{chain}: a signer needs either a private key or a command")
        try:
            if key is not None:
                check_private(key, "a private key")
                info = library.C2paSignerInfo(
                    _algorithm(key), chain.read_bytes(), key.read_bytes(), ta_url.encode() if ta_url else None
                )
                self._signer = library.Signer.from_info(info)
            else:
                known = {name.lower(): value for name, value in library.C2paSigningAlg.__members__.items()}
                if algorithm.lower() not in known:
                    raise ManifestError(f"an algorithm is one of {', '.join(known)}, got {algorithm!r}")
                signing = known[algorithm.lower()]
                self._signer = library.Signer.from_callback(
                    lambda data: _run(command, data), signing, chain.read_text(), ta_url
                )
        except library.C2paError as error:
            raise ManifestError(f"{chain} cannot sign: {error}") from error
        self.chain = chain

    def check(self) -> None:
        """Sign a picture of a few pixels and read it back: a bad certificate is said before any work."""
        from PIL import Image

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trial.png"
            Image.new("RGB", (16, 16)).save(path)
            try:
                self.sign(path, None)
            except ManifestError as error:
                raise ManifestError(f"{self.chain} cannot sign: {error.__cause__ or error}") from error
            seen = inspect(path)
        if seen.signature == "broken" or seen.content != "unchanged":
            raise ManifestError(f"{self.chain} cannot sign: {'; '.join(seen.problems) or seen.signature}")

    def sign(
        self,
        path: Path,
        handle: str | None,
        kind: str | None = None,
        parent: Path | None = None,
        disclosure: Disclosure | None = None,
    ) -> tuple[str, bytes]:
        """Put a manifest into the image at `path`; pixels and other metadata stay. Returns its URN and its bytes.

        `handle` is that of the key; without one the mark is named, but not bound. `kind` is the media type, by
        default after the suffix. `parent` is the image before it was marked; without one the image counts as
        generated. A manifest that the parent has is kept in the new one.
        """
        library = _library()
        kind = kind or _kind(path)
        name = f"urn:c2pa:{uuid.uuid4()}"
        partial = path.with_name(path.name + ".signed")
        context = library.Context.from_dict(_NO_COPIES)
        definition = _definition(name, handle, parent is None, disclosure)
        try:
            with library.Builder(definition, context) as builder:
                if parent is not None:
                    _add_parent(builder, parent)
                with path.open("rb") as source, partial.open("w+b") as signed:
                    data = builder.sign(self._signer, kind, source, signed)
        except library.C2paError as error:
            partial.unlink(missing_ok=True)
            raise ManifestError(f"{path}: cannot be signed: {error}") from error
        os.replace(partial, path)
        return name, bytes(data)


def _run(command: Sequence[str], data: bytes) -> bytes:
    """The signature that a command gives."""
    try:
        done = subprocess.run(list(command), input=data, capture_output=True, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ManifestError(f"{command[0]}: cannot sign: {error}") from error
    if done.returncode or not done.stdout:
        said = done.stderr.decode(errors="replace").strip()[-200:]
        raise ManifestError(f"{command[0]}: cannot sign: exit code {done.returncode} {said}")
    return done.stdout


def inspect(image: Path, anchors: Path | None = None, manifest: bytes | None = None) -> Inspection:
    """The manifest in a file, or a recovered one against a file; `anchors` are PEMs of roots to trust."""
    return inspect_bytes(image.read_bytes(), str(image), anchors, manifest)


def inspect_bytes(
    data: bytes, name: str, anchors: Path | None = None, manifest: bytes | None = None
) -> Inspection:
    """The same for the bytes of a file; `name` is for messages."""
    library = _library()
    settings: dict[str, Any] = dict(_NO_COPIES)
    if anchors is not None:
        settings["trust"] = {"trust_anchors": anchors.read_text()}
    try:
        context = library.Context.from_dict(settings)
        with library.Reader(None, io.BytesIO(data), manifest, context) as reader:
            document = json.loads(reader.json())
    except library.C2paError.ManifestNotFound as error:
        raise ManifestError(f"{name}: has no C2PA manifest") from error
    except library.C2paError as error:
        raise ManifestError(f"{name}: its manifest cannot be read: {error}") from error
    return _inspection(document, trusting=anchors is not None)


def active_only(data: bytes) -> bytes:
    """A manifest store with nothing but its active manifest, which is the last box in it."""
    outer = _boxes(data)
    if len(outer) != 1 or len(boxes := _boxes(outer[0][8:])) < 2:
        raise ManifestError("this is not a manifest store")
    content = boxes[0] + boxes[-1]
    return (len(content) + 8).to_bytes(4, "big") + b"jumb" + content


def _boxes(data: bytes) -> list[bytes]:
    """JUMBF: a box is its length (4 bytes), its type (4 bytes) and its content."""
    found, start = [], 0
    while start < len(data):
        length = int.from_bytes(data[start : start + 4], "big")
        if length < 8 or start + length > len(data):
            raise ManifestError("this is not a manifest store")
        found.append(data[start : start + length])
        start += length
    return found


def _definition(
    name: str, handle: str | None, generated: bool, disclosure: Disclosure | None
) -> dict[str, Any]:
    agent = {"name": "DiffMark", "version": __version__}
    bound = "bound" if handle else "unbound"
    actions: list[dict[str, Any]] = [{"action": f"c2pa.watermarked.{bound}", "softwareAgent": agent}]
    if generated:
        made = {"action": "c2pa.created", "digitalSourceType": GENERATED, "softwareAgent": agent}
        actions.insert(0, made)
    else:
        actions.insert(0, {"action": "c2pa.opened", "parameters": {"ingredientIds": ["parent"]}})
    assertions: list[dict[str, Any]] = [{"label": "c2pa.actions.v2", "data": {"actions": actions}}]
    if handle:
        binding = {"alg": ALGORITHM, "blocks": [{"scope": {}, "value": handle}]}
        assertions.append({"label": "c2pa.soft-binding", "data": binding})
    generators = [agent]
    if disclosure is not None:
        own = disclosure.provider
        system = {"name": own.system, "version": own.version}
        generators = [system]
        actions[0]["when"] = disclosure.time
        if generated:
            actions[0] |= {"softwareAgent": system, "digitalSourceType": SOURCE_TYPES + own.source_type}
        assertions.append({"label": DISCLOSURE, "data": disclosure.to_dict()})
    return {"label": name, "claim_generator_info": generators, "assertions": assertions}


def _add_parent(builder: c2pa.Builder, parent: Path) -> None:
    with parent.open("rb") as file:
        builder.add_ingredient({"relationship": "parentOf", "label": "parent"}, _kind(parent), file)


def _inspection(document: dict[str, Any], trusting: bool) -> Inspection:
    active = document["manifests"][document["active_manifest"]]
    assertions = {item["label"].split("__")[0]: item["data"] for item in active["assertions"]}
    binding = assertions.get("c2pa.soft-binding") or {}
    actions = (assertions.get("c2pa.actions.v2") or assertions.get("c2pa.actions") or {}).get("actions", [])
    failures = document.get("validation_results", {}).get("activeManifest", {}).get("failure", [])
    codes = [failure["code"] for failure in failures]
    changed = any(code.startswith(("assertion.dataHash", "assertion.bmffHash")) for code in codes)
    untrusted = "signingCredential.untrusted" in codes or not trusting
    broken = [
        failure
        for failure in failures
        if not failure["code"].startswith(("assertion.dataHash", "assertion.bmffHash"))
        and failure["code"] != "signingCredential.untrusted"
    ]
    generator = (active.get("claim_generator_info") or [{}])[0]
    return Inspection(
        manifest=document["active_manifest"],
        generator=f"{generator.get('name', 'unknown')} {generator.get('version', '')}".strip(),
        signer=str(active.get("signature_info", {}).get("common_name", "unknown")),
        signature="broken" if broken else "valid" if untrusted else "trusted",
        content="changed" if changed else "unchanged",
        algorithm=binding.get("alg"),
        value=next((block.get("value") for block in binding.get("blocks", [])), None),
        actions=tuple(action["action"] for action in actions),
        source_type=next((a["digitalSourceType"] for a in actions if a.get("digitalSourceType")), None),
        disclosure=assertions.get(DISCLOSURE),
        time=active.get("signature_info", {}).get("time"),
        problems=tuple(f"{failure['code']}: {failure.get('explanation', '')}" for failure in broken),
    )


def _kind(path: Path) -> str:
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ManifestError(
            f"{path}: manifests go into {', '.join(FORMATS)}, got {path.suffix or 'no suffix'!r}"
        )
    return kind


def _algorithm(path: Path) -> Any:
    """The signature algorithm that a private key serves."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    algorithms = _library().C2paSigningAlg
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise ManifestError(f"{path}: not a private key in PEM without a passphrase: {error}") from error
    if isinstance(key, ec.EllipticCurvePrivateKey):
        sizes = {256: algorithms.ES256, 384: algorithms.ES384, 521: algorithms.ES512}
        return sizes[key.curve.key_size]
    if isinstance(key, rsa.RSAPrivateKey):
        return algorithms.PS256
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return algorithms.ED25519
    raise ManifestError(
        f"{path}: C2PA signs with elliptic curves, RSA or Ed25519, not with {type(key).__name__}"
    )


def _library() -> Any:
    try:
        import c2pa
    except ImportError as error:
        raise ImportError("C2PA needs the extra `c2pa`: pip install 'diffmark[c2pa]'") from error
    return c2pa
