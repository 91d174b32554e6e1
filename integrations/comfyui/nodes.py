"""DiffMark nodes: mark noise, latents and images, detect, save with Content Credentials.

ComfyUI's conventions: IMAGE is a float tensor (B, H, W, 3) in [0, 1]; LATENT is {"samples": (B, C, h, w)} in raw
units of the VAE, which a model's `latent_format` turns into those of its denoiser (`process_in`) and back
(`process_out`); NOISE has a `seed` and `generate_noise(latent)`, of unit variance in the latent's shape.
"""

from pathlib import Path

import numpy as np
import torch

import diffmark
from diffmark.keys.ring import as_ring
from diffmark.latent.codec import NoiseCodec
from diffmark.mark.latents import LatentMark, mark_latents
from diffmark.pixel.codec import PixelCodec
from diffmark.secret import as_secrets, random_secrets, to_hex

CATEGORY = "DiffMark"
RANDOM = "random"


def secrets_for(secret, count, length=64):
    """Bits (count, L) of `random`, one hex secret for all, or one a line."""
    if secret.strip().lower() == RANDOM:
        return random_secrets(count, length)
    given = np.concatenate([as_secrets(line, length) for line in secret.split()])
    if len(given) not in (1, count):
        raise ValueError(f"{len(given)} secrets for {count} images: give one for all, or one a line for each")
    return np.repeat(given, count, axis=0) if len(given) == 1 else given


def codec_for(name, model, raw):
    """A codec under the operator's key, and (h, w) of latents as it counts them."""
    loaded = diffmark.Codec.from_pretrained(name).use_key(as_ring().current)
    channels = loaded.config.channels
    own = getattr(model.get_model_object("latent_format"), "latent_channels", raw.shape[1])
    if own not in (channels, 4 * channels):  # FLUX.2's are patchified
        raise ValueError(f"the codec is for latents of {channels} channels, the model's have {own}")
    cell = 2 if raw.shape[1] == 4 * channels else 1
    return loaded, (cell * raw.shape[-2], cell * raw.shape[-1])


class MarkedNoise:
    """NOISE with a keyed pattern in it."""

    def __init__(self, noise, codec, secrets, size, strength):
        self.seed, self._noise = noise.seed, noise
        self._codec, self._secrets, self._size, self._strength = codec, secrets, size, strength

    def generate_noise(self, input_latent):
        plain = self._noise.generate_noise(input_latent)
        mark = LatentMark(self._codec, self._secrets, plain, self._strength, self._size)
        return mark.into_noise(plain, self._codec.injection.dose)


class MarkNoise:
    """The generation layer of a codec of initial noise: a keyed pattern takes the place of a part of the noise."""

    CATEGORY, FUNCTION = CATEGORY, "mark"
    RETURN_TYPES, RETURN_NAMES = ("NOISE", "STRING"), ("noise", "secrets")
    DESCRIPTION = (
        "Writes a mark into the noise that a sampler starts from, for text to image. The codec must be of the "
        "model's latent space."
    )

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802  # ComfyUI's name
        return {
            "required": {
                "noise": ("NOISE",),
                "samples": ("LATENT", {"tooltip": "The empty latent that the sampler gets."}),
                "model": ("MODEL",),
                "codec": ("STRING", {"default": "", "tooltip": "A codec's folder or hub id."}),
                "secret": ("STRING", {"default": RANDOM}),
                "strength": ("FLOAT", {"default": 1.0, "min": 0.0, "max": 1.0, "step": 0.05}),
            }
        }

    def mark(self, noise, samples, model, codec, secret, strength):
        raw = samples["samples"]
        loaded, size = codec_for(codec, model, raw)
        if not isinstance(loaded, NoiseCodec):
            raise ValueError("this codec adds delta to latents: use Mark Latent")
        if raw.min() != raw.max():
            raise ValueError(
                "these latents are of a picture: the noise is marked where a run starts from an empty one"
            )
        secrets = secrets_for(secret, len(raw), loaded.config.length)
        marked = MarkedNoise(noise, loaded, secrets, size, strength)
        return marked, "\n".join(to_hex(bits) for bits in secrets)


class MarkLatent:
    """The generation layer of other codecs: delta is added to finished latents."""

    CATEGORY, FUNCTION = CATEGORY, "mark"
    RETURN_TYPES, RETURN_NAMES = ("LATENT", "STRING"), ("latent", "secrets")
    DESCRIPTION = (
        "Adds a mark to latents before they are decoded. The codec must be of the model's latent space, and one "
        "that adds a delta: Mark Noise is for codecs of initial noise."
    )

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802  # ComfyUI's name
        return {
            "required": {
                "samples": ("LATENT",),
                "model": ("MODEL",),
                "codec": ("STRING", {"default": "", "tooltip": "A codec's folder or hub id."}),
                "secret": ("STRING", {"default": RANDOM}),
                "strength": ("FLOAT", {"default": 1.0, "min": 0.0, "max": 10.0, "step": 0.05}),
            }
        }

    def mark(self, samples, model, codec, secret, strength):
        space, raw = model.get_model_object("latent_format"), samples["samples"]
        loaded, size = codec_for(codec, model, raw)
        secrets = secrets_for(secret, len(raw), loaded.config.length)
        weight = strength * loaded.dosing.in_mode("final").dose
        marked = space.process_out(mark_latents(loaded, space.process_in(raw.float()), secrets, weight, size))
        return {**samples, "samples": marked.to(raw.dtype)}, "\n".join(to_hex(bits) for bits in secrets)


