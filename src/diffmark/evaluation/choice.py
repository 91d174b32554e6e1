"""Methods, attacks and models by the names that the command line gives."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from diffmark.attacks import ATTACKS, Attack
from diffmark.attacks.adversarial import against_features, against_margins, against_vae
from diffmark.attacks.regeneration import compression_attack, diffusion_attacks
from diffmark.baselines.aqualora import AquaLora
from diffmark.baselines.base import Method
from diffmark.baselines.classic import BlindWatermark, InvisibleWatermark
from diffmark.baselines.diffmark import DiffMark
from diffmark.baselines.gaussian_shading import GaussianShading
from diffmark.baselines.layers import BothLayers, PixelLayer
from diffmark.baselines.prc import PseudorandomCode
from diffmark.baselines.ring_id import RingID
from diffmark.baselines.shallow_diffuse import ShallowDiffuse
from diffmark.baselines.stable_signature import StableSignature
from diffmark.baselines.stegastamp import StegaStamp
from diffmark.baselines.tree_ring import TreeRing
from diffmark.detection.latent import Detector
from diffmark.evaluation import plugins
from diffmark.evaluation.harness import Harness
from diffmark.evaluation.names import (
    ATTACK_PLUGINS,
    CLASSIC,
    LAYERS,
    METHOD_PLUGINS,
    SAMPLING,
    TRAINED,
    check_methods,
)
from diffmark.mark.generation import Sampling
from diffmark.mark.loading import is_embedded, load_pipeline
from diffmark.vista import model_names

ON_A_PIPELINE: tuple[Any, ...] = (
    TreeRing,
    RingID,
    ShallowDiffuse,
    GaussianShading,
    PseudorandomCode,
    StableSignature,
    AquaLora,
)


def quiet_pipeline(model: str) -> Any:
    """A pipeline that leaves the progress bar to the evaluation."""
    pipe = load_pipeline(model)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def few_steps(pipe: Any, sampling: Sampling) -> Sampling:
    """Four steps for a consistency model, whatever the others take."""
    return replace(sampling, steps=4) if type(pipe.scheduler).__name__ == "LCMScheduler" else sampling


def load_siblings(names: str | None, model: str) -> dict[str, Any]:
    """Other models of the family by name."""
    if names is None:
        chosen = [name for name in model_names() if name != model] if is_embedded(model) else []
    else:
        chosen = [name for name in names.split(",") if name]
    return {name: quiet_pipeline(name) for name in chosen}


def load_attacks(harness: Harness, surrogate: str | None) -> list[Attack]:
    """Attacks that use a model: regeneration by compression and by a surrogate, gradients."""
    attacks = [compression_attack()]
    pipes = {name: model.pipe for name, model in harness.siblings.items()}
    pipes = {name: pipe for name, pipe in pipes.items() if type(pipe.scheduler).__name__ != "LCMScheduler"}
    if surrogate is not None:
        pipes = {surrogate: pipes.get(surrogate) or quiet_pipeline(surrogate)}
    if pipes:
        name = next(iter(pipes))
        attacks += diffusion_attacks(pipes[name], name)
    else:
        print(
            "regen_diffusion and rinse_2x are left out: no other model of the family; name a --surrogate",
            file=sys.stderr,
        )
    backbone = harness.backbone
    attacks += [against_margins(method) for method in harness.methods if method.has_gradients]
    return [
        *attacks,
        against_vae(harness.model.pipe.vae),
        against_features(backbone.pooled, backbone.name, backbone.weights),
    ]


def choose_attacks(with_models: list[Attack], names: str | None) -> dict[str, Attack]:
    """Attacks of the package, of installed plug-ins and by place; only those that are named, if any are."""
    listed = [*ATTACKS.values(), *with_models]
    for name, point in plugins.offered(ATTACK_PLUGINS).items():
        listed += plugins.as_attacks(point.load(), name)
    wanted = names.split(",") if names else []
    named = [name for name in wanted if ":" not in name]
    for place in (name for name in wanted if ":" in name):
        own = plugins.as_attacks(plugins.load_object(place), place)
        listed += own
        named += [attack.name for attack in own]
    known = dict.fromkeys(attack.name for attack in listed)
    unknown = [name for name in named if name not in known]
    if unknown:
        raise ValueError(f"no attack {unknown[0]!r}; there are {', '.join(known)}")
    chosen = [attack for attack in listed if not named or attack.name in named]
    return {f"{attack.name} {attack.against or ''}".strip(): attack for attack in chosen}


def load_methods(names: str, pipe: Any, codec: str, sampling: Sampling) -> list[Method]:
    """Methods by name; `diffmark` with the codec's own injection, `diffmark-late` and so on with another."""
    check_methods(names)
    detector = Detector.from_pretrained(codec)
    on_pipe: dict[str, Any] = {method.name: method for method in ON_A_PIPELINE}
    extra = plugins.offered(METHOD_PLUGINS)

    def load(name: str) -> Method:
        if ":" in name:
            return plugins.make_method(plugins.load_object(name), pipe, sampling, name)
        if name in extra:
            return plugins.make_method(extra[name].load(), pipe, sampling, name)
        if name == "diffmark-both":
            return BothLayers(DiffMark(pipe, detector, sampling))
        if name.startswith("diffmark-pixel"):
            return PixelLayer(quality=float(name.partition("@")[2]) if "@" in name else None)
        if name.startswith("diffmark"):
            mode = name.removeprefix("diffmark").removeprefix("-")
            injection = detector.codec.dosing.in_mode(mode) if mode else None
            return DiffMark(pipe, detector, sampling, injection)
        if name in on_pipe:
            return on_pipe[name](pipe, sampling)
        if name == StegaStamp.name:
            return StegaStamp()
        return BlindWatermark() if name == BlindWatermark.name else InvisibleWatermark(name)

    if names != "all":
        return [load(name) for name in names.split(",")]
    chosen: list[Method] = []
    for name in (*LAYERS, *SAMPLING, *TRAINED, *CLASSIC, *extra):
        try:
            chosen.append(load(name))
        except (ImportError, FileNotFoundError) as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return chosen
