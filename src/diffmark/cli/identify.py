"""`diffmark identify`: whose key do images carry?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffmark.cli.fingerprint import compare, likeness, look_up, words
from diffmark.cli.marks import KeyFile, ring_for
from diffmark.cli.opening import Actor, Json, Reason, Url, opened, show
from diffmark.cli.readers import BatchSize, Device, Plain, ReaderName, Vae, open_reader

if TYPE_CHECKING:
    from diffmark.detection.joint import AnyDetector
    from diffmark.registry import Identification
    from diffmark.registry.fingerprints import Match

LOGITS = (".npy", ".npz")


def identify(
    images: Annotated[
        list[str] | None,
        typer.Argument(
            help="Images, folders, globs, or .npy/.npz files of logits; - for paths on standard input."
        ),
    ] = None,
    bits: Annotated[
        list[str] | None,
        typer.Option(help="Decoded bits as 16 hex digits or @FILE, instead of an image; may be repeated."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many candidates to list.")] = 10,
    rate: Annotated[float, typer.Option(help="Family-wise error that the verdict allows.")] = 1e-6,
    closed: Annotated[bool, typer.Option(help="Closed set: always name the best candidate.")] = False,
    together: Annotated[
        bool, typer.Option(help="All images come from one account: sum their evidence.")
    ] = False,
    codec: ReaderName = "auto",
    key: KeyFile = None,
    plain: Plain = False,
    vae: Vae = None,
    batch_size: BatchSize = 8,
    device: Device = None,
    fingerprints: Annotated[
        bool,
        typer.Option(
            "--fingerprints",
            help="Look images without a significant match up by likeness, a weaker basis; and say whether one with "
            "a match looks like the picture that its key was written into: marks can be copied.",
        ),
    ] = False,
    registry: Url = None,
    actor: Actor = None,
    reason: Reason = "",
    as_json: Json = False,
) -> None:
    """Name the account whose key an image carries.

    The probability of being wrong is stated. Exit code 0: an account is named for everything asked; 1: for at
    least one there is no significant match; 2: an image could not be read, or another error. Every call is
    written to the registry's audit log before its answer is shown.
    """
    from diffmark.private import given

    if not images and not bits:
        raise ValueError("give an image, a folder, a file of logits, or --bits HEX")
    options: dict[str, Any] = {"rate": None if closed else rate, "reason": reason}
    with opened(registry, actor, existing=True) as opened_registry:
        ring = ring_for(opened_registry, key)
        reader = partial(open_reader, codec, vae, ring, plain, device=device, batch_size=batch_size)
        found = list(read(images or [], reader))
        if not found and not bits:
            raise ValueError("give an image, a folder, a file of logits, or --bits HEX")
        sources = [(name, values) for name, values in found if values is not None]
        logits = [values for _, values in sources]
        names = [given(text, "bits") for text in bits or []]
        results = [opened_registry.identify_bits(text, top, **options) for text in names]
        if logits and together:
            names.append(f"{len(logits)} images together")
            results.append(opened_registry.identify_together(logits, top, **options))
        elif logits:
            names += [name for name, _ in sources]
            results += opened_registry.identify_many(logits, top, **options)
        pictures = {name for name, _ in sources if Path(name).suffix.lower() not in LOGITS}
        unnamed = [
            name
            for name, result in zip(names, results, strict=True)
            if not result.verdict and name in pictures
        ]
        named = {
            name: result.candidates[0].key
            for name, result in zip(names, results, strict=True)
            if result.verdict and name in pictures
        }
        alike = look_up(opened_registry, unnamed if fingerprints else (), reason)
        distances = compare(opened_registry, named if fingerprints else {})
        readers = {name: values.reader for name, values in sources if hasattr(values, "reader")}
    report(names, results, readers, alike, distances, as_json)
    unreadable = len(found) > len(sources)
    raise typer.Exit(2 if unreadable else 0 if all(result.verdict for result in results) else 1)


def read(names: list[str], reader: Callable[[], AnyDetector]) -> Iterator[tuple[str, Any]]:
    """(name, Detection or logits (64, 2)) of every image or row of a logits file; None for what cannot be read."""
    from diffmark.cli.detect import expand
    from diffmark.progress import track

    paths = list(expand(names, sys.stdin))
    pictures = [path for path in paths if path.suffix.lower() not in LOGITS]
    for path in paths:
        if path not in pictures:
            yield from read_logits(path)
    if pictures:
        from diffmark.images import ImageError

        outcomes = reader().scan(pictures)
        for path, outcome in zip(pictures, track(outcomes, "reading", len(pictures)), strict=True):
            if isinstance(outcome, ImageError):
                typer.echo(f"error: {outcome}", err=True)
            yield str(path), None if isinstance(outcome, ImageError) else outcome


def read_logits(path: Path) -> Iterator[tuple[str, Any]]:
    """Logits of shape (64, 2) or (n, 64, 2): the array of an .npy, or `logits` of an .npz."""
    import numpy as np

    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        found = np.load(path, allow_pickle=False)
        names = [] if isinstance(found, np.ndarray) else found.files
        if "logits" in names:
            found = found["logits"]
    except Exception as error:  # numpy raises a dozen kinds on damaged files
        raise ValueError(f"{path}: damaged, or no array of numpy ({type(error).__name__})") from error
    if not isinstance(found, np.ndarray):
        raise ValueError(f"{path}: needs an array named logits, found {', '.join(names) or 'none'}")
    rows = found[None] if found.ndim == 2 else found
    if rows.ndim != 3 or not np.issubdtype(rows.dtype, np.floating):
        raise ValueError(
            f"{path}: logits are numbers of shape (64, 2) or (n, 64, 2), got {rows.dtype} {rows.shape}"
        )
    for number, row in enumerate(rows):
        yield (str(path) if len(rows) == 1 else f"{path}[{number}]"), row


def report(
    names: list[str],
    results: list[Identification],
    readers: dict[str, str],
    alike: dict[str, Match | None],
    distances: dict[str, int],
    as_json: bool,
) -> None:
    """For each: the verdict and the candidates, who read it, and what it looks like where that was asked."""
    from diffmark.registry.fingerprints import compared

    rates = [result.verdict.rate for result in results]
    if len(results) > 1 and rates[0] is not None:
        chance = f"{len(results)} answers at a family-wise error of {rates[0]:g} each"
        typer.echo(f"{chance}: {len(results) * rates[0]:.3g} false names are expected by chance", err=True)
    if as_json:
        for name, result in zip(names, results, strict=True):
            row = {"source": name, **result.to_dict(), "reader": readers.get(name)}
            row |= {"fingerprint": likeness(alike[name])} if name in alike else {}
            show(row | ({"bits_from_its_picture": distances[name]} if name in distances else {}), True)
        return
    for name, result in zip(names, results, strict=True):
        typer.echo(f"{name}: {result.verdict}")
        if name in alike:
            typer.echo(f"{name}: {words(alike[name])}")
        if name in distances:
            typer.echo(f"{name}: {compared(distances[name])}")
        rows = [
            {
                "principal": candidate.principal,
                "key": candidate.key,
                "status": candidate.status,
                "distance": candidate.distance,
                "score": f"{candidate.score:.3f}",
                "p": f"{candidate.p_value:.2g}",
                "family-wise": f"{candidate.family_wise:.2g}",
            }
            for candidate in result.candidates
        ]
        show(rows, False)
        keys = f"{result.keys} key{'' if result.keys == 1 else 's'}"
        by = f"; read by {readers[name]}" if name in readers else ""
        typer.echo(f"{keys}, {'soft' if result.soft else 'hard'} ranking, by {result.path}{by}\n")
