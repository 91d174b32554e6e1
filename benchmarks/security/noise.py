"""A codec of initial noise under attack. The pattern needs the operator's key, the network that reads is public.

Who has the network estimates the noise of any picture, and a gradient through it changes what is estimated: away
from what it was (removal, no key is needed), or to the estimate of another picture (forgery). Who has the model as
well paints new pictures from a noise that was read. Who has the autoencoder alone: `latents`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from diffmark.latent.bridge import ddim_inversion, denoiser_of, sampler_trajectory
from diffmark.latent.noise import KeyedPatterns, NoiseReader, blind_p_value
from diffmark.latent.vae import encode
from diffmark.statistics import auc, to_margins
from security import latents, measuring, oracle
from security.collusion import COLLUDERS, mixture
from security.generation import account_secrets
from security.generation_testbed import FIRST, FRESH, NONE, ONE, SEED, Forge, GenerationTestbed, Rows, prompt
from security.measuring import Row, Tasks, share
from security.privacy import pairs

EPSILONS, FORGED = (4.0, 8.0), (2.0, 4.0, 8.0)  # levels of 255, of removals and forgeries
SHARE = 0.9  # of new noise that is what was read; the rest is fresh
SURROGATE = {"widths": (16, 32, 48), "steps": 600, "batch": 16, "rate": 2e-3}

Reader = Callable[[Tensor], Tensor]  # latents -> noise


def tasks(testbed: GenerationTestbed) -> Tasks:
    attacker = Attacker(testbed)
    yield "none", lambda: testbed.removal(lambda image, _: image)
    for name, attack, epsilons in (
        ("gradient on the margins, operator's key", attacker.on_margins, EPSILONS[-1:]),
        ("complement: gradient on the noise that is read, without the key", attacker.complemented, EPSILONS),
        ("overwritten: gradient towards another key's pattern", attacker.overwritten, EPSILONS[-1:]),
        ("gradient on a surrogate reader, without the network", attacker.by_surrogate, EPSILONS[-1:]),
    ):
        for epsilon in epsilons:
            yield f"{name}, {epsilon:g} levels", partial(testbed.removal, attack, (epsilon,))
    for epsilon in FORGED:
        name = f"forgery: gradient towards the noise of one picture, {epsilon:g} levels"
        yield name, partial(_towards, attacker, 1, epsilon)
    yield (
        "forgery: new picture from the noise of one picture, with the network",
        partial(_new, attacker, False),
    )
    yield "forgery: new picture from the noise of one picture, by inversion", partial(_new, attacker, True)
    yield "privacy: another key", partial(_other_key, attacker)
    yield "privacy: two pictures of one secret, with the network", partial(_linked, attacker)
    for count in sorted({*latents.OF_ONE, *latents.OF_FRESH}):
        if count > testbed.counts["seen"]:
            continue
        if count > 1 and count in latents.OF_ONE:
            yield (
                f"forgery: gradient towards the mean noise of {count}, {ONE}",
                partial(_towards, attacker, count),
            )
        if count in latents.OF_FRESH[1:]:
            yield f"forgery: patterns fitted to {count}, {FRESH}", partial(_fitted, attacker, count)
    for count in COLLUDERS:
        for fresh in (False, True):
            kind = "fresh secrets" if fresh else "one secret an account"
            yield f"collusion of {count}, {kind}", partial(_collusion, attacker, count, fresh)
    images, secrets = testbed.made("test", FRESH), testbed.of("test", FRESH)
    read_well = [n for n, image in enumerate(images) if testbed.detector.detect(image).marked]
    asked = oracle.spread(read_well)  # others have nothing to remove
    yield from oracle.questioned(
        testbed.folder,
        [images[n] for n in asked],
        lambda image: testbed.detector.detect(image).marked,
        lambda after, numbers: testbed.read(after, secrets[[asked[n] for n in numbers]]),
    )
    yield from latents.tasks(testbed)


class Attacker:
    """Has the network, and the model where a row says so."""

    def __init__(self, testbed: GenerationTestbed) -> None:
        self.testbed, self.vae, self.codec = testbed, testbed.detector.vae, testbed.codec

    # --- gradients ------------------------------------------------------------------------------------------

    def network(self, z0: Tensor) -> Tensor:
        """The network's estimate of the noise."""
        found: Tensor = self.codec.decoder(z0)
        return found

    def towards(self, image: Image.Image, wanted: Tensor, epsilon: float, reader: Reader) -> Image.Image:
        """The image within `epsilon` levels whose estimated noise points to another."""

        def gain(pixels: Tensor) -> Tensor:
            found = reader(encode(self.vae, pixels))
            return F.cosine_similarity(found.flatten(1), wanted.flatten(1)).sum()

        return self.testbed.steered(image, gain, epsilon)

    @torch.no_grad()
    def noise_of(self, image: Image.Image, reader: Reader | None = None) -> Tensor:
        return (reader or self.network)(self.testbed.latents(image))

    def on_margins(self, image: Image.Image, epsilon: float) -> Image.Image:
        """By somebody who has the operator's key."""

        def margins(pixels: Tensor) -> Tensor:
            logits = self.codec.logits_of(encode(self.vae, pixels))
            return logits[..., 1] - logits[..., 0]

        signs = margins(self.testbed.pixels(image)).sign()
        return self.testbed.steered(image, lambda x: -(margins(x) * signs).clamp_min(-1).sum(), epsilon)

    def complemented(self, image: Image.Image, epsilon: float) -> Image.Image:
        return self.towards(image, -self.noise_of(image), epsilon, self.network)

    def overwritten(self, image: Image.Image, epsilon: float) -> Image.Image:
        keyed, secret = self.codec.keyed_by(self.testbed.strangers_key), self.testbed.secrets(9, 1)
        return self.towards(image, torch.from_numpy(keyed.write(secret)), epsilon, self.network)

    def by_surrogate(self, image: Image.Image, epsilon: float) -> Image.Image:
        return self.towards(image, -self.noise_of(image, self.surrogate), epsilon, self.surrogate)

    @cached_property
    def surrogate(self) -> nn.Module:
        """A reader of his own: trained on pictures that he painted with the model from noise that he drew."""
        testbed, (channels, height, width) = self.testbed, self.codec.keyed.shape
        z0 = torch.from_numpy(testbed.rows(NONE, testbed.unmarked)).view(-1, channels, height, width)
        noise = torch.cat(
            [
                torch.randn(1, *z0.shape[1:], generator=torch.Generator().manual_seed(FIRST["seen"] + i))
                for i in range(len(z0))
            ]
        )
        torch.manual_seed(SEED)
        reader = NoiseReader(channels, (height, width), SURROGATE["widths"], 0)
        optimiser = torch.optim.AdamW(reader.parameters(), SURROGATE["rate"])
        rng = np.random.default_rng([SEED, 11])
        for _ in tqdm(range(SURROGATE["steps"]), "surrogate", disable=None):
            chosen = torch.from_numpy(rng.integers(len(z0), size=SURROGATE["batch"]))
            pair = z0[chosen], noise[chosen]
            if rng.integers(2):  # a mirrored picture has mirrored noise
                pair = pair[0].flip(-1), pair[1].flip(-1)
            loss = F.mse_loss(reader(pair[0]), pair[1])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return reader.eval().requires_grad_(False)

    # --- what was seen --------------------------------------------------------------------------------------

    @torch.no_grad()
    def estimates(self, kind: str, count: int) -> Rows:
        """Estimated noise of pictures that were seen, at unit length, (N, D)."""
        rows = torch.from_numpy(self.testbed.rows(kind, count)).view(count, *self.codec.keyed.shape)
        found = torch.cat([self.network(part) for part in rows.split(32)]).flatten(1)
        return F.normalize(found).numpy()

    # --- the model ------------------------------------------------------------------------------------------

    @torch.no_grad()
    def inverted(self, image: Image.Image) -> Tensor:
        """The noise by DDIM inversion through the model, with the empty prompt."""
        pipe = self.testbed.pipe
        empty = pipe.encode_prompt("", "cpu", 1, False)[0]
        denoise = denoiser_of(pipe.unet, pipe.scheduler, empty)
        trajectory = sampler_trajectory(pipe.scheduler, self.testbed.steps)
        return ddim_inversion(denoise, self.testbed.latents(image), trajectory)

    def painted(self, noise: Tensor, said: str, seed: int) -> Image.Image:
        """A picture of a prompt from a noise that was read, brought to unit deviation, and some fresh noise."""
        fresh = torch.randn(noise.shape, generator=torch.Generator().manual_seed(seed))
        start = SHARE * noise / noise.std() + (1 - SHARE**2) ** 0.5 * fresh
        return self.testbed.painted([said], latents=start)[0]


