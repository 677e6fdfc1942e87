"""Tasks: prompts, rewards and held-out sets, one small module each."""
