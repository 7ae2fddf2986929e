"""Quantization on samples: rounding, input scales, output errors and sensitivity."""
