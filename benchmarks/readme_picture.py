"""The picture of README: plain, marked, their difference, and what was attacked, detected and named.

    python benchmarks/readme_picture.py

Writes docs/images/example.webp, results/readme_picture.json and, in README, the caption. Needs the extra `eval`.
Pictures, prompts, seeds and attacks stand below and were fixed before a result was looked at; keys are random. The
generated picture's plain one has the mark in its noise alone: without it the same seed gives another picture.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import diffmark
from diffmark.attacks import ATTACKS, attack
from diffmark.attacks.regeneration import Regeneration
from diffmark.pixel.visibility import Visibility
from diffmark.provenance import provenance
from diffmark.registry import Registry
from diffmark.vista import load_pipeline

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "example.webp"
RESULTS = ROOT / "results" / "readme_picture.json"
OTHERS = 1_000_000  # keys of other accounts
SIDE = 384  # pixels of a panel
COLUMNS = ("plain", "marked", "difference x10", "attacked")
PHOTOGRAPH = "coffee"  # of scikit-image: by Rachel Michetti, CC0
PROMPT, SEED, STEPS, GUIDANCE = "snowy mountains at dawn above a lake, the sun, a boat", 0, 50, 4.0
# Attacks by name and value, in the order in which they are made.
SHOWN = {
    "photograph": [("rotation", 20), ("resized_crop", 0.6), ("jpeg", 60)],
    "generated": [("regeneration", 120), ("jpeg", 60)],
}
NOT_SHOWN = SHOWN["photograph"]  # of the generated picture
SURROGATE = "vista-ink"  # what regenerates; no training saw it
WORDS = {
    "regeneration": f"noised by {{:g}} of 1000 steps and painted again by `{SURROGATE}`",
    "rotation": "rotated by {:g} degrees",
    "resized_crop": "cropped to {:.0%} of the area",
    "jpeg": "JPEG {:g}",
    "flip": "mirrored",
    "brightness": "{:g} times as bright",
}


def photograph() -> Image.Image:
    """The photograph, its middle square at the size of a panel."""
    from skimage import data

    image = Image.fromarray(getattr(data, PHOTOGRAPH)())
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def generated(secret: Any) -> tuple[Image.Image, Image.Image]:
    """The picture of the prompt with the generation layer and, of the same seed, with both layers."""
    pipe, codec = load_pipeline("vista"), diffmark.Codec.from_pretrained("vista")

    def paint() -> Image.Image:
        generator = torch.Generator("cpu").manual_seed(SEED)
        options = {"num_inference_steps": STEPS, "guidance_scale": GUIDANCE, "generator": generator}
        image: Image.Image = pipe(PROMPT, **options).images[0]
        return image

    with diffmark.watermark(pipe, codec, secret, pixel=False):
        plain = paint()
    with diffmark.watermark(pipe, codec, secret):
        return plain, paint()


def distorted(image: Image.Image, distortions: Sequence[tuple[str, float]]) -> Image.Image:
    """The picture after attacks, one after the other."""
    for name, value in distortions:
        if name == "regeneration":
            surrogate = Regeneration(load_pipeline(SURROGATE), SURROGATE)
            (image,) = surrogate.batch([image], value, [np.random.default_rng(SEED)])
            continue
        low, high = ATTACKS[name].low, ATTACKS[name].high
        image = attack(name, image, (value - low) / (high - low) if high != low else 0.0)
    return image


def difference(plain: Image.Image, marked: Image.Image) -> Image.Image:
    """Ten times the difference, around middle grey."""
    change = np.asarray(marked, np.float32) - np.asarray(plain, np.float32)
    return Image.fromarray((128 + 10 * change).clip(0, 255).astype(np.uint8))


def sheet(rows: Sequence[tuple[Sequence[Image.Image], Sequence[str]]]) -> Image.Image:
    """Rows of four panels, each with a line of text below it."""
    gap, line = 8, 34
    font = ImageFont.load_default(22)
    height = len(rows) * (SIDE + line + gap)
    canvas = Image.new("RGB", (4 * SIDE + 3 * gap, height), "white")
    draw = ImageDraw.Draw(canvas)
    for index, (images, texts) in enumerate(rows):
        top = index * (SIDE + line + gap)
        for column, (image, text) in enumerate(zip(images, texts, strict=True)):
            left = column * (SIDE + gap)
            scale = SIDE / max(image.size)
            size = (round(image.width * scale), round(image.height * scale))
            shown = image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)
            canvas.paste(shown, (left + (SIDE - size[0]) // 2, top + (SIDE - size[1]) // 2))
            draw.text((left + SIDE / 2, top + SIDE + 4), text, fill="#222", font=font, anchor="ma")
    return canvas


def named(
    image: Image.Image, account: str, key: Any, attacks: list[tuple[str, float]], registry: Registry
) -> dict[str, Any]:
    """What is read from a picture, and whom the registry names."""
    detection = diffmark.open_detector().detect(image)
    verdict = registry.identify(detection).verdict
    return {
        "attacks": attacks,
        "reader": detection.reader,
        "bits_right": int((detection.bits == diffmark_bits(key)).sum()),
        "named": verdict.principal,
        "right": verdict.principal == account,
        "family_wise_error": verdict.family_wise,
    }


def row_of(
    kind: str, account: str, plain: Image.Image, marked: Image.Image, key: Any, registry: Registry
) -> tuple[list[Image.Image], list[str], dict[str, Any]]:
    """The four pictures, their texts, and what was measured."""
    shared = distorted(marked, SHOWN[kind])
    found = named(shared, account, key, SHOWN[kind], registry)
    said = f"{found['named']}, error {found['family_wise_error']:.0e}" if found["named"] else "nobody named"
    measured = {"ssimulacra2": round(Visibility(plain).ssimulacra2(marked), 1), **found}
    texts = [*COLUMNS[:3], f"{'regenerated' if kind == 'generated' else 'attacked'}: {said}"]
    return [plain, marked, difference(plain, marked), shared], texts, measured


def diffmark_bits(key: Any) -> Any:
    """The secret of an issued key as bits."""
    from diffmark.secret import from_hex

    return from_hex(key.hex, 64)


def steps(attacks: Sequence[Sequence[Any]]) -> str:
    """Attacks in words."""
    return ", ".join(WORDS[name].format(value) for name, value in attacks)


def outcome(row: dict[str, Any]) -> str:
    """What became of a picture, in words."""
    who = f"{row['named']} named" if row["named"] else "nobody named"
    wrong = "" if row["right"] or not row["named"] else ", wrongly"
    error = f", error {row['family_wise_error']:.0e}" if row["named"] else ""
    return f"{row['bits_right']} of 64 bits right, {who}{wrong}{error}"


def caption(document: dict[str, Any]) -> str:
    """What was done, for README."""
    found, config = document["results"], document["config"]
    photograph, generated = found["photograph"], found["generated"]
    other = found["not shown"]
    return (
        f"**Top:** a photograph ({config['photograph']}), marked in the pixel layer (SSIMULACRA2 "
        f"{photograph['ssimulacra2']:.0f}), then {steps(photograph['attacks'])}: {outcome(photograph)}. "
        f"**Bottom:** a picture of 256 pixels by the embedded model, with its secret in the initial noise and in "
        f"the pixel layer (SSIMULACRA2 of that {generated['ssimulacra2']:.0f}), then "
        f"{steps(generated['attacks'])}: {outcome(generated)}; {steps(other['attacks'])} instead: "
        f"{outcome(other)}.\n"
        f"Errors are family-wise, among {config['keys']:,} keys (`benchmarks/readme_picture.py`, "
        "`results/readme_picture.json`)."
    )


def fill(text: str) -> str:
    """README with the picture and its caption."""
    from markdown_tables import between

    document = json.loads(RESULTS.read_text())
    picture = f"![plain, marked, difference, attacked]({PICTURE.relative_to(ROOT)})"
    return between("picture", f"{picture}\n\n{caption(document)}", text)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Registry.open(f"sqlite:///{folder}/registry.db", actor="readme") as registry,
    ):
        registry.import_keys(np.random.default_rng().integers(0, 2**64, OTHERS, np.uint64))
        first, second = registry.issue("user-42"), registry.issue("user-43")
        plain, painted = photograph(), generated(diffmark_bits(second))
        marked = diffmark.embed(plain, diffmark_bits(first)).image
        rows = {
            "photograph": row_of("photograph", "user-42", plain, marked, first, registry),
            "generated": row_of("generated", "user-43", *painted, second, registry),
        }
        measured = {name: row[2] for name, row in rows.items()}
        image = distorted(painted[1], NOT_SHOWN)
        measured["not shown"] = named(image, "user-43", second, NOT_SHOWN, registry)
    sheet([(images, texts) for images, texts, _ in rows.values()]).save(PICTURE, quality=78, method=6)
    config = {
        "photograph": f"`skimage.data.{PHOTOGRAPH}`, CC0",
        "prompt": PROMPT,
        "seed": SEED,
        "steps": STEPS,
        "guidance": GUIDANCE,
        "keys": OTHERS + 2,
    }
    document = provenance("python benchmarks/readme_picture.py", config)
    document["picture_sha256"] = hashlib.sha256(PICTURE.read_bytes()).hexdigest()
    document["results"] = measured
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    readme = ROOT / "README.md"
    readme.write_text(fill(readme.read_text()))
    print(json.dumps(document["results"], indent=1), PICTURE.stat().st_size)


if __name__ == "__main__":
    main()
