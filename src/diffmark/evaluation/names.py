"""Names that the command line takes; nothing heavy is imported to check them."""

from __future__ import annotations

from importlib.metadata import entry_points

METHOD_PLUGINS, ATTACK_PLUGINS = "diffmark.methods", "diffmark.attacks"  # groups of entry points

LAYERS = ("diffmark", "diffmark-pixel", "diffmark-both")
SAMPLING = ("tree-ring", "ring-id", "shallow-diffuse", "gaussian-shading", "prc")
TRAINED = ("stegastamp", "stable-signature", "aqualora")
CLASSIC = ("dwtDct", "dwtDctSvd", "rivaGan", "blindWatermark")
EXPERIMENTS = (
    "clean",
    "false_positives",
    "robustness",
    "strength",
    "keys",
    "transfer",
    "latency",
    "identification",
    "averaging",
    "collusion",
    "forgery",
    "signal",
    "ablations",
)


def check_experiments(names: list[str]) -> None:
    """Raise for a name that no experiment has."""
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise ValueError(f"no experiment {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")


def check_methods(names: str) -> None:
    """Raise for a name, among those with commas between them, that no method has."""
    known = (*LAYERS, *SAMPLING, *TRAINED, *CLASSIC, *entry_points(group=METHOD_PLUGINS).names)
    for name in names.split(",") if names != "all" else ():
        if name not in known and ":" not in name and not name.startswith("diffmark-"):
            ways = ("diffmark-<mode>", "diffmark-pixel@<SSIMULACRA2>", "module:Class")
            raise ValueError(f"no method {name!r}; there are {', '.join((*known, *ways))}")
