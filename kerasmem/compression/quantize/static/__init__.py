"""Weights and activations in int8, computed with integers as LiteRT does."""
