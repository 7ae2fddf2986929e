"""Rounding weights as suits what layers make of samples, and what it costs them."""
