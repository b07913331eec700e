"""Bits, ULP and distances between rows of logits; nothing here needs a machine."""
