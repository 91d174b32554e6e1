"""What several sets of patterns cost: a picture has one of a ring of keys, and the reader tries all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from PIL import Image

from diffmark.detection.pixel import PixelDetector
from security import measuring
from security.measuring import Row, Tasks
from security.testbed import SETS, Testbed

TIMED = 6  # pictures


def tasks(testbed: Testbed) -> Tasks:
    yield f"none, {SETS} sets of patterns", partial(_read, testbed)


def _read(testbed: Testbed) -> Row:
    """Marked pictures, and unmarked ones against the same secrets, under all keys of the ring."""
    victims = testbed.victims("test")
    marked, covers = [victim.marked for victim in victims], [victim.cover for victim in victims]
    secrets = np.stack([victim.secret for victim in victims])
    row = measuring.figures(
        [testbed.ring.detect(*pair) for pair in zip(marked, secrets, strict=True)], secrets
    )
    wrong = [testbed.ring.detect(*pair).marked for pair in zip(covers, secrets, strict=True)]
    row |= {"tries": testbed.ring.tries, "unmarked_found": measuring.share(wrong)}
    one = testbed.detectors[testbed.private.key.id]
    for name, detector in (("one_key", one), ("all_keys", testbed.ring)):
        row[f"cpu_seconds_{name}"] = {
            "marked": _cost(detector, marked[:TIMED]),
            "unmarked": _cost(detector, covers[:TIMED]),
        }
    return row


def _cost(detector: PixelDetector, images: Sequence[Image.Image]) -> float:
    began = time.process_time()
    for image in images:
        detector.detect(image)
    return round((time.process_time() - began) / len(images), 4)
