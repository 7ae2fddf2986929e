"""Clustering: weights that take few distinct values."""

from kerasmem.compression.cluster.config import Cluster

__all__ = ["Cluster"]
