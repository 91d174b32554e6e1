"""A codec with a learned delta under attack by somebody who has its networks; the key hides the bits alone."""

from __future__ import annotations

from functools import cached_property, partial

import numpy as np
from PIL import Image
from torch import Tensor

from diffmark.detection.latent import Detector
from diffmark.latent.codec import Codec
from diffmark.latent.vae import encode
from diffmark.mark.image import embed
from diffmark.pixel.keys import PUBLIC_KEY
from diffmark.statistics import auc, to_margins
from security import latents, measuring
from security.collusion import COLLUDERS, averaged, mixture
from security.generation_testbed import EPSILONS, FRESH, NONE, ONE, GenerationTestbed
from security.measuring import Row, Tasks, share
from security.privacy import pairs

OVERDONE = (0.5, 1.0, 1.5, 2.0)  # of the mark's own dose


def tasks(testbed: GenerationTestbed) -> Tasks:
    attacker = Attacker(testbed)
    yield "none", lambda: testbed.removal(lambda image, _: image)
    yield "complement written with the codec", lambda: testbed.removal(attacker.complement, OVERDONE)
    yield "overwritten with the codec", lambda: testbed.removal(attacker.overwritten)
    yield "gradient on the margins with the codec", lambda: testbed.removal(attacker.descended, EPSILONS)
    yield "forgery: read and written again with the codec, without the key", attacker.rewritten
    yield "privacy: the word, without the operator's key", attacker.other_key
    yield "privacy: two pictures of one secret, with the codec", attacker.linked
    for count in COLLUDERS:
        for fresh in (False, True):
            kind = "fresh secrets" if fresh else "one secret an account"
            yield f"collusion of {count}, {kind}", partial(_collusion, testbed, count, fresh)
    yield from latents.tasks(testbed)


class Attacker:
    """Has the same networks, under the public key."""

    def __init__(self, testbed: GenerationTestbed) -> None:
        self.testbed, self.vae = testbed, testbed.detector.vae

    @cached_property
    def codec(self) -> Codec:
        own = Codec.from_pretrained(self.testbed.source).requires_grad_(False)
        return own.use_key(PUBLIC_KEY)

    @cached_property
    def reader(self) -> Detector:
        return Detector(self.codec, self.vae, fpr=measuring.FPR)

    @property
    def dose(self) -> float:
        return float(self.codec.injection.dose)

    def complement(self, image: Image.Image, strength: float) -> Image.Image:
        """The carried word is read, and its complement written, as strongly as the mark or more."""
        word = 1 - self.reader.detect(image).bits
        return embed(image, self.codec, self.vae, word, strength * self.dose)

    def overwritten(self, image: Image.Image, _: float) -> Image.Image:
        """Another secret, added to the finished picture."""
        return embed(image, self.codec, self.vae, self.testbed.secrets(9, 1)[0], self.dose)

    def descended(self, image: Image.Image, epsilon: float) -> Image.Image:
        """Projected gradient descent on the network's margins, through the autoencoder."""

        def margins(pixels: Tensor) -> Tensor:
            logits = self.codec.logits_of(encode(self.vae, pixels))
            return logits[..., 1] - logits[..., 0]

        signs = margins(self.testbed.pixels(image)).sign()
        return self.testbed.steered(image, lambda x: -(margins(x) * signs).clamp_min(-1).sum(), epsilon)

    def rewritten(self) -> Row:
        """The word that a picture carries is read, and written into another."""
        covers = self.testbed.made("test", NONE)[::-1]
        words = [self.reader.detect(image).bits for image in self.testbed.made("test", FRESH)]
        forged = [
            embed(cover, self.codec, self.vae, word, self.dose)
            for cover, word in zip(covers, words, strict=True)
        ]
        return self.testbed.read(forged, self.testbed.of("test", FRESH)) | measuring.quality(covers, forged)

    def other_key(self) -> Row:
        """What somebody with the codec and another key, or none, reads against the secrets."""
        images, secrets = self.testbed.made("test", FRESH), self.testbed.of("test", FRESH)
        read = [self.reader.detect(image) for image in images]
        row: Row = {
            "images": len(images),
            "bits_read_right_without_a_key": share((np.stack([one.bits for one in read]) == secrets).ravel()),
        }
        if self.codec.calibration is not None:  # without it nobody can say so
            row["seen_to_be_marked_at_all"] = share(one.marked for one in read)
        keyed = self.codec.keyed_by(self.testbed.strangers_key)
        bits = np.stack([to_margins(keyed.read(one.logits)) > 0 for one in read])
        return row | {"bits_read_right_with_another_key": share((bits == secrets).ravel())}

    def linked(self) -> Row:
        """Two pictures of one secret told from two of different ones, by the word that they carry."""
        count = min(latents.LINKED, self.testbed.counts["seen"], max(latents.OF_ONE))
        same, fresh = (
            pairs(np.stack([self.reader.detect(x).margins for x in self.testbed.made("seen", kind, count)]))
            for kind in (ONE, FRESH)
        )
        return {"pairs": len(same), "auc": round(auc(same, fresh), 4)}


def _collusion(testbed: GenerationTestbed, count: int, fresh: bool) -> Row:
    """Copies of one picture that accounts got: the same prompt and seed, a secret each."""
    held = account_secrets(testbed, count, fresh)
    copies = [testbed.pictures("test", secrets, len(secrets)) for secrets in held]
    images = [averaged(some) for some in zip(*copies, strict=True)]
    return mixture(images, held, lambda image: testbed.detector.detect(image).margins, fresh)


def account_secrets(testbed: GenerationTestbed, count: int, fresh: bool) -> list[np.ndarray]:
    """The secrets of accounts in the test pictures: always its own, or a fresh one a picture."""
    held = [testbed.secrets(20 + account, testbed.counts["test"]) for account in range(count)]
    return held if fresh else [np.repeat(secrets[:1], len(secrets), axis=0) for secrets in held]
