"""Channels that disappear."""

from kerasmem.compression.channels.config import PruneChannels

__all__ = ["PruneChannels"]
