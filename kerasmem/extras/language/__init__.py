"""Metrics and model cards of language models."""
