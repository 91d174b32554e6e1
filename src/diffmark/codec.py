"""The codec: DeltaEncoder writes a secret as a perturbation of latents, SecretDecoder reads it back.

Both networks are the paper's (appendix on architectures): 295,265 and 2,339,704 parameters at 64 bits and
4 x 64 x 64 latents. A codec has one native latent size. Latents of any other size or aspect are served by one
policy, *stretch*: delta is resampled to the latents' size and keeps its standard deviation, and the detector
resizes the image to the native size before it encodes. A picture that was resized after generation is then
read like any other, and the detector need not know the original size.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diffmark.calibration import Calibration
from diffmark.injection import Injection
from diffmark.secret import SecretLike, as_secrets

FORMAT, VERSION = "diffmark-codec", 1
LARGEST = 65536  # bound on every size in a config, so that a damaged file cannot ask for all memory
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "codec.safetensors"
PIXEL_FILE = "pixel.safetensors"  # of the pixel decoder, where there is one (diffmark.fast)


class CodecError(ValueError):
    """A codec that cannot be loaded; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class CodecConfig:
    """What it takes to build the two networks, and the latent space they were trained for."""

    length: int = 64  # L, bits of a secret
    channels: int = 4  # c, latent channels
    height: int = 64  # h, native latent height
    width: int = 64  # w, native latent width
    embed_dim: int = 64  # d_e, width of bit embeddings and spatial basis
    encoder_widths: Sequence[int] = (32, 16, 8)
    decoder_widths: Sequence[int] = (16, 32, 64, 128, 256)  # one stride-2 block each
    decoder_hidden: Sequence[int] = (1024, 512)
    matched_filter: bool = False  # the decoder whitens latents and also reads each bit by one linear filter
    family: str | None = None  # the latent space: sd, sdxl, sd3, flux, vista
    pixels_per_latent: int = 8  # the vae's downsampling factor
    injection: Injection = field(default_factory=Injection)  # the one the codec was trained with
    deviation: float | None = None  # of every delta, exactly; None leaves it to alpha, as in the paper
    embed_strength: float = (
        1.0  # times delta, when an image is marked with the autoencoder that comes with it
    )
    fitted: bool = False  # at z0, bits get of delta what each picture asks for (diffmark.fitting)
    doses: Mapping[str, float] = field(
        default_factory=dict
    )  # of other injection modes, to be read about as well

    def __post_init__(self) -> None:
        for name in ("encoder_widths", "decoder_widths", "decoder_hidden"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        sizes = [self.length, self.channels, self.height, self.width, self.embed_dim, self.pixels_per_latent]
        sizes += [*self.encoder_widths, *self.decoder_widths, *self.decoder_hidden]
        if not (self.encoder_widths and self.decoder_widths):
            raise ValueError("encoder_widths and decoder_widths need at least one entry")
        if any(isinstance(n, bool) or not isinstance(n, int) or not 0 < n <= LARGEST for n in sizes):
            raise ValueError(f"sizes are whole numbers from 1 to {LARGEST}, got {sizes}")
        for name in ("matched_filter", "fitted"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is true or false, got {getattr(self, name)!r}")
        if isinstance(self.embed_strength, bool) or not 0 < self.embed_strength < math.inf:
            raise ValueError(f"embed_strength is a number above 0, got {self.embed_strength!r}")
        for mode, dose in self.doses.items():
            Injection(mode, dose)  # raises where there is no such mode, or no such dose
        shrink = 2 ** len(self.decoder_widths)
        if self.height % shrink or self.width % shrink:
            raise ValueError(
                f"latents of {self.height}x{self.width} cannot be halved {len(self.decoder_widths)} times; "
                f"height and width must be multiples of {shrink}, or decoder_widths shorter"
            )

    @property
    def image_size(self) -> tuple[int, int]:
        """Native (height, width) in pixels: what the detector resizes an image to."""
        return self.height * self.pixels_per_latent, self.width * self.pixels_per_latent

    @property
    def evidence(self) -> str:
        """The kind of evidence by which marks are told without their secrets (diffmark.calibration)."""
        return "evenness" if self.fitted else "margin"

    def injection_in(self, mode: str) -> Injection:
        """The codec's own injection, or another mode with the dose that suits it."""
        return self.injection if mode == self.injection.mode else Injection(mode, self.doses.get(mode, 1.0))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CodecConfig:
        values = dict(values)
        if "injection" in values:
            values["injection"] = Injection(**values["injection"])
        return cls(**values)


class DeltaEncoder(nn.Module):
    """E_phi: secret (B, L) -> delta (B, C, h, w)."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(2 * config.length, config.embed_dim)  # W
        self.basis = nn.Parameter(torch.randn(config.embed_dim, config.height, config.width))  # B
        layers: list[nn.Module] = []
        previous = config.embed_dim
        for index, width in enumerate(config.encoder_widths):
            layers += [nn.Conv2d(previous, width, 3, padding=1), nn.SiLU()]
            if index < len(config.encoder_widths) - 1:  # none after the last: it would fix delta's scale
                layers.append(nn.BatchNorm2d(width))
            previous = width
        self.refine = nn.Sequential(*layers)
        self.mean = nn.Conv2d(previous, config.channels, 3, padding=1)  # mu
        self.log_variance = nn.Conv2d(previous, config.channels, 3, padding=1)  # log sigma^2
        self.alpha = nn.Parameter(torch.tensor(0.1))

    def distribution(self, secrets: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(mu, log sigma^2) before alpha, each (B, C, h, w); `weights` (B, L) of the bits are 1 by default."""
        rows = 2 * torch.arange(self.config.length, device=secrets.device) + secrets.long()  # 2i + s_i
        embedded = self.embedding(rows)  # (B, L, d_e)
        if weights is not None:
            embedded = embedded * weights[..., None]
        x = embedded.sum(dim=1)  # (B, d_e)
        features = self.refine(x[:, :, None, None] * self.basis)  # (B, d_e, h, w) -> (B, 8, h, w)
        return self.mean(features), self.log_variance(features)

    def forward(self, secrets: Tensor, weights: Tensor | None = None) -> Tensor:
        """delta = alpha * (mu + sigma * eps) in training, alpha * mu in inference."""
        mean, log_variance = self.distribution(secrets, weights)
        if self.training:
            mean = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        delta = self.alpha * mean
        return delta if self.config.deviation is None else rescale(delta, self.config.deviation)


class SecretDecoder(nn.Module):
    """D_psi: latents (B, C, h, w) -> logits (B, L, 2)."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        previous = config.decoder_widths[0] // 2
        layers: list[nn.Module] = [nn.Conv2d(config.channels, previous, 3, padding=1), nn.SiLU()]
        for index, width in enumerate(config.decoder_widths):
            layers += [nn.Conv2d(previous, width, 4, stride=2, padding=1), nn.SiLU()]
            if index < len(config.decoder_widths) - 1:
                layers.append(nn.BatchNorm2d(width))
            previous = width
        self.features = nn.Sequential(*layers)
        shrink = 2 ** len(config.decoder_widths)
        size = previous * (config.height // shrink) * (config.width // shrink)
        head: list[nn.Module] = []
        for hidden in config.decoder_hidden:
            head += [nn.Linear(size, hidden), nn.SiLU()]
            size = hidden
        self.head = nn.Sequential(nn.Flatten(), *head, nn.Linear(size, 2 * config.length))
        if config.matched_filter:
            self.filters = nn.Linear(
                config.channels * config.height * config.width, config.length, bias=False
            )
            nn.init.zeros_(self.filters.weight)

    def forward(self, latents: Tensor) -> Tensor:
        if not self.config.matched_filter:
            return self.head(self.features(latents)).view(-1, self.config.length, 2)
        white = whiten(latents)
        logits = self.head(self.features(white)).view(-1, self.config.length, 2)
        matched = self.filters(white.flatten(1)) / 2
        return logits + torch.stack([-matched, matched], dim=-1)


class Codec(nn.Module):
    """The trained pair with its config, calibration and provenance."""

    def __init__(
        self,
        config: CodecConfig | None = None,
        calibration: Calibration | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.config = config or CodecConfig()
        self.encoder = DeltaEncoder(self.config)
        self.decoder = SecretDecoder(self.config)
        self.calibration = calibration
        self.provenance = provenance or {}

    @property
    def device(self) -> torch.device:
        return self.encoder.alpha.device

    @torch.no_grad()
    def delta(
        self, secrets: SecretLike, size: tuple[int, int] | None = None, weights: Tensor | None = None
    ) -> Tensor:
        """The perturbation of each secret, (B, C, h, w) at `size` or the native size; no noise, no gradient.

        `weights` (B, L) say how much of it each bit gets.
        """
        bits = torch.from_numpy(as_secrets(secrets, self.config.length)).to(self.device)
        training = self.encoder.training
        try:
            return stretch(
                self.encoder.eval()(bits, weights), size or (self.config.height, self.config.width)
            )
        finally:
            self.encoder.train(training)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Logits (B, L, 2) of diffusion-scaled latents (B, C, h, w); other sizes are resampled first."""
        return self.logits(latents)

    def logits(self, latents: Tensor) -> Tensor:
        """What `decode` tells, with a gradient."""
        if latents.ndim != 4 or latents.shape[1] != self.config.channels:
            raise ValueError(
                f"this codec reads latents of shape (B, {self.config.channels}, h, w), got {tuple(latents.shape)}"
            )
        latents = latents.to(self.device, self.encoder.alpha.dtype)
        size = (self.config.height, self.config.width)
        if latents.shape[-2:] != size:
            latents = F.interpolate(latents, size, mode="bilinear", antialias=True)
        training = self.decoder.training
        try:
            return self.decoder.eval()(latents).float()
        finally:
            self.decoder.train(training)

    # --- storage: safetensors and JSON, nothing is ever unpickled ------------------------------------------

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype | None = None) -> Path:
        """Write config.json and codec.safetensors into `folder`, the weights in `dtype` if given."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            name: value.to(dtype) if dtype and value.is_floating_point() else value
            for name, value in self.state_dict().items()
        }
        weights = folder / WEIGHTS_FILE
        save_file({name: value.contiguous() for name, value in state.items()}, weights)
        document = {
            "format": FORMAT,
            "version": VERSION,
            "config": self.config.to_dict(),
            "calibration": self.calibration.to_dict() if self.calibration else None,
            "provenance": self.provenance,
            "sha256": {WEIGHTS_FILE: _sha256(weights)},
        }
        (folder / CONFIG_FILE).write_text(json.dumps(document, indent=2) + "\n")
        return folder

    @classmethod
    def from_pretrained(cls, source: str | Path) -> Codec:
        """Load from a folder, a bundled name (`bundled_codecs()`) or a Hugging Face hub id (`owner/name`)."""
        folder = find_codec(source)
        document = read_config(folder)
        weights = folder / WEIGHTS_FILE
        if not weights.is_file():
            raise CodecError(f"{weights} is missing: a codec is {CONFIG_FILE} and {WEIGHTS_FILE} together")
        expected = (document.get("sha256") or {}).get(WEIGHTS_FILE)
        if expected != _sha256(weights):
            raise CodecError(
                f"{weights} does not have the sha256 that {CONFIG_FILE} states: truncated or altered"
            )
        try:
            calibration = document.get("calibration")
            codec = cls(
                CodecConfig.from_dict(document["config"]),
                Calibration.from_dict(calibration) if calibration else None,
                document.get("provenance"),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CodecError(f"{folder / CONFIG_FILE} does not describe a codec: {error}") from error
        codec._load_weights(weights)
        return codec.eval()

    def _load_weights(self, weights: Path) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state = load_file(weights)
        except SafetensorError as error:
            raise CodecError(f"{weights} is not a safetensors file: {error}") from error
        own = self.state_dict()
        if own.keys() != state.keys():
            odd = sorted(own.keys() ^ state.keys())
            raise CodecError(f"{weights} holds other tensors than a codec's, for example {odd[0]!r}")
        for name, value in own.items():
            if value.shape != state[name].shape:
                raise CodecError(
                    f"{weights}: {name} has shape {tuple(state[name].shape)}, "
                    f"but {CONFIG_FILE} asks for {tuple(value.shape)}"
                )
        self.load_state_dict({name: value.to(own[name].dtype) for name, value in state.items()})


def stretch(delta: Tensor, size: tuple[int, int]) -> Tensor:
    """Resample delta (B, C, h, w) to `size`, each image keeping its standard deviation."""
    if tuple(delta.shape[-2:]) == tuple(size):
        return delta
    resampled = F.interpolate(delta, size, mode="bilinear", antialias=True)
    deviation = delta.std(dim=(1, 2, 3), keepdim=True)
    return resampled * (deviation / resampled.std(dim=(1, 2, 3), keepdim=True).clamp_min(1e-12))


def rescale(delta: Tensor, deviation: float) -> Tensor:
    """Each image's delta with exactly this standard deviation, so that strength is one number."""
    return delta * (deviation / delta.std(dim=(1, 2, 3), keepdim=True).clamp_min(1e-12))


def whiten(latents: Tensor, floor: float = 0.03) -> Tensor:
    """Latents (B, C, h, w) less their mean around each place, over their deviation around it.

    A picture's own latents are the noise that a mark is read in: strong at low frequencies, and in rough places.
    `floor` is about the error of a round trip through an autoencoder and 8 bits.
    """
    detail = latents - local_mean(latents, 3)
    return detail / (local_mean(detail.square(), 5) + floor**2).sqrt()


def local_mean(values: Tensor, side: int) -> Tensor:
    """The mean of (B, C, h, w) over side x side around each place; edges are mirrored."""
    return F.avg_pool2d(F.pad(values, (side // 2,) * 4, mode="reflect"), side, stride=1)


def bundled_codecs() -> list[str]:
    """Names that `Codec.from_pretrained` finds inside the package."""
    root = _bundle()
    return (
        sorted(path.name for path in root.iterdir() if (path / CONFIG_FILE).is_file())
        if root.is_dir()
        else []
    )


def find_codec(source: str | Path) -> Path:
    """The local folder of a codec: as given, bundled with the package, or fetched from the hub."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise CodecError(f"{folder} is a file; a codec is a folder with {CONFIG_FILE} and {WEIGHTS_FILE}")
    name = str(source)
    if name in bundled_codecs():
        return _bundle() / name
    if name.count("/") == 1 and not name.startswith((".", "/")):
        return _fetch(name)
    known = ", ".join(bundled_codecs()) or "none"
    raise CodecError(
        f"no codec at {name!r}: it is no folder, no hub id (owner/name), and not bundled ({known})"
    )


def _fetch(repository: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        files = [CONFIG_FILE, WEIGHTS_FILE, PIXEL_FILE, "vae/*.json", "vae/*.safetensors"]
        return Path(snapshot_download(repository, allow_patterns=files))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CodecError(
            f"no local folder {repository!r}, and the hub did not give a codec of that id: {error}"
        ) from error


def _bundle() -> Path:
    return Path(str(resources.files("diffmark"))) / "codecs"


def read_config(folder: Path) -> dict[str, Any]:
    """The JSON document of a codec's folder, checked to be one."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise CodecError(f"{path} is missing: a codec is {CONFIG_FILE} and {WEIGHTS_FILE} together")
    try:
        document = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CodecError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CodecError(f"{path} is not a codec's: it does not say format {FORMAT!r}")
    if document.get("version") != VERSION:
        raise CodecError(f"{path} has version {document.get('version')!r}, this DiffMark reads {VERSION}")
    return document


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
