"""Figures and model cards of language models."""
