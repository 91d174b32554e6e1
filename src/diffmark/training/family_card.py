"""The model card of a family's codec, made of the figures that were measured."""

from __future__ import annotations

import textwrap
from typing import Any

from diffmark.codec import CodecConfig

MODELS = {
    "sd": "Stable Diffusion 1.x and 2.x and the many models fine-tuned from them",
    "sdxl": "Stable Diffusion XL and models fine-tuned from it",
    "sd3": "Stable Diffusion 3 and 3.5",
    "flux": "FLUX.1",
}
FITTED = (
    "How much of it a bit gets is solved for each picture (`diffmark.fitting`): in a pipeline for whoever may "
    "read, with its own autoencoder or with ours (`diffmark.latent_marks`)."
)
LIMITS = (
    "Trained against distilled autoencoders: a tiny one that others made from the family's full autoencoder, and "
    "a small one of our own distilled from that. Nothing here was verified on the full autoencoder, or on images "
    "that a diffusion model of the family generated with it. `diffmark calibrate --model YOUR_PIPELINE --images "
    "DIR --codec {family} --out MINE` measures that on your own model.",
    "The figures are of {marked} photographs and Stable Diffusion images that training never opened, few enough "
    "for wide intervals (in the JSON). Same-seed figures are of {same_seed} of them.",
    "Rotations and crops beyond the mildest in the table lose the mark, because the decoder is tied to positions. "
    "`diffmark detect --align` looks for it in turns of up to 10 degrees and crops to at least 75% of a side; "
    "figures are in `docs/detection.md`.",
    "Regeneration and adversarial attacks were measured for the embedded family's codec alone, not for this one.",
    "Most unmarked crops were cut out of latents, many from each photograph, so they are not independent.",
    "The patterns of a secret are the same in all images, only their weights differ: many images of one key can "
    "be averaged to estimate them. Give each image a secret of its own.",
)


def card(config: CodecConfig, found: dict[str, Any], provenance: dict[str, Any]) -> str:
    """README.md of the folder that ships."""
    family = config.family or "own"
    strength = found.get("strength", 1.0)  # that sizes and attacks were measured at
    counts = {
        "family": family,
        "marked": found["attacks"]["none"]["payload_verified"]["of"],
        "same_seed": _same_seed_count(found),
    }
    parts = [
        f"# Codec `{family}`: 64 bits, injection `final`\n",
        _wrapped(
            f"For {MODELS.get(family, family)}. The mark is added to z0, so no denoiser was needed for its "
            "training and one codec serves every model of the latent space. Native size 512 px (64x64 latents); "
            "`docs/families.md` tells of others. delta has standard deviation "
            f"{config.deviation} in diffusion-scaled latents; `diffmark embed` multiplies it by "
            f"{config.embed_strength:g}. {FITTED if config.fitted else ''}"
        ),
        _training(family, found, provenance),
        "## Figures\n",
        _wrapped(
            f"All are in `results/family_{family}.json`, with the command that made them. Weights as shipped "
            "(float16), images through 8 bits; payloads of 20 + 13 + 12 bits (account, nonce, check) with error "
            "correction."
        ),
        _autoencoder(found),
        _curves(found),
        _generated(found),
        _table(
            f"After an attack on images embedded at strength {strength:g}, read with our autoencoder:",
            found["attacks"],
        ),
        _fast(found, strength),
        _table(f"Other sizes (height x width), embedded at strength {strength:g}:", found["sizes"]),
        _negatives(found),
        "## Limits\n",
        "".join(_point(limit.format(**counts)) for limit in LIMITS),
    ]
    return "\n".join(part for part in parts if part)


def _point(text: str) -> str:
    return textwrap.fill(f"- {text}", 116, subsequent_indent="  ") + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 116) + "\n"


def _training(family: str, found: dict[str, Any], provenance: dict[str, Any]) -> str:
    count, stage, step = found.get("trained_on"), provenance.get("stage"), provenance.get("step")
    rest = "--stage channel" if stage == "channel" else "--own SMALL"
    commands = "\n".join(
        (
            f"diffmark train distil --config configs/family/autoencoder_{family}.toml --vae TINY --pictures DIR",
            f"diffmark train family --config configs/family_{family}.toml --vae TINY --pictures DIR {rest}",
            "diffmark train pixel-decoder --config configs/family/pixel_decoder.toml --codec THIS --pictures DIR",
        )
    )
    trained = f"{count} were trained on, " if count else ""
    data = _wrapped(
        f"Data: ImageNet samples and images of Stable Diffusion 1.4, 512 px; {trained}every fifth of "
        f"each folder was held out. {_reached(stage, step)}{_took(provenance)} `vae/` is our small autoencoder, "
        f"distilled from the tiny one; it holds no weights of it.{_took(found.get('distillation', {}))}"
        + (" What the pixel decoder took is told in its run file." if "fast" in found else "")
    )
    return f"## Training\n\n```\n{commands}\n```\n\n{data}"


def _took(record: dict[str, Any]) -> str:
    if "seconds" not in record:
        return ""
    steps = record.get("config", {}).get("loop", {}).get("steps")
    cores = "one core" if record["threads"] == 1 else f"{record['threads']} cores"
    took = f"{record['seconds'] / 60:.0f} minutes of {cores} once the photographs were encoded"
    return f" It took {f'{steps:,} steps, ' if steps else ''}{took}."


