"""Our readers of sampling-based marks against PyPI's markdiffusion, on the same pictures of the embedded model.

    pip install --no-deps --target DIR markdiffusion pycryptodome ldpc stim
    MARKDIFFUSION=DIR pytest -m slow tests/test_markdiffusion.py

Its detectors and its inversion are run as they are; its top level, which wants an older torch, is not imported.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from diffmark.baselines.gaussian_shading import GaussianShading
from diffmark.baselines.prc import RATE, SPARSITY, VARIANCE, PseudorandomCode
from diffmark.baselines.ring_id import RingID
from diffmark.baselines.tree_ring import TreeRing
from diffmark.evaluation.image_model import unseen_specs
from diffmark.latent.pictures import to_pixels
from diffmark.latent.vae import encode
from diffmark.mark.generation import Sampling
from diffmark.mark.loading import load_pipeline

FOLDER = Path(os.environ.get("MARKDIFFUSION", "none"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (FOLDER / "markdiffusion").is_dir(),
        reason="MARKDIFFUSION does not name a folder with markdiffusion",
    ),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def theirs(monkeypatch):
    """Imports a module of markdiffusion by its place inside."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("markdiffusion", "markdiffusion.detection", "markdiffusion.inversions"):
        package = types.ModuleType(name)
        package.__path__ = [str(FOLDER / name.replace(".", "/"))]
        monkeypatch.setitem(sys.modules, name, package)
    return lambda place: importlib.import_module(f"markdiffusion.{place}")


@pytest.fixture(scope="module")
def pipe():
    pipe = load_pipeline("vista")
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def sampling():
    return Sampling(steps=5, guidance=1.0)


def pictures(method, count=2):
    """Marked pictures, their secrets, and their inverted latents in double precision."""
    specs = [replace(spec, secret=method.carried(spec.secret)) for spec in unseen_specs(count)]
    images = method.generate_all(specs)
    return images, np.stack([spec.secret for spec in specs]), method.state(images).double()


def test_inversion_is_the_same(theirs, pipe, sampling):
    method = TreeRing(pipe, sampling)
    images, _, state = pictures(method, 1)
    inversion = theirs("inversions.ddim_inversion").DDIMInversion(pipe.scheduler, pipe.unet, "cpu")
    with torch.no_grad():
        z0 = encode(pipe.vae, to_pixels(images))
        empty = pipe.encode_prompt("", "cpu", 1, False)[0]
        found = inversion.forward_diffusion(
            latents=z0, text_embeddings=empty, guidance_scale=1.0, num_inference_steps=sampling.steps
        )[-1]
    torch.testing.assert_close(found.double(), state, atol=1e-4, rtol=1e-4)


def test_tree_ring_distance(theirs, pipe, sampling):
    method = TreeRing(pipe, sampling)
    _, _, state = pictures(method)
    mask = torch.zeros(1, 4, method.side, method.side, dtype=torch.bool)
    mask[:, -1] = method.mask
    key = torch.zeros(1, 4, method.side, method.side, dtype=torch.complex128)
    key[:, -1] = method.pattern
    detector = theirs("detection.tr.tr_detection").TRDetector(mask, key, 50.0, torch.device("cpu"))
    scores = method.read_state(state, np.zeros((2, 0), np.uint8))[1]
    for one, score in zip(state, scores, strict=True):
        assert detector.eval_watermark(one[None])["l1_distance"] == pytest.approx(-score, rel=1e-9)


def test_ring_id_distance(theirs, pipe, sampling):
    """Theirs is the mean over both channels here, as its option for the smaller one is commented out."""
    method = RingID(pipe, sampling)
    _, secrets, state = pictures(method)
    module = theirs("detection.ri.ri_detection")
    for one, secret in zip(state, secrets, strict=True):
        pattern = torch.zeros(1, 4, method.side, method.side, dtype=torch.complex128)
        pattern[0, 0, method.on_ring] = method.noise(secret).to(torch.complex128)
        pattern[0, -1, method.on_ring] = method.rings(secret).to(torch.complex128)
        mask = torch.stack([method.on_ring] * 2)
        detector = module.RIDetector(mask, [3], [0], [pattern], 50.0, torch.device("cpu"))
        found = torch.fft.fftshift(torch.fft.fft2(one), dim=(-1, -2))[:, method.on_ring]
        rings = (found[-1] - method.rings(secret)).abs().mean()
        noise = (found[0] - method.noise(secret)).abs().mean()
        assert detector.eval_watermark(one[None])["l1_distance"] == pytest.approx(
            float((rings + noise) / 2), rel=1e-6
        )
        score = method.read_state(one[None].float(), secret[None])[1][0]
        assert -score == pytest.approx(float(torch.minimum(rings, noise)), rel=1e-5)


def test_gaussian_shading_bits(theirs, pipe, sampling):
    """Given their key for our stream: ours is ChaCha20 of `cryptography`, with a nonce of 16 bytes."""
    method = GaussianShading(pipe, sampling)
    _, secrets, state = pictures(method)
    module = theirs("detection.gs.gs_detection")
    scores = method.read_state(state, secrets)[1]
    for one, secret, score in zip(state, secrets, scores, strict=True):
        message = torch.from_numpy(secret.reshape(1, 4, 8, 8))
        copies = method.side // 8
        stream = torch.from_numpy(method.stream.astype(int))[None]
        detector = module.GSDetector(
            message, False, stream, 1, copies, copies**2 // 2, 0.7, torch.device("cpu")
        )
        assert detector.eval_watermark(one[None])["bit_acc"] == pytest.approx(score / 256, abs=1e-9)


def test_prc_likelihood_and_message(theirs, pipe, sampling):
    from scipy.sparse import csr_matrix

    galois = pytest.importorskip("galois")
    method, field = PseudorandomCode(pipe, sampling), galois.GF(2)
    _, _, state = pictures(method)
    key = method.key
    rows = np.repeat(np.arange(len(key.checks)), SPARSITY)
    # In this order of positions scipy keeps what the detector counts on: three a row.
    checks = csr_matrix(
        (np.ones(rows.size, int), (rows, key.checks.ravel())), shape=(len(key.checks), len(key.pad))
    )
    decoding = (
        field(key.generator),
        checks,
        field(key.pad),
        RATE,
        key.noise,
        field(key.test),
        key.randomness,
        7,
        SPARSITY,
    )
    detector = theirs("detection.prc.prc_detection").PRCDetector(
        VARIANCE, decoding, field, 0.5, torch.device("cpu")
    )
    read = 0
    for one in state:
        posteriors = detector._recover_posteriors(one.flatten(), variances=VARIANCE)
        posteriors = torch.as_tensor(posteriors)
        found, likelihood = detector._detect_watermark(posteriors)
        expected = key.expected(one.flatten().numpy())
        assert likelihood == pytest.approx(key.likelihood(expected)[0], rel=1e-9)
        assert bool(found) == (np.exp(-(max(key.evidence(expected), 0) ** 2)) <= RATE)
        message, own = detector._decode_message(posteriors), key.message(expected)
        read += message is not None
        if message is not None and own is not None:
            assert np.array_equal(np.asarray(message), own)
    assert read  # at least one of these pictures is read by both
