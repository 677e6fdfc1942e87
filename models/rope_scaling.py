"""Rotary frequencies stretched for longer contexts, as Llama 3.1 and later do, and their settings.

Legend: C half of a head's width.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RopeScaling:
    """Scaling of type "llama3".

    Frequencies whose wavelength exceeds `original / low_freq_factor` are divided by `factor`, those
    below `original / high_freq_factor` stay, and those between are blended. Source: the model code
    that Meta published with Llama 3.1 (`apply_scaling`).

    Attributes:
        factor: How much longer the context became.
        low_freq_factor: Sets the longest wavelength that is blended.
        high_freq_factor: Sets the shortest one; more than `low_freq_factor`.
        original_max_position_embeddings: Context in tokens before the stretch.

    Raises:
        ValueError: A number is not positive, or the two bounds are not in order.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ValueError(f"rope_scaling.{name}: found {value!r}, allowed: above 0")
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"rope_scaling.high_freq_factor: found {self.high_freq_factor}, "
                f"allowed: more than low_freq_factor {self.low_freq_factor}"
            )

    def scale(self, frequency_C: NDArray[np.float64]) -> NDArray[np.float64]:
        """The stretched frequencies, radians per position."""
        turns_C = self.original_max_position_embeddings * frequency_C / (2 * math.pi)
        low, high = self.low_freq_factor, self.high_freq_factor
        kept_C = np.clip((turns_C - low) / (high - low), 0.0, 1.0)
        return frequency_C * (kept_C + (1.0 - kept_C) / self.factor)

    def to_record(self) -> dict[str, Any]:
        """As `config.json` writes it."""
        return {"rope_type": "llama3", **asdict(self)}


def read_rope(raw: dict[str, Any]) -> dict[str, Any]:
    """`rope_scaling`, and `rope_theta` where newer files keep it, out of a `config.json`.

    Raises:
        ValueError: A kind of scaling that is not implemented, one of its numbers missing, or two
            different values of theta.
    """
    found: dict[str, Any] = {"rope_scaling": None}
    for name in ("rope_parameters", "rope_scaling"):
        settings = raw.get(name) or {}
        if not isinstance(settings, dict):
            raise ValueError(f"{name}: found {settings!r}, allowed: a JSON object")
        kind = settings.get("rope_type", settings.get("type", "default"))
        if kind not in ("default", "llama3"):
            raise ValueError(f"{name}: found type {kind!r}, allowed: 'default', 'llama3'")
        if kind == "llama3":
            found["rope_scaling"] = _scaling(name, settings)
        if settings.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError(f"{name}.partial_rotary_factor: allowed: 1.0")
        if "rope_theta" in settings:
            found["rope_theta"] = settings["rope_theta"]
    if "rope_theta" in found and raw.get("rope_theta", found["rope_theta"]) != found["rope_theta"]:
        raise ValueError(
            f"rope_theta: found {raw['rope_theta']} and {found['rope_theta']}, allowed: one value"
        )
    return found


def _scaling(name: str, settings: dict[str, Any]) -> RopeScaling:
    wanted = [field.name for field in fields(RopeScaling)]
    if missing := [key for key in wanted if settings.get(key) is None]:
        raise ValueError(f"{name}: missing {', '.join(missing)}, which have no default")
    return RopeScaling(**{key: settings[key] for key in wanted})
