"""Architecture of a dense decoder: one frozen record, its presets, its `config.json`.

Three families share the blocks: Qwen3 norms queries and keys, Qwen2 (2.5) has biases on query, key
and value, Llama (3, SmolLM2) has neither and may stretch its rotary phases.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from models.rope_scaling import RopeScaling, read_rope


@dataclass(frozen=True)
class Family:
    """What the blocks of a model type have, and the name of its class in `transformers`."""

    architecture: str
    qkv_bias: bool
    qk_norm: bool
    states_head_dim: bool  # else an absent head_dim is hidden_size / num_attention_heads


FAMILIES: dict[str, Family] = {
    "qwen3": Family("Qwen3ForCausalLM", qkv_bias=False, qk_norm=True, states_head_dim=True),
    "qwen2": Family("Qwen2ForCausalLM", qkv_bias=True, qk_norm=False, states_head_dim=False),
    "llama": Family("LlamaForCausalLM", qkv_bias=False, qk_norm=False, states_head_dim=False),
}


@dataclass(frozen=True)
class ModelConfig:
    """Every number that shapes a model. No defaults: a checkpoint states them all.

    Attributes:
        model_type: Key of `FAMILIES`.
        vocab_size: V, rows of the embedding.
        hidden_size: D, model width.
        intermediate_size: Width of the feed-forward layer.
        num_hidden_layers: L.
        num_attention_heads: H, query heads.
        num_key_value_heads: J, key/value heads; divides H.
        head_dim: E, width of one head; even, and free of D / H.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: How the frequencies are stretched; None where they are not.
        rms_norm_eps: Added to the mean square in every norm.
        tie_word_embeddings: Whether the output head is the embedding itself.

    Raises:
        ValueError: An unknown family, a size that is not positive, J does not divide H, or E is
            odd.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    rms_norm_eps: float
    tie_word_embeddings: bool

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "model_type":
                good, wanted = value in FAMILIES, ", ".join(FAMILIES)
            elif field.name == "rope_scaling":
                good, wanted = value is None or isinstance(value, RopeScaling), "None or a record"
            elif field.type is bool:
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

    @property
    def family(self) -> Family:
        """What blocks of this model type have."""
        return FAMILIES[self.model_type]

    @classmethod
    def from_json(cls, path: str | Path) -> "ModelConfig":
        """Reads a Hugging Face `config.json` of one of the families.

        Raises:
            ValueError: The file is absent or not JSON, describes another architecture, lacks a
                field, or asks for something not implemented (another kind of scaled rotary
                phases, sliding windows, other biases, another activation).
        """
        try:
            raw = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{path}: not found, a checkpoint has a config.json") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path}: cannot be read as JSON ({error})") from None
        if not isinstance(raw, dict):
            raise ValueError(f"{path}: found {type(raw).__name__}, allowed: a JSON object")
        try:
            return cls.from_record(raw)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "ModelConfig":
        """The same from the content of such a file; what is no field of ours is left aside.

        Raises:
            ValueError: As `from_json`.
        """
        _refuse_unimplemented(record)
        raw = {**record, **_stated_by_family(record), **read_rope(record)}
        missing = [
            field.name
            for field in fields(cls)
            if raw.get(field.name) is None and field.name != "rope_scaling"
        ]
        if missing:
            raise ValueError(f"missing {', '.join(missing)}, which have no default")
        return cls(**{field.name: raw[field.name] for field in fields(cls)})

    def to_record(self) -> dict[str, Any]:
        """The content of a `config.json` that `from_json` and Hugging Face both read."""
        return {
            "architectures": [self.family.architecture],
            "hidden_act": "silu",
            "attention_bias": self.family.qkv_bias,
            **asdict(self),
            "rope_scaling": None if self.rope_scaling is None else self.rope_scaling.to_record(),
        }

    def to_json(self, path: str | Path) -> None:
        """Writes a `config.json` that `from_json` and Hugging Face both read."""
        Path(path).write_text(json.dumps(self.to_record(), indent=2) + "\n", encoding="utf-8")


def _refuse_unimplemented(raw: dict[str, Any]) -> None:
    """Raises where a setting changes the computation in a way that we do not follow."""
    if raw.get("model_type") not in FAMILIES:
        found, allowed = raw.get("model_type"), ", ".join(map(repr, FAMILIES))
        raise ValueError(f"model_type: found {found!r}, allowed: {allowed}")
    for name, allowed in (
        ("hidden_act", (None, "silu")),
        # qwen2 has its biases by type, whatever its file says
        ("attention_bias", (None, False, FAMILIES[raw["model_type"]].qkv_bias)),
        ("mlp_bias", (None, False)),
        ("use_sliding_window", (None, False)),
        ("rope_interleaved", (None, False)),
        ("partial_rotary_factor", (None, 1.0)),
    ):
        if raw.get(name) not in allowed:
            raise ValueError(f"{name}: found {raw[name]!r}, allowed: {allowed[1]!r}")
    for kind in raw.get("layer_types") or ():
        if kind != "full_attention":
            raise ValueError(f"layer_types: found {kind!r}, allowed: 'full_attention'")


def _stated_by_family(raw: dict[str, Any]) -> dict[str, Any]:
    """`head_dim` where files of the family leave it out, as it follows from their definition."""
    width, heads = raw.get("hidden_size"), raw.get("num_attention_heads")
    follows = not FAMILIES[raw["model_type"]].states_head_dim and raw.get("head_dim") is None
    if not follows or type(width) is not int or type(heads) is not int or heads < 1:
        return {}
    if width % heads:
        raise ValueError(f"hidden_size: found {width}, allowed: a multiple of {heads} heads")
    return {"head_dim": width // heads}


def _qwen3(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, tied: bool
) -> ModelConfig:
    """What the released Qwen3 dense models share: vocabulary, head width, theta, epsilon."""
    return ModelConfig(
        model_type="qwen3",
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        rope_theta=1e6,
        rope_scaling=None,
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
    "qwen2_5_0_5b": ModelConfig(
        model_type="qwen2",
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        head_dim=64,
        rope_theta=1e6,
        rope_scaling=None,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    ),
    "smollm2_135m": ModelConfig(
        model_type="llama",
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        rope_theta=1e5,
        rope_scaling=None,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    ),
    "tiny": ModelConfig(
        model_type="qwen3",
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        rope_theta=1e6,
        rope_scaling=None,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    ),
}


def preset(name: str) -> ModelConfig:
    """The configuration of a named model; raises ValueError for another name."""
    if name not in PRESETS:
        raise ValueError(f"preset: found {name!r}, allowed: {', '.join(PRESETS)}")
    return PRESETS[name]
