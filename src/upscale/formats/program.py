"""torch.export: a model as the program that formats are made from."""

from __future__ import annotations

import copy
import functools
import inspect
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.fx.graph import _PyTreeCodeGen
from torch.utils._pytree import tree_leaves, tree_map

from upscale.capture import Example, export_turn, two_of_each
from upscale.errors import DeployError
from upscale.model.accepting import ordinary, ordinary_model
from upscale.tools.quiet import unwarned


def exported(
    model: nn.Module, example: Any, *, dynamic_batch: bool, flat: bool = False
) -> ExportedProgram:
    """The program of a model, in the mode it is in.

    If it is `flat` it gives what is in the model's outputs one after the other, but for `None`.
    """
    model, given = ordinary_model(model), Example.of(ordinary(example))
    if dynamic_batch:
        given = two_of_each(given)  # a batch of one would be taken for a size that is fixed
    try:
        bound = inspect.signature(model.forward).bind(*given.args, **given.kwargs)
        with export_turn(), unwarned():
            own = copy.deepcopy(model)  # torch puts tensors of its own into it meanwhile
            return torch.export.export(
                _flattened(own) if flat else own,
                given.args,
                dict(given.kwargs),
                dynamic_shapes=tree_map(_free_batch, bound.arguments) if dynamic_batch else None,
                strict=False,
            )
    except Exception as error:  # the exporter runs the model, and either may raise anything
        asked = " with a free batch (dynamic_batch=False may do)" if dynamic_batch else ""
        raise DeployError(f"torch.export does not take this model{asked}: {error}") from error


def _flattened(model: nn.Module) -> nn.Module:
    """Let a model give its outputs one after the other, without `None`; changed in place."""
    if isinstance(model, fx.GraphModule):  # torch.export runs the graph, whatever forward is
        (last,) = model.graph.find_nodes(op="output")
        last.args = (_without_none(last.args[0]),)
        codegen = model.graph._codegen
        if isinstance(codegen, _PyTreeCodeGen):
            codegen.pytree_info = codegen.pytree_info._replace(out_spec=None)
        model.recompile()
        return model
    forward = model.forward

    @functools.wraps(forward)
    def flat(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return _without_none(forward(*args, **kwargs))

    model.forward = flat
    return model


def _without_none(outputs: Any) -> tuple[Any, ...]:
    return tuple(leaf for leaf in tree_leaves(outputs) if leaf is not None)


def _free_batch(leaf: Any) -> Any:
    return {0: torch.export.Dim.DYNAMIC} if isinstance(leaf, Tensor) and leaf.ndim else None
