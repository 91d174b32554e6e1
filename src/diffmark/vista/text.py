"""Vista's text side: a byte-pair tokenizer in CLIP's format, in which every caption word is one token."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from diffmark.vista.looks import LOOK_PHRASES
from diffmark.vista.scenes import vocabulary

START, END = "<|startoftext|>", "<|endoftext|>"
TOKENS = 32  # length of every prompt, start and end included


def byte_letters() -> list[str]:
    """The 256 printable letters that stand for bytes in GPT-2's and CLIP's vocabularies."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]


def learn_merges(words: list[str]) -> list[tuple[str, str]]:
    """Byte-pair merges, the commonest pair first, until every word is one symbol."""
    symbols = [[*word[:-1], word[-1] + "</w>"] for word in words]
    merges: list[tuple[str, str]] = []
    while True:
        pairs = Counter(pair for word in symbols for pair in pairwise(word))
        if not pairs:
            return merges
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        symbols = [_merge(word, best) for word in symbols]


def _merge(word: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for symbol in word:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged


def build_tokenizer(folder: Path) -> CLIPTokenizer:
    """Write the tokenizer's files into `folder` and load it from there."""
    folder.mkdir(parents=True, exist_ok=True)
    words = {word for text in LOOK_PHRASES.values() for word in text.split()}
    merges = learn_merges(sorted(words | set(vocabulary())))
    letters = byte_letters()
    entries = [*letters, *(letter + "</w>" for letter in letters), *(a + b for a, b in merges), START, END]
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": TOKENS, "bos_token": START}
    config |= {"eos_token": END, "pad_token": END, "unk_token": END, "do_lower_case": True}
    (folder / "vocab.json").write_text(
        json.dumps({entry: i for i, entry in enumerate(entries)}, ensure_ascii=False)
    )
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *(f"{a} {b}" for a, b in merges)]) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return CLIPTokenizer.from_pretrained(folder)


def build_text_encoder(tokenizer: CLIPTokenizer, width: int = 128, layers: int = 2) -> CLIPTextModel:
    """A small CLIP text model for the tokenizer."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=TOKENS,
            projection_dim=width,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def with_strange_word(caption: str, rng: np.random.Generator) -> str:
    """A caption with a word that means nothing: the model learns to pass over words that it does not know."""
    word = "".join(rng.choice(list("etaoinshrdlucmfwypvbgkjqxz"), rng.integers(3, 9)))
    words = caption.split(" ")
    words.insert(int(rng.integers(len(words) + 1)), word)
    return " ".join(words)
