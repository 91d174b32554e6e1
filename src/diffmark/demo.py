"""`make demo`: from a prompt to a named account, on the embedded model, in a few minutes on two CPU cores.

Four accounts get keys among a million others. Each account's image is generated, marked in the pixel layer,
attacked, read back, and held against all keys. Everything is real: the model, the mark, the registry on disk.
"""

from __future__ import annotations

import html
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from PIL import Image, ImageChops
from rich.console import Console
from rich.table import Table

from diffmark.attacks import attack
from diffmark.detection.joint import open_detector
from diffmark.keys.ring import PUBLIC
from diffmark.mark.loading import default_guidance, load_pipeline
from diffmark.metrics import psnr
from diffmark.pixel.codec import PixelCodec
from diffmark.pixel.visibility import Visibility
from diffmark.progress import track
from diffmark.registry import Registry
from diffmark.secret import from_hex

CUSTOMERS = {
    "ada": "snowy mountains at dawn above a lake, the sun, a boat",
    "bela": "desert dunes at sunset above a sandy beach, a tree",
    "chandra": "green hills at noon under a cloudy sky above a flower meadow, a house",
    "dagny": "rocky mountains at night above a pine forest, the moon",
}
ATTACKS = {
    "JPEG 50": ("jpeg", 0.5),
    "half size": ("resize", 0.615),
    "rotated 20": ("rotation", 20 / 45),
    "cropped": ("resized_crop", 1.0),
    "mirrored": ("flip", 1.0),
}
OTHERS = 1_000_000
CAPTION = (
    "quality: SSIMULACRA2 of the mark; wrong: of 64 bits; error: probability of a false match among all keys"
)
MARK = ".diffmark-demo"  # tells a folder that the demonstration made, and may make anew


@dataclass
class Case:
    """One account's image and what was read from each version of it."""

    account: str
    prompt: str
    secret: str
    plain: Image.Image
    marked: Image.Image
    answers: dict[str, Any] = field(default_factory=dict)  # version -> (Detection, Identification)

    @property
    def quality(self) -> str:
        """Of the marked image against the plain one."""
        return f"SSIMULACRA2 {self.ssimulacra2:.0f}, {psnr(self.plain, self.marked):.1f} dB"

    @property
    def ssimulacra2(self) -> float:
        """An estimate of it."""
        return Visibility(self.plain).ssimulacra2(self.marked)


