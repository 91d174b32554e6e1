"""The generation layer under attack, on the codec that ships: removal, forgery, collusion.

    python benchmarks/security_generation.py --folder RUN
    python benchmarks/security_generation.py --folder RUN --report

The codec's networks are public; the operator's key permutes and masks the bits that they carry. Attackers have the
model, its autoencoder and the codec, or only marked pictures. Strengths are chosen on prompts of the tune part and
reported on others. A stop loses nothing; `--report` writes results/security/generation.json and the tables.
"""

from __future__ import annotations

import pictures

pictures.one_thread()

import argparse  # noqa: E402
import json  # noqa: E402
from collections.abc import Callable, Sequence  # noqa: E402
from dataclasses import replace  # noqa: E402
from functools import cached_property, partial  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import security_tables  # noqa: E402
import torch  # noqa: E402
from pictures import Row, Run, fixed_keys  # noqa: E402
from PIL import Image  # noqa: E402
from torch import Tensor  # noqa: E402
from tqdm import tqdm  # noqa: E402

from diffmark.detection.latent import Detector  # noqa: E402
from diffmark.images import read_image  # noqa: E402
from diffmark.latent.codec import Codec  # noqa: E402
from diffmark.latent.files import find_codec, read_config  # noqa: E402
from diffmark.latent.vae import decode, encode  # noqa: E402
from diffmark.mark.generation import ImageSpec, Sampling, generate  # noqa: E402
from diffmark.mark.image import embed  # noqa: E402
from diffmark.mark.loading import default_guidance, load_pipeline  # noqa: E402
from diffmark.pixel.visibility import Visibility  # noqa: E402
from diffmark.provenance import command_line, provenance  # noqa: E402
from diffmark.secret import Bits, to_hex  # noqa: E402
from diffmark.statistics import (  # noqa: E402
    clopper_pearson,
    per_try,
    soft_cost,
    soft_tail,
    soft_weights,
)
from diffmark.vista.scenes import caption, random_scene  # noqa: E402

FPR, ACCOUNTS, RATE = 1e-3, 10**6, 1e-6
SEEN = (1, 10, 50)
COLLUDERS = (2, 3, 5)
STRENGTHS = (0.5, 1.0, 2.0, 3.0)  # multiples of what was estimated
LEAST_QUALITY, REMOVED = 60.0, 0.1
STEPS_PGD, EPSILONS = 20, (2, 4, 8)  # steps; levels of 255
SEED = 24
FIRST = {"test": 1_000_001, "tune": 2_000_001, "seen": 3_000_001}  # seeds of scenes and noise
MODULES = ("latent/codec", "latent/lean", "keys/bits", "mark/context")


class Experiment:
    """Pipeline, codec under the operator's key, and the pictures of one run."""

    def __init__(self, folder: Path, codec: str, model: str, steps: int, victims: int, tuning: int) -> None:
        torch.set_num_threads(1)
        self.folder, self.counts = folder, {"test": victims, "tune": tuning, "seen": max(SEEN)}
        self.codec_name = codec
        self.model, self.sampling = model, Sampling(steps, default_guidance(model))
        self.codec = Codec.from_pretrained(codec)
        _, self.key, self.other = fixed_keys(3)
        self.codec.use_key(self.key)
        self.length = self.codec.config.length
        self.detector = Detector(self.codec, self.pipe.vae, fpr=FPR)

    @cached_property
    def pipe(self) -> Any:
        pipe = load_pipeline(self.model)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def secrets(self, number: int, count: int) -> Bits:
        return np.random.default_rng([SEED, number]).integers(2, size=(count, self.length), dtype=np.uint8)

    def marked(self, part: str, secrets: Bits, name: str) -> list[Image.Image]:
        return [self._made(part, i, s, name) for i, s in enumerate(tqdm(secrets, name, disable=None))]

    def plain(self, part: str) -> list[Image.Image]:
        return [self._made(part, i, None, "plain") for i in range(self.counts[part])]

    def _made(self, part: str, number: int, secret: Bits | None, name: str) -> Image.Image:
        word = "plain" if secret is None else to_hex(secret)
        path = self.folder / "made" / f"{part}-{number:03d}-{word}.png"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            seed = FIRST[part] + number
            bits = np.zeros(self.length, np.uint8) if secret is None else secret
            strength = 0.0 if secret is None else 1.0
            spec = ImageSpec(caption(random_scene(seed)), bits, seed)
            generate(self.pipe, self.codec, spec, replace(self.sampling, strength=strength)).save(path)
        return Image.open(path).convert("RGB")

    @cached_property
    def victims(self) -> dict[str, tuple[list[Image.Image], Bits]]:
        found = {}
        for number, part in enumerate(("test", "tune")):
            secrets = self.secrets(number, self.counts[part])
            found[part] = (self.marked(part, secrets, f"victims, {part}"), secrets)
        return found

    @cached_property
    def pool(self) -> tuple[list[Image.Image], Bits]:
        """Pictures with a secret each, which the attacker has seen."""
        secrets = self.secrets(2, max(SEEN))
        return self.marked("seen", secrets, "seen, fresh secrets"), secrets

    @cached_property
    def pool_of_one(self) -> tuple[list[Image.Image], Bits]:
        secrets = np.repeat(self.secrets(3, 1), max(SEEN), axis=0)
        return self.marked("seen", secrets, "seen, one secret"), secrets

    @torch.no_grad()
    def latents(self, images: Sequence[Image.Image]) -> Tensor:
        return torch.cat([encode(self.detector.vae, self.pixels([image])) for image in images])

    def pixels(self, images: Sequence[Image.Image]) -> Tensor:
        size = self.detector.image_size
        return torch.from_numpy(np.stack([read_image(image).resized(size).pixels() for image in images]))

    @torch.no_grad()
    def shifted(self, image: Image.Image, change: Tensor) -> Image.Image:
        """The image with what a change (1, C, h, w) of its latents does to it."""
        z = self.latents([image])
        difference = (decode(self.detector.vae, z + change) - decode(self.detector.vae, z))[0]
        return added(image, 127.5 * difference.permute(1, 2, 0).numpy())


