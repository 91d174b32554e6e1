"""The ComfyUI nodes against ComfyUI's conventions; ComfyUI itself is not needed."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import types
from pathlib import Path

import certificates
import numpy as np
import pytest
import torch
from conftest import tiny_codec, tiny_noise_codec

import diffmark
from diffmark.keys.ring import as_ring
from diffmark.latent.noise import mix
from diffmark.mark.errors import UnmarkableError
from diffmark.mark.packing import restore
from diffmark.registry import Registry
from diffmark.secret import random_secrets, to_hex

FOLDER = Path(__file__).parents[1] / "integrations" / "comfyui"
SECRET = "0123456789abcdef"


@pytest.fixture(scope="module")
def nodes():
    """The package as ComfyUI loads a folder of custom_nodes."""
    spec = importlib.util.spec_from_file_location("custom_diffmark", FOLDER / "__init__.py")
    package = importlib.util.module_from_spec(spec)
    sys.modules["custom_diffmark"] = package
    spec.loader.exec_module(package)
    return package.NODE_CLASS_MAPPINGS


@pytest.fixture(scope="module")
def image():
    """IMAGE: (B, H, W, 3) floats; a VAE's may lie a little outside of [0, 1]."""
    return torch.rand(2, 128, 192, 3, generator=torch.Generator().manual_seed(0)) * 1.02 - 0.01


class Space:
    """As comfy.latent_formats.Flux."""

    latent_channels, scale_factor, shift_factor = 4, 0.3611, 0.1159

    def process_in(self, latent):
        return (latent - self.shift_factor) * self.scale_factor

    def process_out(self, latent):
        return latent / self.scale_factor + self.shift_factor


class Model:
    """As comfy.model_patcher.ModelPatcher."""

    def get_model_object(self, name):
        assert name == "latent_format"
        return Space()


def test_nodes_keep_the_conventions(nodes):
    from custom_diffmark import NODE_DISPLAY_NAME_MAPPINGS

    assert nodes.keys() == NODE_DISPLAY_NAME_MAPPINGS.keys()
    for node in nodes.values():
        inputs = node.INPUT_TYPES()
        assert "required" in inputs
        assert callable(getattr(node(), node.FUNCTION))
        assert isinstance(node.RETURN_TYPES, tuple)
        assert node.RETURN_TYPES or node.OUTPUT_NODE
        for kind, *options in [value for group in inputs.values() for value in group.values()]:
            assert isinstance(kind, str)
            assert all(isinstance(option, dict) for option in options)


def test_the_workflow_is_of_these_nodes_and_its_links_fit(nodes):
    workflow = json.loads((FOLDER / "workflow.json").read_text())
    ours = {number: step for number, step in workflow.items() if step["class_type"].startswith("DiffMark")}
    assert {step["class_type"] for step in ours.values()} == {"DiffMarkMarkImage", "DiffMarkDetect"}
    for step in ours.values():
        inputs = nodes[step["class_type"]].INPUT_TYPES()
        known = {**inputs["required"], **inputs.get("optional", {})}
        assert set(inputs["required"]) <= set(step["inputs"]) <= set(known)
        for name, value in step["inputs"].items():
            if isinstance(value, list) and value[0] in ours:
                assert nodes[ours[value[0]]["class_type"]].RETURN_TYPES[value[1]] == known[name][0]


def test_images_are_marked_and_detected(nodes, image):
    marked, secrets = nodes["DiffMarkMarkImage"]().mark(image, "random")
    assert (marked.shape, marked.dtype) == (image.shape, torch.float32)
    assert 0 <= float(marked.min()) <= float(marked.max()) <= 1
    assert len(set(secrets.split())) == 2
    found = nodes["DiffMarkDetect"]().detect(marked, secrets)
    report, all_marked = found["result"]
    assert all_marked
    assert found["ui"]["text"] == [report]
    assert len(report.splitlines()) == 2
    assert not nodes["DiffMarkDetect"]().detect(image, secrets)["result"][1]
    with pytest.raises(ValueError, match="3 secrets for 2 images"):
        nodes["DiffMarkMarkImage"]().mark(image, f"{SECRET} {SECRET} {SECRET}")


@pytest.mark.parametrize("shape", [(4, 8, 12), (16, 4, 6), (4, 3, 8, 12)], ids=["plain", "patched", "frames"])
def test_latents_are_marked_in_raw_units(nodes, tmp_path, shape):
    codec = tiny_codec()
    codec.save_pretrained(tmp_path / "codec")
    raw = torch.randn(2, *shape)
    latent = {"samples": raw, "batch_index": [0, 1]}
    secrets = random_secrets(2)
    arguments = (latent, Model(), str(tmp_path / "codec"), "\n".join(map(to_hex, secrets)), 0.5)
    marked, printed = nodes["DiffMarkMarkLatent"]().mark(*arguments)
    assert printed.split() == [to_hex(secret) for secret in secrets]
    assert marked["batch_index"] == [0, 1]
    difference = (marked["samples"] - raw) * Space.scale_factor
    if shape[0] == 16:
        difference = difference.view(2, 4, 2, 2, 4, 6).permute(0, 1, 4, 2, 5, 3).reshape(2, 4, 8, 12)
    if len(shape) == 4:  # of Wan and Qwen-Image: each frame has the same
        torch.testing.assert_close(difference[:, :, 0], difference[:, :, 2], atol=1e-5, rtol=1e-4)
        difference = difference[:, :, 0]
    expected = 0.5 * codec.use_key(as_ring().current).delta(secrets, (8, 12))
    torch.testing.assert_close(difference, expected, atol=1e-5, rtol=1e-4)
    tiny_codec(5).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="latents of 5 channels, the model's have 4"):
        nodes["DiffMarkMarkLatent"]().mark(latent, Model(), str(tmp_path / "other"), SECRET, 1.0)


