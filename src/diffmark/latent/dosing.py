"""How strongly a codec's mark is added: what was chosen for it beside its weights, and can be chosen anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diffmark.latent.injection import Injection


@dataclass(frozen=True)
class Dosing:
    """The injection, the strength of a delta, and doses for other modes."""

    injection: Injection = field(default_factory=Injection)  # the one the codec was trained with
    deviation: float | None = None  # of every delta, exactly; None leaves it to alpha, as in the paper
    doses: Mapping[str, float] = field(default_factory=dict)  # of other modes, to be read about as well

    def __post_init__(self) -> None:
        for mode, dose in self.doses.items():
            Injection(mode, dose)  # raises where there is no such mode, or no such dose

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Dosing:
        """The inverse of `dataclasses.asdict`; what is left out has its default."""
        injection = values.get("injection")
        return cls(**{**values, "injection": Injection(**injection)} if injection else values)

    def in_mode(self, mode: str) -> Injection:
        """The codec's own injection, or another mode with the dose that suits it."""
        return self.injection if mode == self.injection.mode else Injection(mode, self.doses.get(mode, 1.0))