def added(image: Image.Image, change: np.ndarray) -> Image.Image:
    return Image.fromarray(np.clip(np.rint(np.asarray(image, np.float32) + change), 0, 255).astype(np.uint8))


# --- measuring ---------------------------------------------------------------------------------------------


def measured(lab: Experiment, images: list[Image.Image], secrets: Bits, before: list[Image.Image]) -> Row:
    found = [lab.detector.detect(image, secret) for image, secret in zip(images, secrets, strict=True)]
    scores = [Visibility(a).ssimulacra2(b) for a, b in zip(before, images, strict=True)]
    names = [named(one.margins, secret) for one, secret in zip(found, secrets, strict=True)]
    hits = {"found": [one.marked for one in found], "named": names}
    return {
        "images": len(images),
        "accuracy": round(float(np.mean([one.bits == s for one, s in zip(found, secrets, strict=True)])), 4),
        **{name: share(values) for name, values in hits.items()},
        "ssimulacra2": round(float(np.mean(scores)), 1),
    }


def named(margins: np.ndarray, secret: Bits) -> bool:
    weights = soft_weights(margins)
    p_value = soft_tail(soft_cost((margins > 0).astype(np.uint8), secret, weights), weights)
    return p_value <= per_try(RATE, ACCOUNTS)


def share(values: Sequence[bool]) -> Row:
    low, high = clopper_pearson(int(sum(values)), len(values))
    return {"rate": round(sum(values) / len(values), 4), "interval_95": [round(low, 4), round(high, 4)]}


Attack = Callable[[Image.Image, float], Image.Image]


def removal(
    lab: Experiment, attack: Attack, strengths: Sequence[float] = (0.0,), secret: Bits | None = None
) -> Row:
    """The least strength that removes on tune victims, else the one with the fewest found in good quality."""
    chosen, best = strengths[0], 2.0

    def of(part: str) -> tuple[list[Image.Image], Bits]:
        if secret is None:
            return lab.victims[part]
        secrets = np.repeat(secret[None], lab.counts[part], axis=0)
        return lab.marked(part, secrets, f"victims of one secret, {part}"), secrets

    for strength in strengths if len(strengths) > 1 else ():
        images, secrets = of("tune")
        row = measured(lab, [attack(image, strength) for image in images], secrets, images)
        if row["ssimulacra2"] < LEAST_QUALITY and best < 2.0:
            break
        if row["found"]["rate"] <= best:
            best, chosen = row["found"]["rate"], strength
        if best <= REMOVED:
            break
    images, secrets = of("test")
    row = measured(lab, [attack(image, chosen) for image in images], secrets, images)
    return row | ({"strength": chosen} if len(strengths) > 1 else {})