def test_finished_latents_are_not_marked_by_a_codec_of_initial_noise(nodes, tmp_path):
    tiny_noise_codec().save_pretrained(tmp_path / "codec")
    latent = {"samples": torch.randn(1, 4, 8, 8)}
    with pytest.raises(UnmarkableError, match="for the pixel layer"):
        nodes["DiffMarkMarkLatent"]().mark(latent, Model(), str(tmp_path / "codec"), SECRET, 1.0)


class Noise:
    """As comfy_extras' Noise_RandomNoise."""

    seed = 3

    def generate_noise(self, input_latent):
        return torch.randn(input_latent["samples"].shape, generator=torch.Generator().manual_seed(self.seed))


@pytest.mark.parametrize("shape", [(4, 8, 8), (16, 4, 4), (4, 1, 8, 8)], ids=["plain", "patched", "a frame"])
def test_noise_is_marked(nodes, tmp_path, shape):
    codec, folder = tiny_noise_codec(), str(tmp_path / "codec")
    codec.save_pretrained(folder)
    empty, secrets = {"samples": torch.zeros(2, *shape)}, random_secrets(2)
    node, given = nodes["DiffMarkMarkNoise"](), "\n".join(map(to_hex, secrets))
    marked, printed = node.mark(Noise(), empty, Model(), folder, given, 1.0)
    assert (printed, marked.seed) == (given, Noise.seed)
    plain, noise = Noise().generate_noise(empty), marked.generate_noise(empty)
    patterns = codec.use_key(as_ring().current).delta(secrets)
    expected = mix(restore(plain, 4, (8, 8)), patterns, codec.injection.dose)
    torch.testing.assert_close(restore(noise, 4, (8, 8)), expected)
    assert noise.shape == plain.shape
    unmarked, _ = node.mark(Noise(), empty, Model(), folder, SECRET, 0.0)
    assert torch.equal(unmarked.generate_noise(empty), plain)
    with pytest.raises(ValueError, match="of a picture"):
        node.mark(Noise(), {"samples": plain}, Model(), folder, SECRET, 1.0)
    tiny_codec().save_pretrained(tmp_path / "delta")
    with pytest.raises(ValueError, match="use Mark Latent"):
        node.mark(Noise(), empty, Model(), str(tmp_path / "delta"), SECRET, 1.0)


def test_saved_images_are_signed_for_a_key_of_the_registry(nodes, image, tmp_path, monkeypatch):
    from diffmark.c2pa import inspect

    monkeypatch.chdir(tmp_path)
    pem = certificates.make(tmp_path)
    url = f"sqlite:///{tmp_path / 'r.db'}"
    arguments = ("picture", str(pem.chain), str(pem.key), url, "user-42")
    saved = nodes["DiffMarkSave"]().save(image, *arguments)["ui"]["images"]
    assert [one["filename"] for one in saved] == ["picture_00001_.png", "picture_00002_.png"]
    with Registry.open(url) as registry:
        for one in saved:
            path = tmp_path / "output" / one["filename"]
            assert inspect(path, pem.root).signature == "trusted"
            assert registry.identify(diffmark.detect(path)).verdict.principal == "user-42"


def test_files_are_named_as_comfyui_names_them(nodes, image, tmp_path, monkeypatch):
    """With the interface of ComfyUI's folder_paths: a prefix may name a subfolder, counting goes on."""
    asked = []

    def get_save_image_path(prefix, output_dir, image_width=0, image_height=0):
        asked.append((prefix, output_dir, image_width, image_height))
        return str(tmp_path / "out" / "day"), "picture_%batch_num%", 7, "day", prefix

    paths = types.ModuleType("folder_paths")
    paths.get_save_image_path, paths.get_output_directory = get_save_image_path, lambda: "out"
    monkeypatch.setitem(sys.modules, "folder_paths", paths)
    pem = certificates.make(tmp_path)
    arguments = ("day/picture", str(pem.chain), str(pem.key), f"sqlite:///{tmp_path / 'r.db'}", "user-42")
    saved = nodes["DiffMarkSave"]().save(image, *arguments)["ui"]["images"]
    assert [one["filename"] for one in saved] == ["picture_0_00007_.png", "picture_1_00008_.png"]
    assert {one["subfolder"] for one in saved} == {"day"}
    assert all((tmp_path / "out" / "day" / one["filename"]).is_file() for one in saved)
    assert asked == [("day/picture", "out", 192, 128)]


def test_numbers_fit_the_steps_that_the_interface_rounds_to(nodes):
    """It rounds a FLOAT that is typed to as many digits as its step has; the step is 0.5 by default."""
    for node in nodes.values():
        for group in node.INPUT_TYPES().values():
            for kind, *options in group.values():
                if kind == "FLOAT":
                    digits = max(0, -math.floor(math.log10(options[0].get("step", 0.5))))
                    assert all(
                        round(options[0][name], digits) == options[0][name] for name in ("default", "min")
                    )


def test_floats_a_little_outside_are_taken(nodes):
    marked, _ = nodes["DiffMarkMarkImage"]().mark(
        torch.full((1, 64, 64, 3), 1.004) * torch.rand(64, 64, 1), SECRET
    )
    assert np.isfinite(marked.numpy()).all()