def _reached(stage: str | None, step: int | None) -> str:
    if stage == "channel" and step == 0:
        return (
            "Code and filters are as they were solved for the measured channel (`diffmark.training.spread`): the "
            "steps of the stage `channel` did not improve on them."
        )
    return f"This is step {step} of the stage `{stage}`."


def _autoencoder(found: dict[str, Any]) -> str:
    near = found.get("autoencoder")
    if not near:
        return ""
    between = f", {near['psnr_between']:.1f} dB between the two" if "psnr_between" in near else ""
    return _wrapped(
        f"Our autoencoder against the tiny one: correlation of latents {near['latent_correlation']:.3f}, "
        f"round trip {near['round_trip_psnr']:.1f} dB (the tiny one's: {near['teachers_round_trip_psnr']:.1f} dB)"
        f"{between}."
    )


def _curves(found: dict[str, Any]) -> str:
    lines = [
        "Embedded into photographs with our autoencoder and read with it; PSNR against the photograph:\n",
        "| strength | PSNR | bit accuracy | worst image | payload verified | images |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in _with_default(found, "embedded"):
        lines.append(
            f"| {row['strength']:g} | {row['psnr']:.1f} dB | {row['bit_accuracy']:.4f} | "
            f"{row['worst_image']:.3f} | {row['payload_verified']['rate']:.2f} | {row['payload_verified']['of']} |"
        )
    if "same_seed" in found:
        lines += [
            "\nSame seed, D(z + delta) against D(z) of the tiny autoencoder, as a pipeline makes them:\n",
            "| strength | PSNR | read with the tiny encoder | payload | read with ours | payload | images |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for row in _with_default(found, "same_seed"):
            lines.append(f"| {row['strength']:g} | {row['psnr']:.1f} dB | {_both(row)} | {_images(row)} |")
    return "\n".join(lines) + "\n"


def _with_default(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The rows of a curve, the one of the default strength replaced by that of all pictures."""
    default = found[name]
    return [default if row["strength"] == default["strength"] else row for row in found[f"{name}_curve"]]


def _images(row: dict[str, Any]) -> int:
    return int(row["read_by_own"]["payload_verified"]["of"])


def _generated(found: dict[str, Any]) -> str:
    """Same-seed images after attacks, and of other sizes, where they were measured."""
    if "same_seed" not in found:
        return ""
    rows = {**found["same_seed"]["attacks"], **found["generated_sizes"]}
    lines = [
        "Same seed at strength 1, after attacks and at other sizes (height x width):\n",
        "| | read with the tiny encoder | payload | read with ours | payload | images |",
        "| --- | --- | --- | --- | --- | --- |",
        *(f"| {_label(name, row)} | {_both(row)} | {_images(row)} |" for name, row in rows.items()),
    ]
    return "\n".join(lines) + "\n"


def _both(row: dict[str, Any]) -> str:
    """Bit accuracy and verified payloads, read by the teacher's encoder and by ours."""
    return " | ".join(
        f"{row[name]['bit_accuracy']:.4f} | {row[name]['payload_verified']['rate']:.2f}"
        for name in ("read_by_teacher", "read_by_own")
    )


def _label(name: str, row: dict[str, Any]) -> str:
    return name.replace("_", " ") + (f" ({row['psnr']:.1f} dB)" if "psnr" in row else "")


def _table(title: str, rows: dict[str, Any]) -> str:
    lines = [f"{title}\n", "| | bit accuracy | worst image | payload verified | marked at FPR 1e-3 |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for name, row in rows.items():
        lines.append(
            f"| {_label(name, row)} | {row['bit_accuracy']:.4f} | {row['worst_image']:.3f} | "
            f"{row['payload_verified']['rate']:.2f} | {row['tpr_at_0.001']['rate']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _fast(found: dict[str, Any], strength: float) -> str:
    if "fast" not in found:
        return ""
    title = f"The same read with the pixel decoder (`--fast`), embedded at strength {strength:g}:"
    table = _table(title, found["fast"])
    if "same_seed" not in found:
        return table
    read = found["same_seed"]["read_by_fast"]
    generated = (
        f"Of generated images (same seed, strength 1) it reads {read['bit_accuracy']:.4f} of the bits and "
        f"{read['payload_verified']['rate']:.2f} of the payloads."
    )
    return f"{table}\n{_wrapped(generated)}"


def _negatives(found: dict[str, Any]) -> str:
    negatives = found["negatives"]
    passed, sharp = negatives["false_positives_at_0.001"], negatives["sharp"]
    found_blind, passed_blind = found["blind_at_1e-3"], negatives["blind_at_1e-3"]
    blind = (
        f"{found_blind['rate']:.1%} of the embedded images are found at FPR 1e-3. Calibrated on half of the "
        f"photographs, the blind test passes {passed_blind['rate']:.2%} of the crops of the other half."
        if found_blind and passed_blind
        else "too few to say."
    )
    return _wrapped(
        f"Unmarked: {negatives['crops']:,} crops were compared with {negatives['secrets']} secrets. At FPR 1e-3 "
        f"{passed['rate']:.3%} pass, and with the secret that passes most often "
        f"{passed['of_the_worst_secret']['rate']:.2%}; of the {sharp['crops']:,} among them that are photographs "
        f"as they are, or real crops, {sharp['false_positives_at_0.001']['rate']:.3%}. "
        f"{negatives['payload_verified']['rate']:.2%} verify as a payload of any account. "
        f"Without a secret (blind test against the calibration) {blind}"
    )


def _same_seed_count(found: dict[str, Any]) -> int | str:
    return _images(found["same_seed"]) if "same_seed" in found else "none"
