"""What `losses=` and `cache=` of `km.distill` take: `km.distillation`."""

from kerasmem.compression.distill.cache import Cache
from kerasmem.compression.distill.losses import (
    DIST,
    DKD,
    AttentionTransfer,
    Contrastive,
    Correlation,
    Features,
    Logits,
    ProbabilisticKnowledgeTransfer,
    Relational,
    SimilarityPreserving,
)
from kerasmem.compression.distill.schedules import Cosine, Linear

__all__ = [
    "DIST",
    "DKD",
    "AttentionTransfer",
    "Cache",
    "Contrastive",
    "Correlation",
    "Cosine",
    "Features",
    "Linear",
    "Logits",
    "ProbabilisticKnowledgeTransfer",
    "Relational",
    "SimilarityPreserving",
]