# --- the experiments ---------------------------------------------------------------------------------------


def tasks(lab: Experiment) -> dict[str, Callable[[], Row]]:
    found: dict[str, Callable[[], Row]] = {
        "none": lambda: removal(lab, lambda image, _: image),
        "overwritten with the codec": lambda: removal(lab, partial(overwrite, lab)),
        "margins under PGD with the codec": lambda: removal(lab, partial(pgd, lab), EPSILONS),
        "forgery: read and written again with the codec, without the key": lambda: rewritten(lab),
        "forgery: fine latents copied from one picture": lambda: copied(lab),
        "privacy: another key": lambda: other_key(lab),
    }
    for count in SEEN:
        found[f"surrogate decoder fitted to {count} marked and {count} unmarked"] = partial(
            surrogate, lab, count
        )
        found[f"mean latents of {count}, one secret"] = partial(averaged, lab, count, True)
        found[f"mean latents of {count}, fresh secrets"] = partial(averaged, lab, count, False)
    for count in COLLUDERS:
        found[f"collusion of {count}"] = partial(collusion, lab, count)
    return found


def overwrite(lab: Experiment, image: Image.Image, _: float) -> Image.Image:
    """Another secret by the public codec, added to the finished picture."""
    stranger = Codec.from_pretrained(lab.codec_name)
    dose = float(stranger.injection.dose)
    return embed(image, stranger, lab.detector.vae, lab.secrets(9, 1)[0], dose)


def pgd(lab: Experiment, image: Image.Image, epsilon: float) -> Image.Image:
    """Projected gradient descent on the network's margins, through the autoencoder; L-inf, in levels of 255."""
    start = lab.pixels([image])
    bound, step = epsilon / 127.5, 2.5 * epsilon / 127.5 / STEPS_PGD
    with torch.no_grad():
        logits = lab.codec.decode(encode(lab.detector.vae, start))
        signs = (logits[..., 1] - logits[..., 0]).sign()
    pixels = start.clone()
    for _ in range(STEPS_PGD):
        pixels.requires_grad_(True)
        logits = lab.codec.decoder(encode(lab.detector.vae, pixels))
        loss = ((logits[..., 1] - logits[..., 0]) * signs).clamp_min(-1).sum()
        (gradient,) = torch.autograd.grad(loss, pixels)
        with torch.no_grad():
            pixels = (start + (pixels - step * gradient.sign() - start).clamp(-bound, bound)).clamp(-1, 1)
    return Image.fromarray(((pixels[0].permute(1, 2, 0).numpy() + 1) * 127.5).round().astype(np.uint8))


def surrogate(lab: Experiment, count: int) -> Row:
    """A linear decoder of "marked" on latents, by ridge regression; its direction is taken out of each victim."""
    z = lab.latents([*lab.pool[0][:count], *lab.plain("seen")[:count]]).flatten(1).double()
    target = torch.cat([torch.ones(count), -torch.ones(count)]).double()
    centred = z - z.mean(0)
    gram = centred @ centred.T
    weights = torch.linalg.solve(gram + gram.diagonal().mean() * torch.eye(len(gram)).double(), target)
    direction = (centred.T @ weights).float().view(1, *lab.latents(lab.pool[0][:1]).shape[1:])
    size = float(lab.codec.delta(lab.secrets(9, 1)).norm()) * float(lab.codec.injection.dose)
    change = direction / direction.norm() * size
    row = removal(lab, lambda image, s: lab.shifted(image, -s * change), STRENGTHS)
    return row | {"seen": count}


def averaged(lab: Experiment, count: int, one_secret: bool) -> Row:
    """Mean latents of marked pictures less those of unmarked ones of other prompts."""
    images, secrets = lab.pool_of_one if one_secret else lab.pool
    others = lab.plain("seen")[::-1]
    mark = lab.latents(images[:count]).mean(0, keepdim=True) - lab.latents(others[:count]).mean(
        0, keepdim=True
    )
    row = removal(
        lab, lambda image, s: lab.shifted(image, -s * mark), STRENGTHS, secrets[0] if one_secret else None
    )
    return row | {"seen": count}


def rewritten(lab: Experiment) -> Row:
    """A stranger reads the word that a picture carries and writes it into another, both with the public codec."""
    stranger = Detector.from_pretrained(lab.codec_name)
    dose = float(stranger.codec.injection.dose)
    images, secrets = lab.victims["test"]
    covers = lab.plain("test")[::-1]
    bits = [stranger.detect(image).bits for image in images]
    forged = [embed(c, stranger.codec, stranger.vae, b, dose) for c, b in zip(covers, bits, strict=True)]
    return measured(lab, forged, secrets, covers)


