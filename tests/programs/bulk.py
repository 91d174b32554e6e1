"""A bulk run that a test starts and kills: `bulk.py INPUT OUT CODEC VAE WORKERS`; prints after each batch."""

from __future__ import annotations

import sys
import time

from diffmark.bulk import results, run
from diffmark.bulk.sources import find
from diffmark.bulk.worker import Settings


def main() -> None:
    place, out, codec, vae, workers = sys.argv[1:]
    results.SECONDS = 0.0  # each batch becomes durable at once
    shards, _ = find(place)
    for counts in run.detect_all(shards, out, Settings(codec, vae, batch_size=4), workers=int(workers)):
        print(sum(counts.values()), flush=True)
        time.sleep(0.05)  # so that there is something to interrupt


if __name__ == "__main__":
    main()
