"""Frozen data that the rest of kerasmem passes around and reports read."""

from kerasmem.records.activation_range import ActivationRange
from kerasmem.records.change import WeightChange
from kerasmem.records.contents import FileContents, StoredTensor
from kerasmem.records.device_settings import CardStatus, DeviceStatus
from kerasmem.records.estimate import (
    ESTIMATE_CATEGORIES,
    EstimatePart,
    MemoryEstimate,
)
from kerasmem.records.export import ExportReport
from kerasmem.records.figures import CompressionReport, ModelFigures
from kerasmem.records.finding import SEVERITIES, Finding, gravest_first
from kerasmem.records.gradient import GradientRecord, VariableGradient
from kerasmem.records.memory import DeviceReading, HostReading, MemoryRecord
from kerasmem.records.pipeline import DataMemory, PipelineStage
from kerasmem.records.post_mortem import CAUSES, Cause, PostMortem, Remedy
from kerasmem.records.run import Run, RunInfo
from kerasmem.records.runtimes import (
    BatchTime,
    RuntimeAdvice,
    RuntimeComparison,
    RuntimeFigures,
)
from kerasmem.records.search import SearchReport, SearchTrial
from kerasmem.records.timeline import CATEGORIES, PHASES, Block, Timeline
from kerasmem.records.tuning import (
    MEASURED,
    OddSize,
    Retrace,
    TracedStep,
    Tuning,
    VariantFigures,
)
from kerasmem.records.wide_type import WideType

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