class MarkImage:
    """The pixel layer: works with pictures of any model."""

    CATEGORY, FUNCTION = CATEGORY, "mark"
    RETURN_TYPES, RETURN_NAMES = ("IMAGE", "STRING"), ("image", "secrets")
    DESCRIPTION = (
        "Writes a 64-bit secret into each image. `random` makes a fresh one an image; the output tells."
    )

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802
        return {
            "required": {"image": ("IMAGE",), "secret": ("STRING", {"default": RANDOM, "multiline": True})},
            "optional": {
                "quality": (
                    "FLOAT",
                    {"default": 0.0, "min": 0.0, "max": 100.0, "tooltip": "SSIMULACRA2; 0: as is needed"},
                )
            },
        }

    def mark(self, image, secret, quality=0.0):
        codec = PixelCodec(as_ring().current)
        secrets = secrets_for(secret, len(image))
        marked = [
            torch.from_numpy(
                np.asarray(codec.embed(_picture(one), bits, quality or None).image, np.float32) / 255
            )
            for one, bits in zip(image, secrets, strict=True)
        ]
        return torch.stack(marked).to(image), "\n".join(to_hex(bits) for bits in secrets)


class Detect:
    """What images carry in the pixel layer."""

    CATEGORY, FUNCTION, OUTPUT_NODE = CATEGORY, "detect", True
    RETURN_TYPES, RETURN_NAMES = ("STRING", "BOOLEAN"), ("report", "all_marked")
    DESCRIPTION = "Reads each image; with a secret the p-value is exact."

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802
        return {
            "required": {"image": ("IMAGE",)},
            "optional": {
                "secret": ("STRING", {"default": ""}),
                # The interface rounds what is typed to as many digits as the step has.
                "fpr": ("FLOAT", {"default": 1e-6, "min": 1e-9, "max": 0.5, "step": 1e-9}),
            },
        }

    def detect(self, image, secret="", fpr=1e-6):
        asked = secret.split() or None
        found = [
            diffmark.detect(_picture(one), asked and asked[min(index, len(asked) - 1)], fpr=fpr)
            for index, one in enumerate(image)
        ]
        report = "\n".join(f"{index}: {detection.explanation}" for index, detection in enumerate(found))
        return {"ui": {"text": [report]}, "result": (report, all(detection.marked for detection in found))}


class SaveWithCredentials:
    """Saves PNGs signed with C2PA; the manifest names the key of the registry that the image was marked with."""

    CATEGORY, FUNCTION, OUTPUT_NODE = CATEGORY, "save", True
    RETURN_TYPES = ()
    DESCRIPTION = (
        "Marks each image with a fresh key of the registry, saves and signs it with Content Credentials. "
        "The workflow is not written into the files: it names keys and certificates."
    )

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802
        return {
            "required": {
                "image": ("IMAGE",),
                "filename_prefix": ("STRING", {"default": "DiffMark"}),
                "certificate": ("STRING", {"default": "", "tooltip": "PEM file with the certificate chain."}),
                "private_key": ("STRING", {"default": "", "tooltip": "PEM file, mode 600."}),
                "registry": ("STRING", {"default": "sqlite:///diffmark.db"}),
                "principal": ("STRING", {"default": "comfyui"}),
            }
        }

    def save(self, image, filename_prefix, certificate, private_key, registry, principal):
        from diffmark.c2pa import ManifestSigner
        from diffmark.registry import Registry

        signer = ManifestSigner(Path(certificate), Path(private_key))
        codec, names = PixelCodec(as_ring().current), []
        folder, stem, number, subfolder = _place(filename_prefix, image)
        folder.mkdir(parents=True, exist_ok=True)
        with Registry.open(registry) as keys:
            for index, one in enumerate(image):
                key = keys.issue(principal, reason="saved by ComfyUI")
                path = folder / f"{stem.replace('%batch_num%', str(index))}_{number + index:05}_.png"
                codec.embed(_picture(one), key.secret).image.save(path)
                name, manifest = signer.sign(path, keys.manifests.handle(key.hex))
                keys.manifests.put(name, key.hex, manifest)
                names.append({"filename": path.name, "subfolder": subfolder, "type": "output"})
        return {"ui": {"images": names}}


def _picture(image):
    """(H, W, 3) in [0, 1] as the array that DiffMark reads; ComfyUI's may lie a little outside."""
    return image[..., :3].detach().float().clamp(0, 1).cpu().numpy()


def _place(prefix, image):
    """Folder, stem, first number and subfolder of files, as ComfyUI's own nodes name them."""
    try:
        import folder_paths  # of ComfyUI
    except ImportError:
        folder, stem = Path("output"), Path(prefix).name or "DiffMark"
        numbers = [
            int(path.stem.split("_")[-2]) for path in folder.glob(f"{stem}_[0-9][0-9][0-9][0-9][0-9]_.png")
        ]
        return folder, stem, max(numbers, default=0) + 1, ""
    height, width = image.shape[1:3]
    folder, stem, number, subfolder, _ = folder_paths.get_save_image_path(
        prefix, folder_paths.get_output_directory(), width, height
    )
    return Path(folder), stem, number, subfolder


NODE_CLASS_MAPPINGS = {
    "DiffMarkMarkNoise": MarkNoise,
    "DiffMarkMarkLatent": MarkLatent,
    "DiffMarkMarkImage": MarkImage,
    "DiffMarkDetect": Detect,
    "DiffMarkSave": SaveWithCredentials,
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "DiffMarkMarkNoise": "Mark Noise (DiffMark)",
    "DiffMarkMarkLatent": "Mark Latent (DiffMark)",
    "DiffMarkMarkImage": "Mark Image (DiffMark)",
    "DiffMarkDetect": "Detect Mark (DiffMark)",
    "DiffMarkSave": "Save with Content Credentials (DiffMark)",
}
