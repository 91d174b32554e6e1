"""A mark put on a picture that never had it: copied from one picture, with the public codec and without."""

from __future__ import annotations

import io
from functools import partial

import numpy as np
from PIL import Image

from diffmark.fingerprint import THRESHOLD, Words, fingerprint, fingerprints
from security import measuring, spectra
from security.measuring import Row, Tasks, share
from security.testbed import FRESH, STRENGTHS, Features, Testbed
from security.tones import turned


def tasks(testbed: Testbed) -> Tasks:
    yield "forgery: copied from one picture", partial(_copied, testbed)
    yield "forgery: copies told by the fingerprint of the picture", partial(_fingerprints, testbed)
    yield "forgery: read and written again, public key", partial(_rewritten, testbed, True)
    yield (
        "forgery: read and written again, private key, attacked with another",
        partial(_rewritten, testbed, False),
    )


def _copied(testbed: Testbed) -> Row:
    """All that one marked picture has in the coefficients of the mark, on another picture."""
    count = max(testbed.counts.values())
    secrets = testbed.pool_secrets(FRESH, count)
    rows = [spectra.features(image) for image in testbed.pool_images(FRESH, count)]

    def mark(number: int, part: str) -> Features:
        return rows[number]

    return testbed.forgery(mark, lambda number: secrets[number]) | {"seen": 1}


def _fingerprints(testbed: Testbed) -> Row:
    """A registry that has the fingerprint of the picture that a secret was written into: does it contradict a copy?

    And does it contradict the honest picture, as it is or changed?
    """
    victims, covers = testbed.victims("test"), testbed.covers("test")[::-1]
    known = [fingerprint(victim.marked) for victim in victims]
    forged = [
        spectra.shifted(cover, spectra.features(victim.marked), STRENGTHS[2])
        for cover, victim in zip(covers, victims, strict=True)
    ]
    row: Row = {"images": len(victims), "bits_that_may_differ": THRESHOLD}
    row["copies_contradicted"] = share(_differs(*pair) for pair in zip(known, forged, strict=True))
    for name, change in CHANGES.items():
        arrived = [change(victim.marked) for victim in victims]
        row[f"contradicted_{name}"] = share(_differs(*pair) for pair in zip(known, arrived, strict=True))
    return row


def _differs(known: Words, image: Image.Image) -> bool:
    distances = np.bitwise_count(fingerprints(image) ^ known).sum(axis=1)
    return bool(distances.min() > THRESHOLD)


def _jpeg(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=25)
    return Image.open(buffer).convert("RGB")


def _cropped(image: Image.Image) -> Image.Image:
    width, height = image.size
    return image.crop((width // 20, height // 20, width - width // 20, height - height // 20))


CHANGES = {
    "as_it_is": lambda image: image,
    "jpeg_25": _jpeg,
    "half_size": lambda image: image.resize((image.width // 2, image.height // 2)),
    "cropped_to_0.8": _cropped,
    "rotated_7": turned,
}


def _rewritten(testbed: Testbed, public: bool) -> Row:
    """The word that a picture carries, read and written into another with a codec that the attacker has."""
    target, own = (testbed.public, testbed.public) if public else (testbed.private, testbed.stranger)
    victims, covers = testbed.victims("test", public), testbed.covers("test")[::-1]
    words = [(own.read(victim.marked).margins > 0).astype(np.uint8) for victim in victims]
    images = [own.embed(cover, word).image for cover, word in zip(covers, words, strict=True)]
    row = testbed.read(target, images, np.stack([victim.secret for victim in victims]))
    return row | measuring.quality(covers, images)
