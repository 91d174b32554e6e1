"""The evidence map shows the part of a picture that carries the mark."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import _build, tiny_codec
from PIL import Image

from diffmark.detection import Detector
from diffmark.embedding import embed
from diffmark.evaluation.studio import painted_scenes
from diffmark.evidence import EvidenceMap, EvidenceMapper
from diffmark.injection import Injection
from diffmark.secret import random_secrets, to_hex

RESULT = Path(__file__).parents[1] / "results" / "evidence_map.json"


@pytest.fixture(scope="module")
def detector():
    return Detector.from_pretrained("vista")


@pytest.fixture(scope="module")
def pictures():
    return list(painted_scenes(4, first=60_000))


def halves(marked, plain):
    """The marked picture's left half beside the other's right half."""
    composed = plain.copy()
    composed.paste(marked.crop((0, 0, marked.width // 2, marked.height)))
    return composed


@pytest.mark.parametrize("way", ["matched", "occlusion"])
@pytest.mark.parametrize("given", [True, False])
def test_the_marked_half_scores_higher(detector, pictures, way, given):
    mapper = EvidenceMapper(detector, way)
    for plain, other in (pictures[:2], pictures[2:]):
        secret = random_secrets()[0]
        marked = embed(plain, detector.codec, detector.vae, secret)
        left, right = np.hsplit(mapper.map(halves(marked, other), secret if given else None).scores, 2)
        assert left.mean() > right.mean() + 1
        left, right = np.hsplit(mapper.map(halves(other, marked), secret if given else None).scores, 2)
        assert right.mean() > left.mean() + 1


@pytest.mark.parametrize("way", ["matched", "occlusion"])
def test_a_secret_that_is_not_there_scores_as_chance(detector, pictures, way):
    mapper = EvidenceMapper(detector, way)
    scores = np.concatenate(
        [mapper.map(picture, secret).scores.ravel() for picture in pictures for secret in random_secrets(10)]
    )
    assert abs(scores.mean()) < 0.4
    assert 0.7 < scores.std() < 1.3


def test_the_way_follows_the_injection(detector):
    assert EvidenceMapper(detector).way == "matched"
    other = Detector(tiny_codec(injection=Injection("persistent")), _build("sd").pipe.vae)
    found = EvidenceMapper(other).map(np.zeros((50, 90, 3), np.uint8))
    assert (found.way, found.scores.shape) == ("occlusion", (4, 4))
    assert np.isfinite(found.scores).all()


def test_a_map_speaks_for_one_secret(detector, pictures):
    mapper = EvidenceMapper(detector)
    secret = random_secrets()[0]
    assert mapper.map(pictures[0], secret).secret == to_hex(secret)
    assert mapper.map(pictures[0]).secret == detector.detect(pictures[0]).secret
    with pytest.raises(ValueError, match="one secret, got 2"):
        mapper.map(pictures[0], random_secrets(2))


def test_the_overlay_colours_the_evidence_and_greys_the_rest():
    picture = Image.new("RGB", (60, 40), (10, 200, 90))
    found = EvidenceMap(np.array([[0.0, 9.0]]), "0" * 16, "matched")
    drawn = np.asarray(found.overlay(picture)).astype(int)
    assert drawn.shape == (40, 60, 3)
    assert np.ptp(drawn[20, 2]) == 0
    assert drawn[20, 57, 0] > drawn[20, 57, 1] + 50
    assert json.loads(json.dumps(found.to_dict()))["scores"] == [[0.0, 9.0]]
