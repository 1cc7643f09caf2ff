"""The intermediate representation: one graph of typed nodes, in five stages of lowering."""

from heliograph.ir.builder import Builder
from heliograph.ir.location import UNKNOWN, Location
from heliograph.ir.node import (
    Array,
    Attr,
    Constant,
    ConstantName,
    Matrix,
    Node,
    OpaqueConstant,
    SparseMatrix,
    Stage,
    shape_of,
    size_of,
)
from heliograph.ir.program import Program
from heliograph.ir.types import CipherType, SlotsType, TensorType, Type

__all__ = [
    "UNKNOWN",
    "Array",
    "Attr",
    "Builder",
    "CipherType",
    "Constant",
    "ConstantName",
    "Location",
    "Matrix",
    "Node",
    "OpaqueConstant",
    "Program",
    "SlotsType",
    "SparseMatrix",
    "Stage",
    "TensorType",
    "Type",
    "shape_of",
    "size_of",
]
