"""Ten thousand damaged image files through detection over HTTP: statuses, the slowest answer, and memory.

    python benchmarks/damaged_files.py [--files 10000]

Writes results/damaged_files.json. The files are those of tests/mutations.py: every format, bytes flipped, cut,
repeated, numbers made extreme. They go through the real application and the shipped codec.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fastapi.testclient import TestClient

from diffmark.detection.latent import Detector
from diffmark.progress import track
from diffmark.provenance import provenance
from diffmark.registry import Registry
from diffmark.server.app import create_app
from diffmark.server.limits import Limits
from diffmark.server.service import Service
from diffmark.server.tokens import grant_token

ROOT = Path(__file__).parents[1]
WARM = 300  # files before memory is first looked at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    from mutations import FORMATS, mutated

    with tempfile.TemporaryDirectory() as folder:
        registry = Registry.open(f"sqlite:///{folder}/registry.db", actor="root")
        headers = {"Authorization": f"Bearer {grant_token(registry, 'ann', 'auditor')[1]}"}
        service = Service(
            Detector.from_pretrained("vista-final"), registry, Limits(per_minute=1e9, burst=10**9)
        )
        statuses: Counter[int] = Counter()
        slowest, memory = 0.0, []
        with TestClient(create_app(service), raise_server_exceptions=False) as client:
            for number, data in enumerate(
                track(mutated(options.files, options.seed), "sending", options.files)
            ):
                start = time.process_time()
                answer = client.post("/v1/detect", headers=headers, files={"images": ("a", data)})
                slowest = max(slowest, time.process_time() - start)
                statuses[answer.status_code] += 1
                if number >= WARM and number % 500 == 0:
                    memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            ready = client.get("/ready").status_code
    row = {
        "files": options.files,
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "server_errors": sum(count for status, count in statuses.items() if status >= 500),
        "slowest_cpu_seconds": slowest,
        "peak_mb_after_warming_up": memory[0] if memory else None,
        "peak_mb_at_the_end": memory[-1] if memory else None,
        "ready_afterwards": ready == 200,
    }
    config = vars(options) | {"formats": list(FORMATS), "cores": len(os.sched_getaffinity(0))}
    document = {**provenance("python benchmarks/damaged_files.py", config), "rows": [row]}
    (ROOT / "results" / "damaged_files.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
