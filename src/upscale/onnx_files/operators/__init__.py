"""Operators: one table, one entry for each, in the file of its like."""

# They fill the table.
from upscale.onnx_files.operators import (  # noqa: F401
    layers,
    move,
    pointwise,
    pool,
    products,
    recurrent,
    reduce,
    resize,
    shapes,
)
