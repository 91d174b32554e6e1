"""What the benchmarks of the pixel layer share: the split of the pictures, fixed keys, rows that a stop keeps."""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from markdown_tables import between
from tqdm import tqdm

from diffmark.pixel.keys import PUBLIC_KEY, OperatorKey
from diffmark.provenance import code_digest, provenance, revision

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
EVERY, TEST = 3, 2  # of the sorted files of a folder those with index % EVERY == TEST are reported on
PARTS = ("tune", "test")
READER = tuple(f"pixel/{name}" for name in ("keys", "layout", "reader", "search", "spectrum", "tones"))
WRITER = (
    *READER,
    *(f"pixel/{name}" for name in ("arrivals", "codec", "fitting", "forecast", "visibility", "writer")),
)

Row = dict[str, Any]


def split(items: Iterable[Any], part: str) -> list[Any]:
    """The sorted items of a part: "test" is every third and is only reported on, "tune" is the rest."""
    if part not in PARTS:
        raise ValueError(f"a part is one of {', '.join(PARTS)}, got {part!r}")
    return [item for index, item in enumerate(sorted(items)) if (index % EVERY == TEST) == (part == "test")]


def files(folder: str | Path, part: str) -> list[Path]:
    """Image files of a folder that belong to a part."""
    found = split((path for path in Path(folder).iterdir() if path.suffix.lower() in SUFFIXES), part)
    if not found:
        raise FileNotFoundError(f"{folder}: no images ({', '.join(SUFFIXES)}) of the {part} part")
    return found


def fixed_keys(count: int) -> list[OperatorKey]:
    """The public key and others, the same in every run."""
    others = [OperatorKey(hashlib.sha256(f"benchmark key {i}".encode()).digest()) for i in range(1, count)]
    return [PUBLIC_KEY, *others]


def one_thread() -> None:
    """For the arithmetic of processes that are started from now on; before numpy is loaded, for this one too."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def give_one_thread() -> None:
    """To torch, and to every session of onnxruntime from now on, whoever opens it."""
    import onnxruntime
    import torch

    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession
    onnxruntime.InferenceSession = functools.partial(session, sess_options=options)


class Run:
    """A folder of rows: what is there already is not made again. One run has one code and one config."""

    def __init__(self, folder: Path, config: Row, modules: tuple[str, ...]) -> None:
        self.folder, self.rows_path = folder, folder / "rows.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "run.json"
        self._now = json.loads(json.dumps({"config": config, "pixel_code": code_digest(*modules)}))
        if not path.exists():
            path.write_text(json.dumps({**self._now, "revision": revision()}, indent=2) + "\n")
        self._begun = json.loads(path.read_text())
        self.revision, self.code = self._begun["revision"], self._begun["pixel_code"]

    def head(self, command: str, config: Row, whole: bool) -> None:
        """What the result's JSON begins with: the last command that was for all rows."""
        path = self.folder / "head.json"
        if whole or not path.exists():
            path.write_text(json.dumps(provenance(command, config)))

    def rows(self) -> list[Row]:
        """All whole rows; a last line that was cut by a stop is left out."""
        if not self.rows_path.exists():
            return []
        found = []
        for line in self.rows_path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return found

    def extend(
        self,
        work: Callable[[Any], Row],
        tasks: Sequence[Any],
        jobs: int,
        name: Callable[[Any], str],
        prepare: Callable[..., None] | None = None,
        arguments: tuple[Any, ...] = (),
    ) -> None:
        """Append the row of every task that has none yet; a row's "id" is its task's name."""
        if any(self._begun[name] != value for name, value in self._now.items()):
            raise ValueError(f"{self.folder} holds rows of another code or config: give an empty folder")
        done = {row["id"] for row in self.rows()}
        left = [task for task in tasks if name(task) not in done]
        with self.rows_path.open("a") as out:
            if out.tell() and not self.rows_path.read_bytes().endswith(b"\n"):
                out.write("\n")
            for row in tqdm(
                _mapped(work, left, jobs, prepare, arguments),
                self.folder.name,
                total=len(tasks),
                initial=len(tasks) - len(left),
                disable=None,
            ):
                out.write(json.dumps(row) + "\n")
                out.flush()

    def extend_named(
        self, tasks: Iterable[tuple[str, Callable[[], Row]]], only: Sequence[str] = ("",)
    ) -> None:
        """Append rows that are made by name; of all, those whose names begin with one of `only`, in its order."""
        made = dict(tasks)
        names = [name for first in only for name in made if name.startswith(first)]
        self.extend(lambda name: {"id": name, **made[name]()}, list(dict.fromkeys(names)), 1, str)


def _mapped(
    work: Callable[[Any], Row],
    tasks: Sequence[Any],
    jobs: int,
    prepare: Callable[..., None] | None,
    arguments: tuple[Any, ...],
) -> Iterator[Row]:
    if jobs == 1:
        if prepare:
            prepare(*arguments)
        yield from map(work, tasks)
        return
    one_thread()
    with multiprocessing.get_context("spawn").Pool(jobs, prepare, arguments) as pool:
        yield from pool.imap_unordered(work, tasks)


def of_share(items: Sequence[Any], share: str) -> list[Any]:
    """Part i of n of some items, "i/n" with i from 1."""
    number, count = (int(value) for value in share.split("/"))
    if not 1 <= number <= count:
        raise ValueError(f"a share is i/n with 1 <= i <= n, got {share!r}")
    return list(items[number - 1 :: count])


def fill(page: Path, tables: dict[str, str]) -> None:
    """Put tables between their pairs of comments in a page."""
    text = page.read_text()
    for name, table in tables.items():
        text = between(name, table, text)
    page.write_text(text)
