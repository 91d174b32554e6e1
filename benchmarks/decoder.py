"""What Vista's decoder makes of plain and marked latents, beside an older one: tiles, visibility, bits, time.

python benchmarks/decoder.py --before <folder of the older autoencoder>

Plain and marked latents of unseen prompts are made once by the pipeline, 50 guided steps, and decoded by both.
Needs the package ssimulacra2.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from diffmark import Codec, Detector, watermark
from diffmark.evaluation.image_model import unseen_specs
from diffmark.evaluation.perception import alignment
from diffmark.latent.injection import Injection
from diffmark.latent.pictures import to_images
from diffmark.latent.vae import decode
from diffmark.mark.generation import ImageSpec
from diffmark.metrics import blockiness, psnr
from diffmark.provenance import provenance, weights_digest
from diffmark.vista import load_autoencoder, load_pipeline
from diffmark.vista.autoencoder import PatchAutoencoder
from diffmark.vista.evaluation import contact_sheet

GUIDANCE, BATCH = 4.0, 8
DOSES = {"final": 1.25, "persistent": 8.0}  # those that the codec had with the older decoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="folder of the older autoencoder")
    parser.add_argument("--after", type=Path, help="folder of the newer one; the one that is shipped")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--first", type=int, default=0, help="first unseen prompt")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--sheet", type=Path, help="PNG with plain and marked pictures of both decoders")
    parser.add_argument("--latents", type=Path, help="file that latents are kept in")
    parser.add_argument("--out", type=Path, default=Path("results/vista/decoder.json"))
    arguments = parser.parse_args()

    codec = Codec.from_pretrained("vista-final")
    specs = unseen_specs(arguments.count, codec.config.length, arguments.first)
    latents = made_latents(codec, specs, arguments.steps, arguments.latents)
    after = load_autoencoder() if arguments.after is None else opened(arguments.after)
    decoders = {"before": opened(arguments.before), "after": after}
    pictures = {
        name: {kind: decoded(vae, z) for kind, z in latents.items()} for name, vae in decoders.items()
    }
    rows: dict[str, Any] = {}
    for name, vae in decoders.items():
        plain = pictures[name]["plain"]
        rows[name] = {"blockiness_unmarked": mean(blockiness(image) for image in plain)}
        rows[name] |= {"alignment": round(alignment(specs, plain), 4)}
        rows[name] |= {"decoding_seconds": decoding_seconds(vae, latents["plain"][:1])}
        for mode in DOSES:
            rows[name][mode] = compared(plain, pictures[name][mode], Detector(codec, vae), specs)
    rows["generation_seconds"] = generation_seconds(specs[0], arguments.steps)
    config = {"count": arguments.count, "first": arguments.first, "steps": arguments.steps}
    config |= {"doses": DOSES, "guidance": GUIDANCE, "threads": torch.get_num_threads()}
    config |= {name: weights_digest(vae, half=True) for name, vae in decoders.items()}
    command = (
        f"python benchmarks/decoder.py --before <folder> --count {arguments.count} --first {arguments.first}"
    )
    document = provenance(command, config)
    arguments.out.write_text(json.dumps({**document, "results": rows}, indent=1) + "\n")
    print(json.dumps(rows, indent=1))
    if arguments.sheet:
        kinds = [
            np.asarray(image)
            for name in decoders
            for kind in ("plain", "final", "persistent")
            for image in pictures[name][kind][:4]
        ]
        Image.fromarray(contact_sheet(kinds, columns=4)).save(arguments.sheet)


def opened(folder: Path) -> PatchAutoencoder:
    """An autoencoder in float32, channels last."""
    vae: Any = PatchAutoencoder.from_pretrained(folder).eval()
    return vae.to(memory_format=torch.channels_last)


@torch.no_grad()
def made_latents(
    codec: Codec, specs: list[ImageSpec], steps: int, kept: Path | None
) -> dict[str, torch.Tensor]:
    """z0 of every spec, (n, 4, 32, 32), without a mark and with one in each mode."""
    if kept and kept.exists():
        return torch.load(kept, weights_only=True)
    pipe, found = load_pipeline("vista"), {}
    pipe.set_progress_bar_config(disable=True)
    for kind in ("plain", *DOSES):
        parts = []
        for start in range(0, len(specs), BATCH):
            part = specs[start : start + BATCH]
            secrets = np.stack([spec.secret for spec in part])
            strength = 0.0 if kind == "plain" else 1.0
            injection = None if kind == "plain" else Injection(kind, DOSES[kind])
            with watermark(pipe, codec, secrets, strength, injection, verify=None):
                parts.append(
                    pipe(
                        [spec.prompt for spec in part],
                        num_inference_steps=steps,
                        guidance_scale=GUIDANCE,
                        generator=[torch.Generator().manual_seed(spec.seed) for spec in part],
                        output_type="latent",
                    ).images
                )
        found[kind] = torch.cat(parts)
    if kept:
        torch.save(found, kept)
    return found


@torch.no_grad()
def decoded(vae: Any, latents: torch.Tensor) -> list[Image.Image]:
    """8-bit pictures of latents."""
    return [image for z in latents.split(BATCH) for image in to_images(decode(vae, z))]


def compared(
    plain: list[Image.Image], marked: list[Image.Image], detector: Detector, specs: list[ImageSpec]
) -> dict[str, float]:
    """Marked pictures against plain ones of the same decoder."""
    right = [
        float(np.mean(found.bits == spec.secret))
        for found, spec in zip(detector.detect_many(marked), specs, strict=True)
    ]
    pairs = list(zip(plain, marked, strict=True))
    ratio = mean(blockiness(image) for image in marked) / mean(blockiness(image) for image in plain)
    return {
        "blockiness_over_unmarked": round(ratio, 4),
        "psnr": mean(psnr(*pair) for pair in pairs),
        "ssimulacra2": mean(ssimulacra2(*pair) for pair in pairs),
        "bit_accuracy": mean(right),
    }


def ssimulacra2(plain: Image.Image, marked: Image.Image) -> float:
    """Cloudinary's score: 90 is invisible side by side, 30 and less is low quality."""
    from ssimulacra2 import compute_ssimulacra2

    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / name) for name in ("plain.png", "marked.png")]
        plain.save(paths[0])
        marked.save(paths[1])
        return float(compute_ssimulacra2(*paths))


@torch.no_grad()
def decoding_seconds(vae: Any, latents: torch.Tensor, times: int = 9) -> float:
    """The median time of decoding one picture."""
    taken = []
    for _ in range(times + 1):
        start = time.perf_counter()
        decode(vae, latents)
        taken.append(time.perf_counter() - start)
    return round(float(np.median(taken[1:])), 4)


def generation_seconds(spec: ImageSpec, steps: int, times: int = 3) -> float:
    """The median time of one picture's latents."""
    pipe, taken = load_pipeline("vista"), []
    pipe.set_progress_bar_config(disable=True)
    for _ in range(times):
        start = time.perf_counter()
        pipe(spec.prompt, num_inference_steps=steps, guidance_scale=GUIDANCE, output_type="latent")
        taken.append(time.perf_counter() - start)
    return round(float(np.median(taken)), 3)


def mean(values: Any) -> float:
    """Rounded for a result file."""
    return round(float(np.mean(list(values))), 4)


if __name__ == "__main__":
    main()