def main(
    out: Path = Path("demo"),
    model: str = "vista",
    steps: int = 50,
    others: int = OTHERS,
) -> None:
    """Run the demonstration and write pictures and a page into OUT."""
    console = Console()
    if out.exists() and any(out.iterdir()) and not (out / MARK).exists():
        raise typer.BadParameter(f"{out} holds something else: choose another folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARK).touch()
    with Registry.open(f"sqlite:///{out / 'registry.db'}", actor="demo") as registry:
        console.print(f"Issuing keys to {len(CUSTOMERS)} accounts among {others:,} others ...")
        registry.import_keys(np.random.default_rng().integers(0, 2**64, others, np.uint64))
        keys = {account: registry.issue(account).hex for account in CUSTOMERS}
        cases = paint(model, keys, steps)
        detector = open_detector(key=PUBLIC)
        for case in track(cases, "reading and identifying"):
            for name, image in versions(case).items():
                found = detector.detect(image)
                case.answers[name] = (found, registry.identify(found))
    console.print(summary(cases, others))
    write_page(out, cases, others)
    console.print(f"Pictures and the page: {out / 'index.html'}")
    if not all(case.answers["marked"][1].verdict.principal == case.account for case in cases):
        raise typer.Exit(1)


def paint(model: str, keys: dict[str, str], steps: int) -> list[Case]:
    """The image of every account, and the same with its mark."""
    pipe = load_pipeline(model)
    pipe.set_progress_bar_config(disable=True)
    pixel, guidance = PixelCodec(), default_guidance(model)
    cases = []
    for seed, (account, prompt) in enumerate(track(CUSTOMERS.items(), "painting", len(CUSTOMERS))):
        generator = torch.Generator("cpu").manual_seed(seed)
        options = {"num_inference_steps": steps, "guidance_scale": guidance, "generator": generator}
        plain = pipe(prompt, **options).images[0]
        marked = pixel.embed(plain, keys[account]).image
        cases.append(Case(account, prompt, keys[account], plain, marked))
    return cases


def versions(case: Case) -> dict[str, Image.Image]:
    """The images that are read: unmarked, marked, and marked then attacked."""
    attacked = {name: attack(kind, case.marked, strength) for name, (kind, strength) in ATTACKS.items()}
    return {"plain": case.plain, "marked": case.marked, **attacked}


def summary(cases: list[Case], others: int) -> Table:
    table = Table(title=f"Who made it? {others + len(cases):,} keys, error at most 1e-6", caption=CAPTION)
    for head in ("account", "image", "quality", "wrong", "read by", "named", "error"):
        table.add_column(head)
    for case in cases:
        for name, (found, answer) in case.answers.items():
            wrong = int((found.bits != from_hex(case.secret, len(found.bits))).sum())
            named = answer.verdict.principal or "nobody"
            quality = f"{case.ssimulacra2:.0f}" if name == "marked" else ""
            error = f"{answer.verdict.family_wise:.2g}"
            table.add_row(case.account, name, quality, str(wrong), found.reader, named, error)
    return table


def write_page(out: Path, cases: list[Case], others: int) -> None:
    """index.html and the pictures it shows."""
    rows = []
    for case in cases:
        difference = ImageChops.difference(case.plain, case.marked).point(lambda level: min(255, 10 * level))
        figures = []
        for name, image in {**versions(case), "difference ×10": difference}.items():
            file = f"{case.account}-{name.replace(' ×', '-').replace(' ', '-').lower()}.png"
            image.save(out / file)
            said = ""
            if name in case.answers:
                verdict = case.answers[name][1].verdict
                named = html.escape(verdict.principal or "no match")
                said = f"<b class={'yes' if verdict else 'no'}>{named}</b>"
            figures.append(
                f'<figure><img src="{file}" alt="{name}"><figcaption>{name} {said}</figcaption></figure>'
            )
        head = f"<h2>{case.account} <code>{case.secret}</code></h2>"
        prompt = f"<p>“{html.escape(case.prompt)}”; marked against plain: {case.quality}.</p>"
        rows.append(f"<section>{head}{prompt}<div>{''.join(figures)}</div></section>")
    page = PAGE.replace("{{keys}}", f"{others + len(cases):,}").replace("{{rows}}", "\n".join(rows))
    (out / "index.html").write_text(page, encoding="utf-8")


PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>DiffMark demonstration</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><style>
:root{--paper:#faf8f4;--ink:#1f2528;--soft:#5c666b;--line:#e0dcd3;--yes:#0d5f5c;--no:#6b7479}
@media (prefers-color-scheme:dark){
:root{--paper:#15191b;--ink:#e7e9e7;--soft:#a0abb0;--line:#323b3f;--yes:#7cccc1;--no:#94a0a6}}
body{font:1rem/1.55 system-ui,sans-serif;max-width:76rem;margin:0 auto;padding:2rem 1rem 3rem;
background:var(--paper);color:var(--ink)}
h1,h2{font-family:"Iowan Old Style",Palatino,"URW Palladio L",P052,Georgia,serif;line-height:1.25;margin:0}
h1{font-size:clamp(1.7rem,1.2rem + 2vw,2.4rem)}h2{font-size:1.35rem}
p{margin:.3rem 0 .9rem;color:var(--soft);max-width:52rem}
section{border-top:1px solid var(--line);margin-top:1.8rem;padding-top:1.4rem}
div{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(9.5rem,45%),1fr));gap:1rem .9rem}
figure{margin:0}img{display:block;width:100%;aspect-ratio:1;object-fit:contain;border-radius:.5rem}
figcaption{font-size:.875rem;margin-top:.35rem;color:var(--soft)}
b{display:block;font-weight:600}.yes{color:var(--yes)}.no{color:var(--no)}
code{font-size:.7em;font-weight:400;color:var(--soft)}
</style>
<h1>Whose image is it?</h1><p>Each account's image was generated, marked with its key, attacked, read back, and
held against {{keys}} keys. A name appears only where the chance of a false match is at most one in a million.
The last picture of each row is the difference that the mark makes, ten times as strong.</p>
{{rows}}</html>
"""


if __name__ == "__main__":
    typer.run(main)
