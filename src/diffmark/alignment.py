"""Alignment: finding a mark in a picture that was turned or cropped, without knowing what it says.

A mark is tied to places: half a latent beside its own it is not read. But the latents of a turned or shrunk picture
are nearly the picture's latents, looked up at turned or shrunk places. So the picture is encoded four times, half a
latent apart, and thousands of views of it are looked up in what comes out. Each is correlated with the codec's
filters at all whole offsets at once, and its evidence is how far the bits together stand out of the noise,
whatever their signs are. The view is thus chosen by the picture alone, and the bits read in it are as independent
of a secret that was not written into it as those of the picture as it came. `View.undo` makes what is then read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace

import torch
import torch.nn.functional as F
from PIL import Image, ImageStat
from torch import Tensor, nn

from diffmark.codec import Codec, whiten
from diffmark.images import Picture
from diffmark.vae import encode

TURN, SHARE = 10.0, 0.75  # the largest turn in degrees and the smallest share of a side that are searched
SLACK = 1.5  # latents that a view may lie outside the marked picture
CLEAR, SURE = 24.0, 43.0  # nats of evidence at which a mark is taken for found, and at which the search ends
LEVEL = 0.1  # the least that fitted scores are taken to differ by, of their mean
KEPT = 16  # candidates that are refined
ROUNDS = 5  # of refinement, each with half the steps and half the candidates
BATCH = 8  # views that are looked up at a time


@dataclass(frozen=True)
class View:
    """Where a picture lies in the marked one that it was made of."""

    turn: float = 0.0  # degrees that it was turned by, counter-clockwise
    width: float = 1.0  # of what it shows, as a share of the marked picture's
    height: float = 1.0
    x: float = 0.0  # its centre in the marked picture, whose sides go from -1 to 1
    y: float = 0.0

    def undo(self, picture: Picture) -> Picture:
        """The marked picture as far as it is there, its own mean colour around it; the size stays."""
        width, height = picture.image.size
        (a, b, c), (d, e, f) = places(torch.tensor([astuple(self)]), picture.aspect)[0].tolist()
        coefficients = (
            *(a, b * width / height, (c - a - b + 1) * width / 2),
            *(d * height / width, e, (f - d - e + 1) * height / 2),
        )
        image = picture.image.transform(
            picture.image.size,
            Image.Transform.AFFINE,
            coefficients,
            Image.Resampling.BICUBIC,
            fillcolor=tuple(round(mean) for mean in ImageStat.Stat(picture.image).mean),
        )
        return replace(picture, image=image, notes=(*picture.notes, str(self)))

    def __str__(self) -> str:
        turn = round(self.turn, 1) + 0.0  # no -0.0
        return (
            f"read as turned by {turn:.1f} degrees and showing {self.width:.0%} x {self.height:.0%} "
            f"around ({(self.x + 1) / 2:.0%}, {(self.y + 1) / 2:.0%}) of the marked picture"
        )


def places(views: Tensor, aspect: float) -> Tensor:
    """Of views (V, 5): the affine maps (V, 2, 3) from places in the marked picture to places in this one.

    Places go from -1 to 1 along each side; `aspect` is the picture's width over its height.
    """
    turn, width, height, x, y = views.unbind(-1)
    cos, sin = torch.cos(turn * math.pi / 180), torch.sin(turn * math.pi / 180)
    linear = torch.stack([cos / width, sin / (height * aspect), -sin * aspect / width, cos / height], dim=-1)
    linear = linear.view(-1, 2, 2)
    return torch.cat([linear, -linear @ torch.stack([x, y], dim=-1)[..., None]], dim=-1)


class Aligner:
    """Finds the view of a picture in which a codec's filters hear a mark."""

    def __init__(self, codec: Codec, vae: nn.Module) -> None:
        if not codec.config.matched_filter:
            raise ValueError("alignment needs a codec with matched filters, and this one has none")
        self.codec, self.vae = codec, vae

    @torch.no_grad()
    def find(self, picture: Picture) -> tuple[View, float]:
        """The view of most evidence of a picture of the codec's native size, and its evidence.

        If a mark is clear in the picture as it is, nothing is searched.
        """
        pixels = torch.from_numpy(picture.pixels())[None]
        height, width = pixels.shape[-2:]
        half = self.codec.config.pixels_per_latent // 2
        padded = F.pad(pixels, (0, half, 0, half), mode="reflect")
        phases = (
            self._white(padded[..., down : down + height, right : right + width])
            for down in (0, half)
            for right in (0, half)
        )
        first = next(phases)
        search = Search(self.codec, first, picture.aspect)
        best = View(), search.plain
        if search.plain < CLEAR:
            search.latents = F.pixel_shuffle(torch.stack([first, *phases], dim=2).flatten(1, 2), 2)
            for views, found in candidates(search):
                best = max(best, search.refined(views, found), key=lambda pair: pair[1])
                if best[1] >= SURE:
                    break
        return best

    def _white(self, pixels: Tensor) -> Tensor:
        device = next(self.vae.parameters()).device
        return whiten(encode(self.vae, pixels.to(device)).float()).cpu()


