"""The HTTP service under load: clients on loopback that ask for detections as fast as they are answered.

    python benchmarks/service_load.py [--clients 200] [--seconds 30] [--codec pixel] [--workers 2]
    python benchmarks/service_load.py --against REVISION --rounds 2 --workers 2     # 6 minutes
    python benchmarks/service_load.py --minutes 10 --clients 16 --workers 2

Starts `diffmark serve` in a process of its own on a new registry and puts a row into results/service_load.json:
how many requests were answered, refused with 503, or failed, how long those took, and the CPU time of all processes
of the service. `--against` measures another release by the same clients, in turn with this one; answers a second
and answers a CPU second are compared round by round, for the machine may be busy with other things.

Every request sends a file that was not sent before (one of 16 pictures, half of them marked, with a comment of its
own), so that no answer comes from memory. Each client has a token and an address of its own (127.0.1.1 and on),
for a network has a limit. A client that is refused comes back after the time that Retry-After names. `--minutes`
instead lets clients pause and records the memory of the service every 15 seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from diffmark.pixel.codec import PixelCodec
from diffmark.provenance import provenance, revision
from diffmark.vista.paint import painted_scenes

RESULT = Path(__file__).parents[1] / "results" / "service_load.json"
PICTURES = 16
REGISTRY = """
import json, sys
from diffmark.registry import Registry
from diffmark.server.tokens import grant_token
with Registry.open(sys.argv[1], actor="root", cache=False) as registry:
    registry.issue("user-1")
    print(json.dumps([grant_token(registry, f"client-{i}", "auditor")[1] for i in range(int(sys.argv[2]))]))
"""  # run by the release that is measured
Answer = tuple[int, float]  # status (0: no answer), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--minutes", type=float, default=0, help="watch the memory for so long instead")
    parser.add_argument("--codec", default="pixel")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--against", help="revision of another release, measured in turn")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--note", default="", help="what else the machine was doing")
    options = parser.parse_args()
    if options.clients > 400 or options.seconds > 120 or options.minutes > 15:
        parser.error("at most 400 clients, 120 seconds, 15 minutes")
    images = pictures()
    rows: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        other = unpacked(options.against, Path(folder)) if options.against else None
        for _ in range(options.rounds):
            for tree in (None, other) if other else (None,):
                row = measure(tree, images, options)
                rows.setdefault("this release" if tree is None else "release compared with", []).append(row)
                shown = {name: value for name, value in row.items() if name != "resident_mb"}
                print(json.dumps(shown), flush=True)
    kind = "memory" if options.minutes else "load"
    names = ("clients", "seconds", "minutes", "codec", "workers", "rounds", "against", "note")
    config = {name: getattr(options, name) for name in names}
    config |= {"cores": len(os.sched_getaffinity(0)), "date": time.strftime("%Y-%m-%d")}
    config["revision"] = revision()  # rows are replaced one by one
    record(kind, {**config, **rows, **compared(*rows.values())} if options.against else {**config, **rows})


def unpacked(name: str, folder: Path) -> Path:
    """The sources of a revision of this repository."""
    archive = subprocess.run(
        ["git", "archive", name, "src"], cwd=RESULT.parents[1], check=True, capture_output=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder / "src"


def measure(tree: Path | None, images: list[bytes], options: argparse.Namespace) -> dict[str, Any]:
    """One run of one release; its registry and its keys are its own."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/registry.db"
        environment = {**os.environ, "XDG_DATA_HOME": folder}
        if tree is not None:
            environment["PYTHONPATH"] = str(tree.resolve())
        made = [sys.executable, "-c", REGISTRY, url, str(options.clients)]
        tokens = json.loads(subprocess.run(made, env=environment, check=True, capture_output=True).stdout)
        port = free_port()
        command = [sys.executable, "-m", "diffmark", "serve", "--registry", url, "--actor", "root"]
        command += ["--port", str(port), "--codec", options.codec]
        if tree is None:  # releases before operator keys read under the public key alone, and in one process
            command += ["--key", "public", "--workers", str(options.workers)]
        load = os.getloadavg()[0]
        with open(os.path.join(folder, "log"), "w") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            wait_until_ready(port, server)
            if options.minutes:
                return watch_memory(port, tokens, images, server.pid, options) | {"load_before": load}
            before = processor_seconds(server.pid)
            answers, health = asyncio.run(bombard(port, tokens, images, options.seconds))
            used = processor_seconds(server.pid) - before
            row = summary(answers, health, options.seconds) | {"load_before": load}
            row |= {"server_peak_mb": round(sum(memory(server.pid, "VmHWM")), 1)}
            row |= {"server_cpu_seconds": round(used, 2)}
            return row | {"server_cpu_ms_an_answer": round(1000 * used / max(row["answered"], 1), 2)}
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def compared(own: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, Any]:
    """How many times the answers a second and the answers a CPU second of the other release, round by round."""
    pairs = list(zip(own, other, strict=True))
    rates = [mine["answered_per_second"] / max(theirs["answered_per_second"], 0.01) for mine, theirs in pairs]
    costs = [theirs["server_cpu_ms_an_answer"] / mine["server_cpu_ms_an_answer"] for mine, theirs in pairs]
    return {
        "times_the_answers_a_second": [round(rate, 2) for rate in rates],
        "times_the_answers_a_cpu_second": [round(cost, 2) for cost in costs],
    }