def _forge(attacker: Attacker, wanted: Callable[[int, str], Tensor]) -> Forge:
    """Covers are changed until the network estimates the noise that is wanted."""
    return lambda cover, number, part, epsilon: attacker.towards(
        cover, wanted(number, part), epsilon, attacker.network
    )


def _towards(attacker: Attacker, count: int, epsilon: float = FORGED[1]) -> Row:
    """Of one victim each, or of many seen pictures of one secret."""
    testbed = attacker.testbed
    if count == 1:
        forge = _forge(attacker, lambda number, part: attacker.noise_of(testbed.made(part, FRESH)[number]))
        return testbed.forgery(forge, lambda part: testbed.of(part, FRESH), (epsilon,)) | {"seen": 1}
    mean = torch.from_numpy(attacker.estimates(ONE, count).mean(axis=0))[None]
    row = testbed.forgery(_forge(attacker, lambda *_: mean), lambda part: testbed.of(part, ONE), (epsilon,))
    return row | {"seen": count}


def _new(attacker: Attacker, inverted: bool) -> Row:
    """Pictures of other prompts, painted from the noise of marked ones."""
    testbed = attacker.testbed
    victims, forged = testbed.made("test", FRESH), []
    for number, image in enumerate(victims):
        noise = attacker.inverted(image) if inverted else attacker.noise_of(image)
        other = FIRST["test"] + len(victims) - 1 - number
        forged.append(attacker.painted(noise, prompt(other), other))
    return testbed.read(forged, testbed.of("test", FRESH)) | {"seen": 1}


