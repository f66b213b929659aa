"""Results of measurements: frozen records that measuring functions return and reports print.

Records hold only plain numbers and text, so equal records give identical reports, byte for byte. Quantities
carry their unit in the name: ``_db`` decibels, ``_bytes``, ``_fraction`` of all values.
"""

from fewbits.records.benchmark import (
    BenchmarkReport,
    BenchmarkRun,
    EnergyProxy,
    Evaluation,
    LogCheck,
    RecipeResult,
)
from fewbits.records.casting import CastFormat, CastReport, CastTensor
from fewbits.records.checkpoint import CheckpointReport, TensorScore, TensorSummary
from fewbits.records.comparison import LayerScore, TaskScore
from fewbits.records.error import Error
from fewbits.records.exploring import (
    Exploration,
    ExploredData,
    ExploredFormat,
    ExploredFront,
    Finalist,
    FormatChoice,
    FrontSensitivity,
    PlacedFormat,
)
from fewbits.records.inspection import InspectedTensor, InspectReport
from fewbits.records.planning import (
    Machine,
    MachineLink,
    PlannedEdge,
    PlannedLayer,
    PlannedStrategy,
    PlanRecord,
)
from fewbits.records.precision import RanPrecision
from fewbits.records.profiling import FlameNode, MachineLimits, ProfiledOperation, StepProfile
from fewbits.records.provenance import Provenance
from fewbits.records.pruning import PrunedModel, PrunedProduct, PrunedTensor, PruneReport, PruneStage
from fewbits.records.ptq import QuantizedLayer, QuantizeReport
from fewbits.records.scaling import (
    CodecComparison,
    CodecLimit,
    CodecRates,
    CodecScore,
    PredictedStep,
    Prediction,
    StepTime,
)
from fewbits.records.solving import MatrixScore, SolveScore, Stage
from fewbits.records.subbands import BandShares
from fewbits.records.training import TrainRun

__all__ = [
    "BandShares",
    "BenchmarkReport",
    "BenchmarkRun",
    "CastFormat",
    "CastReport",
    "CastTensor",
    "CheckpointReport",
    "CodecComparison",
    "CodecLimit",
    "CodecRates",
    "CodecScore",
    "EnergyProxy",
    "Error",
    "Evaluation",
    "Exploration",
    "ExploredData",
    "ExploredFormat",
    "ExploredFront",
    "Finalist",
    "FlameNode",
    "FormatChoice",
    "FrontSensitivity",
    "InspectReport",
    "InspectedTensor",
    "LayerScore",
    "LogCheck",
    "Machine",
    "MachineLimits",
    "MachineLink",
    "MatrixScore",
    "PlacedFormat",
    "PlanRecord",
    "PlannedEdge",
    "PlannedLayer",
    "PlannedStrategy",
    "PredictedStep",
    "Prediction",
    "ProfiledOperation",
    "Provenance",
    "PruneReport",
    "PruneStage",
    "PrunedModel",
    "PrunedProduct",
    "PrunedTensor",
    "QuantizeReport",
    "QuantizedLayer",
    "RanPrecision",
    "RecipeResult",
    "SolveScore",
    "Stage",
    "StepProfile",
    "StepTime",
    "TaskScore",
    "TensorScore",
    "TensorSummary",
    "TrainRun",
]
