"""`diffmark bulk`: detection over as many images as there are."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext
from typing import Annotated

import typer

from diffmark.cli.marks import KeyFile, ring_for, tell_key
from diffmark.cli.opening import Actor, Reason, Url, opened, show
from diffmark.cli.readers import BatchSize, Device, Plain, ReaderName, Vae


def bulk(
    place: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A folder, glob, WebDataset tar, or Parquet of bytes or URLs; a path, or a URL for fsspec.",
        ),
    ],
    out: Annotated[str, typer.Option(help="Folder of Parquet files for the rows; a path or URL.")],
    codec: ReaderName = "auto",
    key: KeyFile = None,
    plain: Plain = False,
    vae: Vae = None,
    fpr: Annotated[float, typer.Option(help="False-positive rate of verdicts.")] = 1e-3,
    run_fpr: Annotated[
        float | None,
        typer.Option(
            help="Chance of a single false verdict, or name, in the whole run; sets --fpr by its images."
        ),
    ] = None,
    batch_size: BatchSize = 8,
    device: Device = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Decoders on Ray (RAY_ADDRESS, or this machine); 0: in this process.")
    ] = 0,
    column: Annotated[
        str | None, typer.Option(help="Column of Parquet files with bytes or URLs; found by itself.")
    ] = None,
    registry: Url = None,
    top: Annotated[int, typer.Option(min=1, help="Candidates a row, with a registry.")] = 3,
    actor: Actor = None,
    reason: Reason = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as a JSON line; rows are in the files.")
    ] = False,
) -> None:
    """Read the marks of many images into a table.

    It has verdict, bits, p-value, and candidates if a registry is given. The summary says how many false
    verdicts and names so many unmarked images would get by chance. What cannot be read gets a row with the
    reason. A bulk run that was stopped in any way goes on where it was when the same command is given again.
    Exit code 0: done; 2: an error.
    """
    from diffmark.bulk.sources import find

    shards, total = find(place, column, out)

    from diffmark.bulk.results import count_rows
    from diffmark.bulk.run import detect_all
    from diffmark.bulk.worker import Settings
    from diffmark.progress import track
    from diffmark.registry.answers import RATE
    from diffmark.statistics import per_try

    rate = RATE  # of names, family-wise in an image
    if run_fpr is not None:
        if total is None:
            raise ValueError("--run-fpr needs to know how many images there are: give files, not containers")
        fpr = per_try(run_fpr, max(total, 1))
        rate = min(rate, fpr)
    counts: Counter[str] = Counter()
    start = time.monotonic()
    with opened(registry, actor, existing=True, index=True) if registry else nullcontext() as keys:
        ring = ring_for(keys, key)
        tell_key(ring)
        settings = Settings(codec, vae, fpr, batch_size, device, key, ring.ids, search=not plain)
        made = detect_all(
            shards, out, settings, registry=keys, workers=workers, top=top, rate=rate, reason=reason
        )
        for count in track((one for part in made for one in part.elements()), "detecting", total):
            counts[count] += 1
    rows = sum(counts.values())
    read = rows - counts["error"]
    there = count_rows(out) - rows
    seconds = round(time.monotonic() - start, 1)
    summary = {"rows": rows, "there_already": there, **counts, "out": out, "seconds": seconds}
    # What chance alone would give among so many unmarked images.
    summary |= {"fpr": fpr, "expected_false_verdicts": float(f"{read * fpr:.3g}")}
    if registry:
        summary["expected_false_names"] = float(f"{read * rate:.3g}")
    show(
        summary if as_json else summary | {"out": f"{out} ({rows} new rows, {there} were there already)"},
        as_json,
    )
