"""A policy whose heads, widths and vocabulary split over every mesh of eight devices."""

from models.config import ModelConfig
from models.policy import Qwen3Policy


def mesh_policy(layers: int) -> Qwen3Policy:
    """So small that compiling for a mesh takes seconds."""
    return Qwen3Policy(
        ModelConfig(
            model_type="qwen3",
            vocab_size=48,
            hidden_size=32,
            intermediate_size=40,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=12,
            rope_theta=1e4,
            rope_scaling=None,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
        )
    )
