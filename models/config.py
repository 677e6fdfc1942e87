"""Architecture of a Qwen3 dense model: one frozen record, its presets, its `config.json`."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ModelConfig:
    """Every number that shapes a Qwen3 dense model. No defaults: a checkpoint states them all.

    Attributes:
        vocab_size: V, rows of the embedding.
        hidden_size: D, model width.
        intermediate_size: Width of the feed-forward layer.
        num_hidden_layers: L.
        num_attention_heads: H, query heads.
        num_key_value_heads: J, key/value heads; divides H.
        head_dim: E, width of one head; even, and free of D / H.
        rope_theta: Base of the rotary frequencies.
        rms_norm_eps: Added to the mean square in every norm.
        tie_word_embeddings: Whether the output head is the embedding itself.

    Raises:
        ValueError: A size is not positive, J does not divide H, or E is odd.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is bool:
                good, wanted = isinstance(value, bool), "true or false"
            elif field.type is int:
                good, wanted = type(value) is int and value > 0, "a positive integer"
            else:
                good = type(value) in (int, float) and 0 < value < float("inf")
                wanted = "a positive number"
            if not good:
                raise ValueError(f"{field.name}: found {value!r}, allowed: {wanted}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads: found {self.num_key_value_heads}, "
                f"allowed: a divisor of num_attention_heads {self.num_attention_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim: found {self.head_dim}, allowed: an even number")

    @classmethod
    def from_json(cls, path: str | Path) -> "ModelConfig":
        """Reads a Hugging Face `config.json` of model type qwen3.

        Raises:
            ValueError: The file is absent or not JSON, describes another architecture, lacks a
                field, or asks for something not implemented (scaled rotary phases, sliding
                windows, biases, another activation).
        """
        try:
            raw = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{path}: not found, a checkpoint has a config.json") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}: cannot be read as JSON ({error})") from None
        if not isinstance(raw, dict):
            raise ValueError(f"{path}: found {type(raw).__name__}, allowed: a JSON object")
        _refuse_unimplemented(path, raw)
        raw = {**_rope_settings(path, raw), **raw}
        missing = [field.name for field in fields(cls) if raw.get(field.name) is None]
        if missing:
            raise ValueError(f"{path}: missing {', '.join(missing)}, which have no default")
        try:
            return cls(**{field.name: raw[field.name] for field in fields(cls)})
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def to_json(self, path: str | Path) -> None:
        """Writes a `config.json` that `from_json` and Hugging Face both read."""
        record = {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "hidden_act": "silu",
            "attention_bias": False,
            **asdict(self),
        }
        Path(path).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _refuse_unimplemented(path: str | Path, raw: dict[str, Any]) -> None:
    """Raises where a setting changes the computation in a way that we do not follow."""
    if raw.get("model_type") != "qwen3":
        raise ValueError(f"{path}: model_type: found {raw.get('model_type')!r}, allowed: 'qwen3'")
    for name, allowed in (
        ("hidden_act", (None, "silu")),
        ("attention_bias", (None, False)),
        ("use_sliding_window", (None, False)),
    ):
        if raw.get(name) not in allowed:
            raise ValueError(f"{path}: {name}: found {raw[name]!r}, allowed: {allowed[1]!r}")


def _rope_settings(path: str | Path, raw: dict[str, Any]) -> dict[str, Any]:
    """Finds `rope_theta` where newer files keep it, and refuses scaled phases."""
    found: dict[str, Any] = {}
    for name in ("rope_parameters", "rope_scaling"):
        settings = raw.get(name) or {}
        if not isinstance(settings, dict):
            raise ValueError(f"{path}: {name}: found {settings!r}, allowed: a JSON object")
        kind = settings.get("rope_type", settings.get("type", "default"))
        if kind != "default":
            raise ValueError(f"{path}: {name}: found type {kind!r}, allowed: 'default'")
        if "rope_theta" in settings:
            found["rope_theta"] = settings["rope_theta"]
    if found and raw.get("rope_theta", found["rope_theta"]) != found["rope_theta"]:
        raise ValueError(
            f"{path}: rope_theta: found {raw['rope_theta']} and {found['rope_theta']}, "
            "allowed: one value"
        )
    return found


def _qwen3(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, tied: bool
) -> ModelConfig:
    """What the released Qwen3 dense models share: vocabulary, head width, theta, epsilon."""
    return ModelConfig(
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=tied,
    )


PRESETS: dict[str, ModelConfig] = {
    "qwen3_0_6b": _qwen3(1024, 3072, 28, 16, 8, tied=True),
    "qwen3_1_7b": _qwen3(2048, 6144, 28, 16, 8, tied=True),
    "qwen3_4b": _qwen3(2560, 9728, 36, 32, 8, tied=True),
    "qwen3_8b": _qwen3(4096, 12_288, 36, 32, 8, tied=False),
    "qwen3_14b": _qwen3(5120, 17_408, 40, 40, 8, tied=False),
    "qwen3_32b": _qwen3(5120, 25_600, 64, 64, 8, tied=False),
    "tiny": ModelConfig(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    ),
}


def preset(name: str) -> ModelConfig:
    """The configuration of a named model; raises ValueError for another name."""
    if name not in PRESETS:
        raise ValueError(f"preset: found {name!r}, allowed: {', '.join(PRESETS)}")
    return PRESETS[name]
