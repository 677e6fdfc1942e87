"""From logits to committed tokens: adjusted distribution, keyed noise, verifiers."""
