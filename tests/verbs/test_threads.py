"""Threads: captures take turns, and whoever serves or traces beside them notices nothing."""

from __future__ import annotations

import copy
import gc
import inspect
import linecache
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx import graph_module

import upscale
from trials.exactly import exported_exactly
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS
from upscale.capture import Example, collector_paused, turn
from upscale.capture.export_trace import program_of, trace_program
from upscale.targets.runtime import computing_on
from upscale.tools.own_draws import OwnDraws
from upscale.tools.quiet import unwarned


class Deciding(nn.Module):
    """A decision on a size, which only torch.export captures."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 2:
            x = nn.functional.pad(x, (0, 1))
        made: Tensor = self.last(self.first(x).relu())
        return made


@contextmanager
def serving(model: nn.Module, x: Tensor) -> Iterator[list[str]]:
    """Run a model over and over in another thread; what it gets wrong is in the list."""
    with torch.no_grad():
        expected = model(x)
    wrong: list[str] = []
    over, answered = threading.Event(), threading.Event()

    def serve() -> None:
        with torch.no_grad():
            while not over.is_set():
                try:
                    if not torch.equal(model(x), expected):
                        wrong.append("another answer")
                except Exception as error:  # whatever it is, it must not be
                    wrong.append(repr(error))
                answered.set()

    thread = threading.Thread(target=serve)
    thread.start()
    answered.wait()
    try:
        yield wrong
    finally:
        over.set()
        thread.join()


def at_once(*jobs: Callable[[], Any]) -> list[Any]:
    """What jobs return that all start together, each in a thread."""
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], Any]) -> Any:
        start.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [each.result() for each in [pool.submit(run, job) for job in jobs]]


def settings() -> tuple[Any, ...]:
    return (
        # Where torch sets filters aside and puts them back, one that is over may stay.
        [own for own in warnings.filters if not getattr(own[1], "over", False)],
        gc.isenabled(),
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
        torch._C._get_mkldnn_enabled(),
        bool(torch.compiler.is_compiling()),
        bool(fx._symbolic_trace.is_fx_tracing()),
        nn.Module.__call__,
        nn.Module.__getattr__,
    )


def test_four_threads_prune_at_once_exactly_and_leave_every_setting_as_it_was() -> None:
    torch.manual_seed(0)
    names = ("Residual", "Inception", "Shuffle", "Dense")
    models = {name: calm(NETS[name][0]()).double() for name in names}
    before = settings()

    def prune(name: str) -> None:
        model, example = models[name], NETS[name][1]
        for seed in range(3):
            given = lambda b, s: example(b, s).double()  # noqa: E731
            exported_exactly(model, [random_selection(model, 0.4, seed)], given, "optimal")

    state = torch.get_rng_state()
    at_once(*(lambda name=name: prune(name) for name in names))
    torch.set_rng_state(state)  # the examples were drawn here
    assert settings() == before


@pytest.mark.parametrize("kind", ["Residual", "Deciding"], ids=["by fx", "by export"])
def test_models_that_serve_beside_a_prune_never_fail(kind: str) -> None:
    torch.manual_seed(0)
    pruned = (Deciding if kind == "Deciding" else NETS[kind][0])().eval()
    x = torch.randn(2, 3, 12, 12)
    attention = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    before = settings()
    with serving(pruned, x) as one, serving(attention, torch.ones(2, 5, 16)) as two:
        for _ in range(1 if kind == "Deciding" else 5):
            upscale.prune(pruned, x, amount=0.3)
    assert (one, two) == ([], [])
    assert settings() == before


def test_a_trace_of_ones_own_beside_a_prune_is_what_it_is_alone() -> None:
    torch.manual_seed(0)
    model, other = NETS["Residual"][0]().eval(), NETS["Dense"][0]().eval()
    x = torch.randn(2, 3, 12, 12)
    alone = fx.symbolic_trace(other).code
    called = nn.Module.__call__

    def trace() -> set[str]:
        return {fx.symbolic_trace(other).code for _ in range(30)}

    def prune() -> None:
        for _ in range(3):
            upscale.prune(model, x, amount=0.3)

    assert at_once(trace, prune, trace)[::2] == [{alone}, {alone}]
    assert nn.Module.__call__ is called


def test_an_export_puts_nothing_into_the_model_itself() -> None:
    seen = []

    class Watched(Deciding):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(type(model.first.weight))
            return super().forward(x)

    model = Watched().eval()
    trace_program(model, program_of(model, Example.of(torch.randn(2, 3, 8, 8))))
    assert set(seen) == {nn.Parameter}


def test_a_turn_can_be_taken_within_a_turn_and_keeps_others_waiting() -> None:
    entered = threading.Event()

    def enter() -> None:
        with turn():
            entered.set()

    with turn(), turn():
        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(0.05)
    thread.join()
    assert entered.is_set()


def test_warnings_are_kept_quiet_in_one_thread_alone() -> None:
    def warned() -> int:
        with warnings.catch_warnings(record=True) as told:
            warnings.warn("something", UserWarning, stacklevel=1)
        return len(told)

    before = list(warnings.filters)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with unwarned():
            assert warned() == 0
            assert at_once(warned) == [1]
        assert warned() == 1
    assert warnings.filters == before


def test_filters_that_were_set_aside_meanwhile_hush_nothing_when_they_come_back() -> None:
    before = list(warnings.filters)
    theirs = warnings.catch_warnings()
    with unwarned():
        theirs.__enter__()
    theirs.__exit__(None, None, None)
    with pytest.raises(UserWarning):
        warnings.warn("heard", UserWarning, stacklevel=1)
    warnings.filters[:] = before


def test_what_a_thread_draws_does_not_depend_on_a_verification_beside_it() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            made: Tensor = self.last(h + torch.randn_like(h[..., :1]))
            return made

    before = torch.get_rng_state()
    upscale.prune(Noisy(), torch.ones(1, 4), amount=0.3)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    Noisy()
    assert torch.equal(torch.get_rng_state(), after)


def test_own_draws_go_on_from_draw_to_draw_and_restart() -> None:
    with OwnDraws() as draws:
        first, second = torch.rand(2), torch.rand(2)
        draws.restart()
        again = torch.rand(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_the_collector_runs_on_beside_other_threads() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        with collector_paused():
            assert gc.isenabled()
    assert gc.isenabled()


def test_two_that_set_torchs_threads_at_once_leave_them_as_they_were() -> None:
    before = torch.get_num_threads()

    def measure() -> None:
        for _ in range(50):
            with computing_on(2):
                assert torch.get_num_threads() == 2

    at_once(measure, measure)
    assert torch.get_num_threads() == before


def test_data_is_run_through_a_copy_of_the_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2)).train()
    modes = []

    def batches() -> Iterator[Tensor]:
        for _ in range(2):
            modes.append((model.training, len(model[2]._forward_pre_hooks)))
            yield torch.randn(3, 4)

    upscale.select(model, torch.ones(1, 4), amount=0.5, importance="activation", data=batches())
    assert set(modes) == {(True, 0)}


def test_the_text_of_generated_code_goes_with_the_code() -> None:
    def texts() -> set[str]:
        gc.collect()
        known = set(graph_module._loader.eval_cache)
        assert known >= {name for name in linecache.cache if name.startswith("<eval_with_key>")}
        return known

    model, x = NETS["Residual"][0]().eval(), torch.randn(2, 3, 12, 12)
    before = texts()
    pruned = upscale.prune(model, x, amount=0.3)
    twin = copy.deepcopy(pruned)
    assert len(texts() - before) == 2
    del pruned
    assert len(texts() - before) == 1
    assert inspect.getsource(type(twin).forward).startswith("def forward(self")
    del twin
    assert texts() <= before