def _fitted(attacker: Attacker, count: int) -> Row:
    """Patterns and the places of bits, told from pictures whose secrets are known: the key, as good as it gets."""
    testbed = attacker.testbed
    signs = 2.0 * testbed.of("seen", FRESH)[:count].astype(np.float32) - 1
    found = attacker.estimates(FRESH, count).T @ signs / count  # (D, L)
    bit = np.abs(found).argmax(axis=1)
    values = found[np.arange(len(found)), bit]
    true: KeyedPatterns = attacker.codec.keyed
    members = np.zeros_like(found)
    members[np.arange(len(found)), bit] = 1
    read = [
        (attacker.noise_of(image).flatten().numpy() * values) @ members > 0
        for image in testbed.made("test", FRESH)
    ]
    wanted = testbed.secrets(9, max(testbed.counts["test"], testbed.counts["tune"]))
    targets = [
        torch.from_numpy(values * (2.0 * secret[bit] - 1).astype(np.float32))[None] for secret in wanted
    ]
    row = testbed.forgery(
        _forge(attacker, lambda number, part: targets[number]),
        lambda part: wanted[: testbed.counts[part]],
        FORGED[1:2],
    )
    row |= {"seen": count, "places_of_bits_found": round(float(np.mean(bit == true.bit)), 4)}
    return row | {"bits_read_without_key": round(float(np.mean(read == testbed.of("test", FRESH))), 4)}


def _collusion(attacker: Attacker, count: int, fresh: bool) -> Row:
    """The mean of the noise that is read from the copies, painted anew with the prompt: they have the model."""
    testbed = attacker.testbed
    held = account_secrets(testbed, count, fresh)
    copies = [testbed.pictures("test", secrets, len(secrets)) for secrets in held]
    images = []
    for number, some in enumerate(zip(*copies, strict=True)):
        noise = torch.stack([F.normalize(attacker.noise_of(one).flatten(1)) for one in some]).mean(dim=0)
        seed = FIRST["test"] + number
        images.append(attacker.painted(noise.view(1, *attacker.codec.keyed.shape), prompt(seed), seed))
    return mixture(images, held, lambda image: testbed.detector.detect(image).margins, fresh)


def _other_key(attacker: Attacker) -> Row:
    """What somebody with the network and another key reads against the secrets, and whether he sees a mark."""
    testbed = attacker.testbed
    images, secrets = testbed.made("test", FRESH), testbed.of("test", FRESH)
    keyed = testbed.codec.keyed_by(testbed.strangers_key)
    read = [to_margins(keyed.read(attacker.noise_of(image).numpy()))[0] for image in images]
    energy = [
        np.array([float(attacker.noise_of(image).square().mean()) for image in testbed.made("test", kind)])
        for kind in (FRESH, NONE)
    ]
    return {
        "images": len(images),
        "bits_read_right": share((np.stack([one > 0 for one in read]) == secrets).ravel()),
        "called_marked_under_another_key": share(blind_p_value(one) <= measuring.FPR for one in read),
        "auc_marked_against_unmarked_by_energy": round(auc(*energy), 4),
    }


def _linked(attacker: Attacker) -> Row:
    """Two pictures of one secret told from two of different ones, by the noise that is read."""
    count = min(latents.LINKED, attacker.testbed.counts["seen"], max(latents.OF_ONE))
    same, fresh = (pairs(attacker.estimates(kind, count)) for kind in (ONE, FRESH))
    return {"pairs": len(same), "auc": round(auc(same, fresh), 4)}
