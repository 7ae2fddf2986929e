"""Frozen data that the rest of kerasmem passes around and reports read."""

from kerasmem.records.estimate import (
    ESTIMATE_CATEGORIES,
    CardStatus,
    DeviceStatus,
    EstimatePart,
    MemoryEstimate,
)
from kerasmem.records.figures import (
    ActivationRange,
    CompressionReport,
    ModelFigures,
    SearchReport,
    SearchTrial,
    WeightChange,
    WideType,
)
from kerasmem.records.gradient import GradientRecord, VariableGradient
from kerasmem.records.memory import DeviceReading, HostReading, MemoryRecord
from kerasmem.records.post_mortem import CAUSES, Cause, PostMortem, Remedy
from kerasmem.records.run import SEVERITIES, Finding, Run, RunInfo, gravest_first
from kerasmem.records.runtimes import (
    BatchTime,
    ExportReport,
    FileContents,
    RuntimeAdvice,
    RuntimeComparison,
    RuntimeFigures,
    StoredTensor,
)
from kerasmem.records.timeline import CATEGORIES, PHASES, Block, Timeline
from kerasmem.records.tuning import (
    MEASURED,
    DataMemory,
    OddSize,
    PipelineStage,
    Retrace,
    TracedStep,
    Tuning,
    VariantFigures,
)

__all__ = [
    "CATEGORIES",
    "CAUSES",
    "ESTIMATE_CATEGORIES",
    "MEASURED",
    "PHASES",
    "SEVERITIES",
    "ActivationRange",
    "BatchTime",
    "Block",
    "CardStatus",
    "Cause",
    "CompressionReport",
    "DataMemory",
    "DeviceReading",
    "DeviceStatus",
    "EstimatePart",
    "ExportReport",
    "FileContents",
    "Finding",
    "GradientRecord",
    "HostReading",
    "MemoryEstimate",
    "MemoryRecord",
    "ModelFigures",
    "OddSize",
    "PipelineStage",
    "PostMortem",
    "Remedy",
    "Retrace",
    "Run",
    "RunInfo",
    "RuntimeAdvice",
    "RuntimeComparison",
    "RuntimeFigures",
    "SearchReport",
    "SearchTrial",
    "StoredTensor",
    "Timeline",
    "TracedStep",
    "Tuning",
    "VariableGradient",
    "VariantFigures",
    "WeightChange",
    "WideType",
    "gravest_first",
]
