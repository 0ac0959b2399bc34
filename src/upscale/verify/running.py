"""Running a model to compare it: a copy of it, in a chosen precision, watched as it runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from upscale.capture import Example, OwnDraws, leaves_of, unwarned
from upscale.verify.tensors import is_inexact

COMPLEX = {
    torch.float64: torch.complex128,
    torch.float32: torch.complex64,
    torch.float16: torch.complex32,
}


Precision = torch.dtype | None  # None is a model's own


def in_precision(tensor: Tensor, precision: Precision) -> Tensor:
    """A floating or complex tensor in a precision; all else, and all without one, as it is."""
    if precision is None or not is_inexact(tensor):
        return tensor
    return tensor.to(COMPLEX[precision] if tensor.is_complex() else precision)


def tensors_of(result: Any) -> list[Tensor]:
    """Every tensor and number in what a model returned, also within dataclasses and mappings."""
    return [
        leaf if isinstance(leaf, Tensor) else torch.tensor(leaf)
        for leaf in leaves_of(result)
        if isinstance(leaf, (Tensor, bool, int, float, complex))
    ]


class WriteWatch(TorchDispatchMode):
    """Sees, while a model runs, whether it rounds to less precision than it is given, how coarse
    its numbers become, and whether it draws some at random."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.narrows = False
        self.draws = False
        self.eps = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [*_eps(args), *_eps(kwargs)]
        self.draws |= torch.Tag.nondeterministic_seeded in func.tags
        result = func(*args, **kwargs)
        made = _eps(result)
        self.eps = max(self.eps, *made, 0.0)
        # The widest input counts: what was float32 before may well stay so.
        self.narrows |= bool(given and made) and max(made) > min(given)
        return result


def _eps(values: Any) -> list[float]:
    """How coarse each floating or complex tensor among some values is; quick, as it runs often."""
    if isinstance(values, Tensor):
        return [torch.finfo(values.dtype).eps] if is_inexact(values) else []
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        return []
    return [eps for value in values for eps in _eps(value)]


class Runner:
    """A copy of a model in some precision, or its own; on leaving, its weights are let go of."""

    def __init__(self, model: nn.Module, precision: Precision) -> None:
        self.precision = precision
        self.watch = WriteWatch()
        self._calls = 0
        self.source, self.model = model, _copied(model, precision)
        for module in self.model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()  # its noise depends on how many channels there are
        self.weights = dict(self.model.named_parameters())
        self.at_first = self.buffers()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exception: object) -> None:
        # Graph modules lie in reference cycles: their wide weights would stay for a while.
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            tensor.data = tensor.new_empty(0)

    def call(self, example: Example, *, again: bool = False, graded: bool = False) -> list[Tensor]:
        """What the copy returns; `again` is a call that repeats the one before. Nothing is kept
        for gradients of one that is not `graded`.

        What it draws at random depends on how many calls were made, and on nothing else.
        """
        self._calls += not again
        given = example.map(lambda leaf: in_precision(leaf, self.precision))
        first = self._calls == 1 and not again
        # A graph module's own call prints the code around an error; here errors are expected.
        plainly = isinstance(self.model, fx.GraphModule)
        call = partial(nn.Module.__call__, self.model) if plainly else self.model
        with torch.set_grad_enabled(graded), ExitStack() as modes:
            # A mode looks at every operation, which takes time: later calls go without.
            if first:
                modes.enter_context(self.watch)
            if first or self.watch.draws:
                modes.enter_context(OwnDraws(self._calls))
            own = given.copied()
            with torch.inference_mode(False):
                return tensors_of(call(*own.args, **own.kwargs))

    def buffers(self) -> dict[str, Tensor]:
        """The buffers as they are now, by name."""
        return {name: own.detach().clone() for name, own in self.model.named_buffers()}

    def restore(self, buffers: Mapping[str, Tensor]) -> None:
        """Put buffers back to what they were."""
        for name, saved in buffers.items():
            owner, _, last = name.rpartition(".")
            own = self.model.get_submodule(owner)._buffers
            now = own.get(last)
            if now is not None and now.shape == saved.shape and not now.requires_grad:
                now.detach().copy_(saved)
            else:
                own[last] = saved.clone()

    def settle(self) -> None:
        """Cut what a call wrote to buffers off from the gradients of that call."""
        for module in self.model.modules():
            for name, own in module._buffers.items():
                if own is not None and own.requires_grad:
                    module._buffers[name] = own.detach()

    def disturb(self, names: Sequence[str], by: float, seed: int) -> None:
        """Change weights at random, each number by a share of itself."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name in names:
                if is_inexact(own := self.weights[name]):
                    own.mul_(1 + by * signs(own, generator))

    def reset(self, names: Sequence[str]) -> None:
        """Give disturbed weights the values of the model that this is a copy of."""
        with torch.no_grad():
            for name in names:
                self.weights[name].copy_(self.source.get_parameter(name))


def signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Ones and minus ones at random, in the shape and precision of a tensor."""
    drawn = torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int8)
    return (2 * drawn - 1).to(like)


def _copied(model: nn.Module, precision: Precision) -> nn.Module:
    memo: dict[int, Any] = {}
    with torch.inference_mode(False):
        for own in (*model.parameters(), *model.buffers()):
            wide = in_precision(own.detach(), precision)
            wide = wide.clone() if wide.dtype == own.dtype else wide
            # Copied into the precision at once: there is no room for both of a large model.
            if type(own) is nn.Parameter:
                memo[id(own)] = nn.Parameter(wide, requires_grad=False)
            elif type(own) is Tensor:
                memo[id(own)] = wide
        if isinstance(model, fx.GraphModule):
            # Its class holds its code; its graph takes long to copy, and nobody changes it here.
            memo |= {id(held): held for held in (model.graph, model.meta)}
            twin: nn.Module = object.__new__(type(model))
            memo[id(model)] = twin
            # Copying one that takes nested inputs makes torch warn of its own code.
            with unwarned(FutureWarning):
                twin.__dict__ = copy.deepcopy(vars(model), memo)
        else:
            twin = copy.deepcopy(model, memo)
        if precision is not None:
            twin._apply(lambda own: in_precision(own, precision))
    return twin.requires_grad_(False)
