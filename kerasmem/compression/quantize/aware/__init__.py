"""Quantization-aware training: what rounding does, seen by every training step."""
