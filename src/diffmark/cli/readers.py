"""Which detector reads, and how: the options that all commands share that read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffmark.cli.marks import tell_key

if TYPE_CHECKING:
    from diffmark.detection.joint import AnyDetector
    from diffmark.keys.ring import RingLike

ReaderName = Annotated[
    str,
    typer.Option(
        help="auto (the pixel layer, then a latent codec), pixel, or a latent codec's name or folder."
    ),
]
Vae = Annotated[
    str | None, typer.Option(help="Autoencoder of a latent codec: a pipeline's folder or hub id.")
]
Plain = Annotated[bool, typer.Option("--plain", help="Do not search for turned, cropped or framed pictures.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, mps, for latent codecs; the best there is by default.")
]
BatchSize = Annotated[int, typer.Option(min=1, help="Images a latent codec decodes at once.")]


def open_reader(
    codec: str, vae: str | None, key: RingLike, plain: bool = False, **options: Any
) -> AnyDetector:
    """The detector that a command's options name; which operator key it reads with is said."""
    from diffmark.detection.joint import open_detector
    from diffmark.keys.ring import as_ring

    ring = as_ring(key)
    detector = open_detector(codec, vae, ring, search=not plain, **options)
    tell_key(ring)
    return detector