def record(kind: str, row: dict[str, Any]) -> None:
    """Put a row into the results; the one of this kind, codec and number of workers is replaced."""
    document = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    row = {"kind": kind, **row}
    same = ("kind", "codec", "workers")
    rows = [old for old in document.get("rows", []) if any(old.get(name) != row[name] for name in same)]
    config = {"image": "256x256 PNG", "pictures": PICTURES, "marked": "every other one"}
    config |= {"files": "each sent once"}
    head = provenance("python benchmarks/service_load.py", config)
    RESULT.write_text(json.dumps({**head, "rows": [*rows, row]}, indent=1) + "\n")


def pictures() -> list[bytes]:
    """Different pictures, every other one marked, as PNG."""
    codec, found = PixelCodec(), []
    for number, image in enumerate(painted_scenes(PICTURES)):
        if number % 2:
            secret = np.random.default_rng(number).integers(0, 2, codec.length).astype(np.uint8)
            image = codec.embed(image, secret).image
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        found.append(buffer.getvalue())
    return found


def file_of(picture: bytes, number: int) -> bytes:
    """The same picture in a file of its own: a PNG with a comment behind its header."""
    head = 8 + 25  # signature and IHDR
    body = b"tEXtnumber\0" + str(number).encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return picture[:head] + chunk + picture[head:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_ready(port: int, server: subprocess.Popen[bytes], seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/ready", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise RuntimeError("the service did not start")


async def bombard(
    port: int, tokens: list[str], images: list[bytes], seconds: float, pause: float = 0.0
) -> tuple[list[Answer], list[Answer]]:
    """Answers to the clients, and to somebody who asks for the health of the service all the while."""
    answers: list[Answer] = []
    health: list[Answer] = []
    turn = count(int(1e6 * time.time()))
    deadline = time.monotonic() + seconds

    def connected(number: int) -> httpx.AsyncClient:
        address = f"127.0.{1 + number // 250}.{1 + number % 250}"
        transport = httpx.AsyncHTTPTransport(local_address=address, verify=False)
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", transport=transport, timeout=60)

    async def once(http: httpx.AsyncClient, path: str, into: list[Answer], **options: Any) -> Any:
        start = time.perf_counter()
        try:
            answer = await http.request("POST" if options else "GET", path, **options)
        except httpx.HTTPError as error:
            print(f"{path}: {error!r}", file=sys.stderr)
            into.append((0, time.perf_counter() - start))
            return None
        into.append((answer.status_code, time.perf_counter() - start))
        return answer

    async def client(number: int, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        async with connected(number) as http:
            while time.monotonic() < deadline:
                sent = next(turn)
                files = {"images": ("a.png", file_of(images[sent % len(images)], sent))}
                answer = await once(http, "/v1/detect", answers, headers=headers, files=files)
                if answer is not None and answer.status_code == 503:
                    await asyncio.sleep(float(answer.headers["retry-after"]) * random.uniform(1, 1.5))
                elif pause:
                    await asyncio.sleep(pause)

    async def watch() -> None:
        async with connected(len(tokens)) as http:
            while time.monotonic() < deadline:
                await once(http, "/health", health)
                await asyncio.sleep(0.5)

    await asyncio.gather(watch(), *(client(number, token) for number, token in enumerate(tokens)))
    return answers, health


def watch_memory(
    port: int, tokens: list[str], images: list[bytes], pid: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Resident memory of all processes of the service while it answers, MB every 15 seconds."""
    seen, statuses, health_failed = [], Counter[int](), 0
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        answers, health = asyncio.run(bombard(port, tokens, images, min(15, end - time.monotonic()), 0.5))
        statuses.update(status for status, _ in answers)
        health_failed += sum(status != 200 for status, _ in health)
        seen.append(round(sum(memory(pid, "VmRSS")), 1))
    tenth = max(1, len(seen) // 10)
    return {
        "resident_mb": seen,
        "first_tenth_mb": round(float(np.mean(seen[tenth : 2 * tenth])), 1),  # after the first answers
        "last_tenth_mb": round(float(np.mean(seen[-tenth:])), 1),
        "statuses": {str(status): number for status, number in sorted(statuses.items())},
        "health_failed": health_failed,
    }


def summary(answers: list[Answer], health: list[Answer], seconds: float) -> dict[str, Any]:
    counts = Counter(status for status, _ in answers)
    served = [taken for status, taken in answers if status == 200]
    refused = [taken for status, taken in answers if status == 503]
    return {
        "requests": len(answers),
        "answered": counts[200],
        "refused_503": counts[503],
        "errors": sum(number for status, number in counts.items() if status not in (200, 503)),
        "statuses": {str(status): number for status, number in sorted(counts.items())},
        "answered_per_second": round(counts[200] / seconds, 2),
        **{f"answered_p{q}_s": quantile(served, q) for q in (50, 99)},
        **{f"refused_p{q}_s": quantile(refused, q) for q in (50, 99)},
        "health_asked": len(health),
        "health_failed": sum(status != 200 for status, _ in health),
        "health_p99_s": quantile([taken for _, taken in health], 99),
    }


def quantile(values: list[float], percent: int) -> float | None:
    return round(float(np.percentile(values, percent)), 3) if values else None


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in listed.read_text().split():
            found += family(int(child))
    return found


def memory(pid: int, field: str) -> list[float]:
    """VmRSS (now) or VmHWM (peak) of a process and its descendants, MB."""
    found = []
    for one in family(pid):
        lines = Path(f"/proc/{one}/status").read_text().splitlines()
        found += [int(line.split()[1]) / 1024 for line in lines if line.startswith(field)]
    return [round(value, 1) for value in found]


def processor_seconds(pid: int) -> float:
    """CPU time of a process and its descendants so far: what others use of the machine is not in it."""
    ticks = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