def copied(lab: Experiment) -> Row:
    """Latents less their local mean, of a marked picture, added to another's; the strength that tune finds most."""

    def made(part: str, strength: float) -> Row:
        images, secrets = lab.victims[part]
        covers = lab.plain(part)[::-1]
        z = lab.latents(images)
        fine = z - torch.nn.functional.avg_pool2d(z, 5, 1, 2, count_include_pad=False)
        forged = [lab.shifted(c, strength * f[None]) for c, f in zip(covers, fine, strict=True)]
        return measured(lab, forged, secrets, covers)

    rows = {strength: made("tune", strength) for strength in STRENGTHS}
    good = [s for s in STRENGTHS if rows[s]["ssimulacra2"] >= LEAST_QUALITY] or [STRENGTHS[0]]
    chosen = max(good, key=lambda s: rows[s]["found"]["rate"])
    return made("test", chosen) | {"strength": chosen}


def collusion(lab: Experiment, count: int) -> Row:
    """The mean of the copies of one picture that `count` accounts got: the same prompt and seed, a secret each."""
    secrets = [lab.secrets(20 + account, lab.counts["test"]) for account in range(count)]
    copies = [lab.marked("test", some, f"account {account}") for account, some in enumerate(secrets)]
    mixed = [
        np.mean([np.asarray(one, np.float32) for one in some], axis=0) for some in zip(*copies, strict=True)
    ]
    images = [Image.fromarray(np.rint(one).astype(np.uint8)) for one in mixed]
    margins = [found.margins for found in lab.detector.detect_many(images)]
    someone = [any(named(m, own[i]) for own in secrets) for i, m in enumerate(margins)]
    innocent = np.random.default_rng([SEED, 9]).integers(2, size=(2000, lab.length), dtype=np.uint8)
    return {
        "colluders": count,
        "secrets": "a fresh one a picture",
        "images": len(images),
        "someone_named": share(someone),
        "innocent_named": share([any(named(m, secret) for secret in innocent) for m in margins]),
    }


def other_key(lab: Experiment) -> Row:
    """What somebody with the codec and another key, or none, reads against the secrets."""
    images, secrets = lab.victims["test"]
    stranger = Detector.from_pretrained(lab.codec_name)
    none = np.mean([found.bits == s for found, s in zip(stranger.detect_many(images), secrets, strict=True)])
    stranger.codec.use_key(lab.other)
    other = np.mean([found.bits == s for found, s in zip(stranger.detect_many(images), secrets, strict=True)])
    blind = [found.verdict == "marked" for found in stranger.detect_many(images)]
    return {
        "images": len(images),
        "accuracy_with_another_key": round(float(other), 4),
        "accuracy_without_a_key": round(float(none), 4),
        "seen_to_be_marked_at_all": round(float(np.mean(blind)), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="rows and pictures of the run")
    parser.add_argument("--codec", default="vista")
    parser.add_argument("--model", default="vista-lcm")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--victims", type=int, default=16)
    parser.add_argument("--tuning", type=int, default=6)
    parser.add_argument("--only", default="", help="rows whose names begin so")
    parser.add_argument("--report", action="store_true", help="write the results of the rows that are there")
    given = parser.parse_args()
    head = given.folder / "head.json"
    if given.report:
        rows = [json.loads(line) for line in (given.folder / "rows.jsonl").read_text().splitlines()]
        document = {**json.loads(head.read_text()), "rows": rows}
        security_tables.write(security_tables.RESULTS / "generation.json", document)
        security_tables.fill_page()
        return
    names = ("codec", "model", "steps", "victims", "tuning")
    weights = read_config(find_codec(given.codec))["sha256"]
    config = {name: getattr(given, name) for name in names} | {"seed": SEED, "weights": weights}
    run = Run(given.folder, config, MODULES)
    head.write_text(json.dumps(provenance(command_line(), config)))
    lab = Experiment(given.folder, given.codec, given.model, given.steps, given.victims, given.tuning)
    made = tasks(lab)
    run.extend(
        lambda name: {"id": name, **made[name]()}, [n for n in made if n.startswith(given.only)], 1, str
    )


if __name__ == "__main__":
    main()