class Search:
    """One picture's latents, looked up in views and listened to with a codec's filters."""

    def __init__(self, codec: Codec, latents: Tensor, aspect: float) -> None:
        """From whitened latents (1, C, h, w); views need `latents` set to (1, C, 2h, 2w), half a latent apart."""
        height, width = self.size = (codec.config.height, codec.config.width)
        self.latents, self.aspect = latents, aspect
        self.latent = torch.tensor([2 / width, 2 / height])  # its sides, in places
        self._weights = torch.full((width // 2 + 1,), 2.0)  # of frequencies: half of them are left out,
        self._weights[:: width // 2] = 1  # but for those that are their own mirror images
        self.right, self.down = (torch.arange(-reach, reach + 1) for reach in map(_reach, (width, height)))
        rows = torch.outer(self.down, torch.arange(height)) * (2j * math.pi / height)
        columns = torch.outer(torch.arange(width // 2 + 1), self.right) * (2j * math.pi / width)
        self._rows, self._columns = rows.exp(), columns.exp() * self._weights[:, None]
        self._fitted = codec.config.fitted
        self._listen_with(codec.decoder.filters.weight.detach().float().cpu())
        self._decorrelate()
        self.plain = self.heard_in(latents).item()

    def _listen_with(self, filters: Tensor) -> None:
        """Take filters (L, C h w)."""
        shape = (len(filters), self.latents.shape[1], *self.size)
        self.filters, self.energy = filters, filters.square().sum(dim=0)
        self._filters = torch.fft.rfft2(filters.view(shape)) / math.prod(self.size)
        self._energy = torch.fft.rfft2(self.energy.view(shape[1:])) / math.prod(self.size)

    def _decorrelate(self) -> None:
        """Mix the filters so that what they say to this picture where no mark is does not hang together.

        Structure in a picture moves many of the codec's own filters at once, which would look like a mark.
        """
        scores = torch.fft.irfft2(self.spectra(self.latents), s=self.size)[0]
        near = torch.zeros(self.size, dtype=torch.bool)
        near[:2, :2] = near[-1:, :2] = near[:2, -1:] = near[-1:, -1:] = True  # where the mark may be
        values, vectors = torch.linalg.eigh(torch.cov(scores[:, ~near]))
        deviations = values.clamp_min(1e-3 * values.mean()).sqrt()
        self._unmixed = vectors * deviations  # (L, L): from mixed scores to those of the bits
        self._listen_with((vectors / deviations).T @ self.filters)

    def evidence(self, scores: Tensor, noise: Tensor, power: Tensor) -> Tensor:
        """By how many nats scores (V, L, ...) are likelier with a mark than as noise (V, L) times power (V, ...).

        Without one they are normal. With one they are louder; and where delta was fitted to its picture, those
        of the bits are as loud as each other, which is heard far below the noise.
        """
        length = noise.shape[1]
        total = torch.einsum("vl...,vl->v...", scores.square(), 1 / noise.clamp_min(1e-30))
        total = total / power.clamp_min(1e-30)
        if not self._fitted:
            louder = (total / length).clamp_min(1)
            return (length / 2) * (louder - 1 - louder.log())
        loud = torch.einsum("kl,vl...->vk...", self._unmixed, scores).abs()
        spread = torch.maximum(loud.std(dim=1), LEVEL * loud.mean(dim=1)).clamp_min(1e-30)
        width = noise.clamp_min(1e-30).log().sum(dim=1) / 2 + torch.linalg.slogdet(self._unmixed)[1]
        width = width.view(-1, *(1 for _ in power.shape[1:])) + power.clamp_min(1e-30).log() * (length / 2)
        return total / 2 + width - length * (spread.log() + 0.5 + math.log(2))

    def spectra(self, latents: Tensor) -> Tensor:
        """Of the correlations of latents (V, C, h, w) with each filter, (V, L, h, w / 2 + 1)."""
        moved = torch.fft.rfft2(latents).conj()
        total = moved[:, None, 0] * self._filters[:, 0]
        for channel in range(1, latents.shape[1]):
            total.addcmul_(moved[:, None, channel], self._filters[:, channel])
        return total

    def at_offsets(self, spectra: Tensor) -> Tensor:
        """What (..., h, w / 2 + 1) is the spectrum of, at the whole offsets within reach, (..., down, right)."""
        return (self._rows @ (spectra @ self._columns)).real

    def power(self, latents: Tensor) -> Tensor:
        """What latents (V, C, h, w) of this energy at each place would give the filters by chance, (V,)."""
        return latents.square().flatten(1) @ self.energy

    def power_at_offsets(self, latents: Tensor) -> Tensor:
        """The same of latents moved by whole offsets, (V, down, right)."""
        return self.at_offsets((torch.fft.rfft2(latents.square()).conj() * self._energy).sum(dim=1))

    def noise(self, latents: Tensor, spectra: Tensor) -> Tensor:
        """The mean square of scores over all offsets, (V, L), as a share of the power there."""
        squares = (torch.view_as_real(spectra).square().sum(dim=-1) * self._weights).sum(dim=(2, 3))
        energy = self.energy.view(latents.shape[1], -1).mean(dim=1)
        return squares / (latents.square().sum(dim=(2, 3)) @ energy).clamp_min(1e-12)[:, None]

    def heard_in(self, latents: Tensor) -> Tensor:
        """The evidence in latents (V, C, h, w) where they are, (V,)."""
        noise = self.noise(latents, self.spectra(latents))
        return self.evidence(latents.flatten(1) @ self.filters.T, noise, self.power(latents))

    def look_up(self, views: Tensor) -> Tensor:
        """The marked picture's latents (V, C, h, w), nought where the picture does not show it."""
        count, channels = len(views), self.latents.shape[1]
        grid = F.affine_grid(places(views, self.aspect), [count, channels, *self.size], align_corners=False)
        shown = (grid.abs() <= 1).all(dim=-1)  # (V, h, w)
        # Of latents half a latent apart the first lies at the centre of a whole one, not of a half.
        grid = (grid - self.latent / 4).flatten(0, 1)[None]
        found = F.grid_sample(self.latents, grid, padding_mode="border", align_corners=False)
        return found.view(channels, count, *self.size).transpose(0, 1) * shown[:, None]

    def heard(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """Views (V, 5) and their evidence (V,)."""
        return views, torch.cat([self.heard_in(self.look_up(batch)) for batch in views.split(BATCH)])

    def placed(self, shapes: Tensor, fractions: int) -> tuple[Tensor, Tensor]:
        """Views (V, 5) of these turns, widths and heights (V, 3) at their offsets of most evidence, and that (V,).

        Offsets are tried at so many fractions of a latent each way.
        """
        inside = (torch.arange(fractions) - (fractions - 1) / 2) / fractions
        inside = torch.cartesian_prod(inside, inside) * self.latent
        views = torch.cat([shapes.repeat_interleave(len(inside), 0), inside.repeat(len(shapes), 1)], dim=1)
        moved, found = zip(*map(self._placed, views.split(BATCH)), strict=True)
        return torch.cat(moved), torch.cat(found)

    def _placed(self, views: Tensor) -> tuple[Tensor, Tensor]:
        latents = self.look_up(views)
        spectra = self.spectra(latents)
        noise, power = self.noise(latents, spectra), self.power_at_offsets(latents)
        found = self.evidence(self.at_offsets(spectra), noise, power)  # (V, down, right)
        x = views[:, 3, None] + self.right * self.latent[0]
        y = views[:, 4, None] + self.down * self.latent[1]
        room = 1 - views[:, 1:3] + SLACK * self.latent  # a crop lies inside the marked picture
        outside = (y.abs() > room[:, 1, None])[:, :, None] | (x.abs() > room[:, 0, None])[:, None]
        most, where = found.masked_fill(outside, -math.inf).flatten(1).max(dim=1)
        right, down = where[:, None] % len(self.right), where[:, None] // len(self.right)
        return torch.cat([views[:, :3], x.gather(1, right), y.gather(1, down)], dim=1), most

    def refined(self, views: Tensor, found: Tensor) -> tuple[View, float]:
        """The best of views (V, 5) of this evidence (V,) after small steps to more of it, and what it has then."""
        views = views[found.topk(min(KEPT, len(views))).indices]
        latents = self.look_up(views)
        noise = self.noise(latents, self.spectra(latents))  # hardly changes with small steps
        steps = torch.cat([torch.tensor([0.4, 0.008, 0.008]), self.latent / 4])
        for _ in range(ROUNDS):
            moves = torch.cat([torch.zeros(1, 5), torch.diag(steps), -torch.diag(steps)])
            for _ in range(2):
                around = views[:, None] + moves  # (V, 11, 5)
                latents = self.look_up(around.flatten(0, 1))
                scores, around_noise = (
                    latents.flatten(1) @ self.filters.T,
                    noise.repeat_interleave(len(moves), 0),
                )
                heard = self.evidence(scores, around_noise, self.power(latents))
                found, where = heard.view(len(views), -1).max(dim=1)
                views = around[torch.arange(len(views)), where]
            best = found.topk(max(1, len(views) // 2)).indices
            views, noise, steps = views[best], noise[best], steps / 2
        return View(*views[0].tolist()), found.max().item()


def candidates(search: Search) -> Iterator[tuple[Tensor, Tensor]]:
    """What to refine, the likelier first: views (V, 5) and their evidence (V,).

    Turned about the centre, with corners left empty or cut off; cropped in proportion; turned and cropped, or
    cropped to any sides, on a coarser grid.
    """
    turns = torch.arange(-TURN, TURN + 0.1, 0.5)
    angles = turns.abs() * math.pi / 180
    inner = 1 / (angles.cos() + max(search.aspect, 1 / search.aspect) * angles.sin())
    centred = torch.zeros_like(turns)
    yield search.heard(
        torch.cat(
            [torch.stack([turns, s, s, centred, centred], dim=1) for s in (inner, torch.ones_like(inner))]
        )
    )
    shares = torch.arange(1, SHARE - 0.001, -0.01)
    yield search.placed(F.pad(shares[:, None].expand(-1, 2), (1, 0)), 2)
    turns, shares = torch.arange(-TURN, TURN + 0.1, 1.25), torch.arange(1, SHARE - 0.001, -0.025)
    turned = torch.cartesian_prod(turns, shares)[:, [0, 1, 1]]
    cropped = F.pad(torch.cartesian_prod(shares, shares), (1, 0))
    yield search.placed(torch.cat([turned, cropped]), 2)


def _reach(side: int) -> int:
    """Whole latents that the centre of a view can lie beside the middle."""
    return min(math.ceil((1 - SHARE) * side / 2 + SLACK), side // 2)
