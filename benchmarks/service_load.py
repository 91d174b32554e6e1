"""The HTTP service under load: clients on loopback that ask for detections as fast as they are answered.

    python benchmarks/service_load.py [--clients 200] [--seconds 30] [--codec pixel] [--workers 2] [--tree DIR]

Starts `diffmark serve` in a process of its own on a new registry, or that of another source tree (`--tree`, to
compare releases on one machine), and appends a row to results/service_load.json: how many requests were answered,
refused with 503, or failed, and how long those took. Clients send pictures in turn, all of them different, half of
them marked. A client that is refused comes back after the time that Retry-After names. Each client has a token of
its own. `--minutes` instead asks from few clients and records the memory of the service every 15 seconds.
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
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from diffmark.pixel.codec import PixelCodec
from diffmark.provenance import provenance
from diffmark.registry import Registry
from diffmark.server.tokens import grant_token
from diffmark.vista.paint import painted_scenes

RESULT = Path(__file__).parents[1] / "results" / "service_load.json"
PICTURES = 16
Answer = tuple[int, float]  # status (0: no answer), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--minutes", type=float, default=0, help="watch the memory for so long instead")
    parser.add_argument("--codec", default="pixel")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tree", type=Path, help="source tree (its src folder) whose service is measured")
    parser.add_argument("--label", default="this release")
    options = parser.parse_args()
    if options.clients > 400 or options.seconds > 120 or options.minutes > 15:
        parser.error("at most 400 clients, 120 seconds, 15 minutes")
    environment = {**os.environ}
    if options.tree:
        environment["PYTHONPATH"] = str(options.tree.resolve())
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/registry.db"
        with Registry.open(url, actor="root", cache=False) as registry:
            registry.issue("user-1")
            tokens = [grant_token(registry, f"client-{i}", "auditor")[1] for i in range(options.clients)]
        port = free_port()
        command = [sys.executable, "-m", "diffmark", "serve", "--registry", url, "--actor", "root"]
        command += ["--port", str(port), "--codec", options.codec]
        if options.workers > 1:
            command += ["--workers", str(options.workers)]
        with open(os.path.join(folder, "log"), "w") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            wait_until_ready(port, server)
            load = os.getloadavg()[0]
            images = pictures()
            if options.minutes:
                row = watch_memory(port, tokens, images, server.pid, options)
            else:
                before = processor_seconds(server.pid)
                answers, health = asyncio.run(bombard(port, tokens, images, options.seconds))
                row = summary(answers, health, options.seconds)
                row |= {"server_peak_mb": sum(memory(server.pid, "VmHWM"))}
                used = processor_seconds(server.pid) - before
                row |= {"server_cpu_seconds": round(used, 2)}
                row |= {"server_cpu_ms_an_answer": round(1000 * used / max(row["answered"], 1), 2)}
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    names = ("clients", "seconds", "minutes", "codec", "workers", "label")
    config = {name: getattr(options, name) for name in names}
    config |= {"cores": len(os.sched_getaffinity(0)), "load_before": load, "date": time.strftime("%Y-%m-%d")}
    record(config | row)


def record(row: dict[str, Any]) -> None:
    """Add a row; one of the same label, codec and kind is replaced."""
    document = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    same = ("label", "codec", "workers", "minutes")
    rows = [old for old in document.get("rows", []) if "label" in old]
    rows = [old for old in rows if any(old[name] != row[name] for name in same)]
    config = {"image": "256x256 PNG", "pictures": PICTURES, "marked": "every other one"}
    head = provenance("python benchmarks/service_load.py", config)
    RESULT.write_text(json.dumps({**head, "rows": [*rows, row]}, indent=1) + "\n")
    print(json.dumps(row, indent=1))


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
    turn = count()
    deadline = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=60) as http:

        async def once(method: str, path: str, into: list[Answer], **options: Any) -> httpx.Response | None:
            start = time.perf_counter()
            try:
                answer = await http.request(method, path, **options)
            except httpx.HTTPError as error:
                print(f"{path}: {error!r}", file=sys.stderr)
                into.append((0, time.perf_counter() - start))
                return None
            into.append((answer.status_code, time.perf_counter() - start))
            return answer

        async def client(token: str) -> None:
            headers = {"Authorization": f"Bearer {token}"}
            while time.monotonic() < deadline:
                files = {"images": ("a.png", images[next(turn) % len(images)])}
                answer = await once("POST", "/v1/detect", answers, headers=headers, files=files)
                if answer is not None and answer.status_code == 503:
                    await asyncio.sleep(float(answer.headers["retry-after"]) * random.uniform(1, 1.5))
                elif pause:
                    await asyncio.sleep(pause)

        async def watch() -> None:
            while time.monotonic() < deadline:
                await once("GET", "/health", health)
                await asyncio.sleep(0.5)

        await asyncio.gather(watch(), *(client(token) for token in tokens))
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
