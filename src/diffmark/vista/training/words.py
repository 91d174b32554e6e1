"""Teach a text encoder its words: each state after the caption's end says which words the caption had.

Stable Diffusion's text encoder comes pretrained from CLIP; this one learns with the denoiser, which asks for big
things first. Words of small things (house, boat) were never distinguished from words that mean nothing: they
changed no picture.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffmark.training.draws import Draws
from diffmark.training.loop import LoopConfig, train
from diffmark.vista.scenes import random_caption, random_scene, twin_scene
from diffmark.vista.training.unet import save_pipeline


@dataclass(frozen=True)
class WordsConfig:
    """A run of `diffmark vista train words`."""

    loop: LoopConfig
    scenes: int = 12000
    words: float = 0.1  # weight of the words' cross-entropy
    near: float = 0.2  # weight of the squared distance from the states that the denoiser knows


class WordsJob:
    """A bag of words from one state, drawn from the end on; directions of words have length one."""

    def __init__(self, config: WordsConfig, pipeline: Any) -> None:
        self.config, self.tokenizer = config, pipeline.tokenizer
        encoder = pipeline.text_encoder
        torch.manual_seed(config.loop.seed)
        self.before = copy.deepcopy(encoder).eval().requires_grad_(False)
        self.model = nn.ModuleDict(
            {
                "text_encoder": encoder,
                "words": nn.Linear(encoder.config.hidden_size, encoder.config.vocab_size),
            }
        )

    def loss(self, step: int, draws: Draws) -> tuple[Tensor, dict[str, Tensor]]:
        rng, count = draws.numpy, self.config.loop.batch
        scenes = [
            (random_scene, twin_scene)[rng.integers(2)](int(rng.integers(self.config.scenes)))
            for _ in range(count)
        ]
        captions = [random_caption(scene, rng) for scene in scenes]
        tokens = self.tokenizer(
            captions, padding="max_length", truncation=True, return_tensors="pt"
        ).input_ids
        states = self.model["text_encoder"](tokens)[0]  # (B, tokens, width)
        with torch.no_grad():
            known = self.before(tokens)[0]
        end = (tokens == self.tokenizer.eos_token_id).float().argmax(1)
        place = end + (torch.rand(count, generator=draws.torch) * (tokens.shape[1] - end)).long()
        read: Any = self.model["words"]
        logits = 4 * states[torch.arange(count), place] @ F.normalize(read.weight, dim=1).T + read.bias
        bag = torch.zeros_like(logits).scatter_(1, tokens, 1.0)
        words = F.binary_cross_entropy_with_logits(logits, bag, reduction="sum") / count
        near = (states - known).square().sum(-1).mean()
        return self.config.words * words + self.config.near * near, {"words": words, "near": near}


def train_words(config: WordsConfig, folder: Path, pipeline: Any, stop_after: int | None = None) -> Any:
    """Train the text encoder of `pipeline` and save it to `folder/model`; the denoiser stays as it is."""
    job = WordsJob(config, pipeline)
    job.model.load_state_dict(train(job, config.loop, folder, stop_after))
    job.model.eval()
    save_pipeline(pipeline, folder / "model")
    return pipeline
