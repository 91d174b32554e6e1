"""The HTTP service under load: clients on loopback that ask for detections as fast as they are answered.

    python benchmarks/service_load.py [--clients 200] [--seconds 30]

Starts `diffmark serve` in a process of its own on a new registry and writes results/service_load.json: how many
requests were answered, refused with 503, or failed, and how long those took. A client that is refused comes back
after the time that Retry-After names. Each client has a token of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from diffmark.evaluation.image_model import painted_scenes
from diffmark.provenance import provenance
from diffmark.registry import Registry
from diffmark.server.tokens import grant_token

RESULTS = Path(__file__).parents[1] / "results"
Answer = tuple[int, float]  # status (0: no answer), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/registry.db"
        with Registry.open(url, actor="root", cache=False) as registry:
            registry.issue("user-1")
            tokens = [grant_token(registry, f"client-{i}", "auditor")[1] for i in range(options.clients)]
        port = free_port()
        command = [
            sys.executable,
            "-m",
            "diffmark",
            "serve",
            "--registry",
            url,
            "--actor",
            "root",
            "--port",
            str(port),
        ]
        with open(os.path.join(folder, "log"), "w") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until_ready(port, server)
            load = os.getloadavg()[0]
            answers, health = asyncio.run(bombard(port, tokens, options.seconds))
            peak, inside = peak_memory(server.pid), seen_inside(port)
        finally:
            server.terminate()
            server.wait(60)
    row = summary(answers, health, options.seconds) | inside | {"server_peak_mb": peak}
    config = vars(options) | {
        "image": "128x128 PNG",
        "cores": len(os.sched_getaffinity(0)),
        "load_before": load,
    }
    document = {**provenance("python benchmarks/service_load.py", config), "rows": [row]}
    (RESULTS / "service_load.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(row, indent=1))


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
            time.sleep(0.2)
    raise RuntimeError("the service did not start")


async def bombard(port: int, tokens: list[str], seconds: float) -> tuple[list[Answer], list[Answer]]:
    """Answers to the clients, and to somebody who asks for the health of the service all the while."""
    buffer = io.BytesIO()
    next(painted_scenes(1)).save(buffer, "PNG")
    answers: list[Answer] = []
    health: list[Answer] = []
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
                files = {"images": ("a.png", buffer.getvalue())}
                answer = await once("POST", "/v1/detect", answers, headers=headers, files=files)
                if answer is not None and answer.status_code == 503:
                    await asyncio.sleep(float(answer.headers["retry-after"]) * random.uniform(1, 1.5))

        async def watch() -> None:
            while time.monotonic() < deadline:
                await once("GET", "/health", health)
                await asyncio.sleep(0.5)

        await asyncio.gather(watch(), *(client(token) for token in tokens))
    return answers, health


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
        "answered_per_second": counts[200] / seconds,
        **{f"answered_p{q}_s": quantile(served, q) for q in (50, 99)},
        **{f"refused_p{q}_s": quantile(refused, q) for q in (50, 99)},
        "health_asked": len(health),
        "health_failed": sum(status != 200 for status, _ in health),
        "health_p99_s": quantile([taken for _, taken in health], 99),
    }


def quantile(values: list[float], percent: int) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def seen_inside(port: int) -> dict[str, float]:
    """Mean seconds from a request's arrival in the application to its answer: without the clients' delays."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
    found = {}
    for route, name in (("/v1/detect", "answered"), ("none", "refused")):
        values = re.findall(rf'diffmark_seconds_(sum|count){{route="{route}"}} (\S+)', text)
        sums = {kind: float(value) for kind, value in values}
        if sums:
            found[f"{name}_mean_inside_s"] = sums["sum"] / sums["count"]
    return found


def peak_memory(pid: int) -> float:
    """Largest resident size so far, MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024, 1)


if __name__ == "__main__":
    main()
