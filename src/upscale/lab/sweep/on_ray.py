"""Cells on a Ray cluster, or on a Ray of one machine. Ray is imported when it is asked for."""

from __future__ import annotations

import importlib
import os
import re
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from upscale.errors import UpscaleError
from upscale.lab.sweep.attempts import Job, again_or_lost, attempt, failure, next_job
from upscale.lab.sweep.cells import Cell
from upscale.lab.sweep.deadlines import deadly_deadline
from upscale.lab.sweep.records import Record
from upscale.lab.sweep.trials import Memory
from upscale.tools.optional_packages import import_optional


class RayUnavailable(UpscaleError):
    """There is no Ray where one was looked for, or it has nothing to run on."""


PATIENCE_S = 10.0
WAITING = 2  # tasks for each core that Ray is given ahead of time
_memory = Memory()  # a worker of Ray keeps its process, and with it what the last cell made


def run_ray(
    cells: Sequence[Cell], timed: Sequence[Cell], *, address: str | None, workers: int
) -> Iterator[Record]:
    """Measure cells on every core there is; then those that are timed, one a machine at a time.

    A timed cell takes all cores of its machine. A cell whose worker died is tried once more.
    """
    ray = import_optional("ray", "ray is not installed: pip install ray")
    began = not ray.is_initialized()
    if began:
        _begin(ray, address, workers)
    try:
        run = _Run(ray)
        yield from run.side_by_side(cells)
        yield from run.one_a_machine(timed)
    finally:
        if began:
            ray.shutdown()


def _begin(ray: Any, address: str | None, workers: int) -> None:
    """Go to a cluster, or start a Ray of this machine for as long as the sweep lasts."""
    options: dict[str, Any] = {}
    if address is None:
        options = {"num_cpus": workers, "include_dashboard": False}
        # Ray starts its workers with little priority: anything else would slow what is timed.
        os.environ.setdefault("RAY_worker_niceness", "0")
    elif re.fullmatch(r"[\w.-]+:\d{1,5}", address):
        _knock(address)
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **options)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise RayUnavailable(f"no Ray at {address or 'this machine'}: {told[0]}") from error


def _knock(address: str) -> None:
    """Raise if nobody listens at an address: Ray itself would go on trying for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise RayUnavailable(f"no Ray at {address}: {error}") from error


class _Run:
    """The tasks of one sweep."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._here = ray, str(Path.cwd())
        self._task = ray.remote(max_retries=0)(_attempt)
        self._affinity: Any = importlib.import_module("ray.util.scheduling_strategies")

    def side_by_side(self, cells: Sequence[Cell]) -> Iterator[Record]:
        todo, under_way = deque(Job(cell) for cell in cells), dict[Any, Job]()
        while todo or under_way:
            cores = list(self._nodes().values())
            while todo and len(under_way) < WAITING * max(1, sum(cores)):
                before = next(reversed(under_way.values())).cell if under_way else None
                job = next_job(todo, before)
                under_way[self._send(job, num_cpus=min(job.cell.threads, max(cores)))] = job
            yield from self._received(under_way, todo)

    def one_a_machine(self, cells: Sequence[Cell]) -> Iterator[Record]:
        todo, under_way = deque(Job(cell) for cell in cells), dict[Any, Job]()
        at: dict[str, Any] = {}
        while todo or under_way:
            for node, cores in self._nodes().items():
                if todo and at.get(node) not in under_way:
                    job = todo.popleft()
                    there = self._affinity.NodeAffinitySchedulingStrategy(node, soft=False)
                    at[node] = self._send(job, num_cpus=cores, scheduling_strategy=there)
                    under_way[at[node]] = job
            yield from self._received(under_way, todo)

    def _nodes(self) -> dict[str, int]:
        """The machines that are there, and how many cores each has."""
        found = {
            node["NodeID"]: cores
            for node in self._ray.nodes()
            if node["Alive"] and (cores := int(node["Resources"].get("CPU", 0))) > 0
        }
        if not found:
            raise RayUnavailable("this Ray has no machine with a core to run on")
        return found

    def _send(self, job: Job, **options: Any) -> Any:
        return self._task.options(**options).remote(job, self._here)

    def _received(self, under_way: dict[Any, Job], todo: deque[Job]) -> Iterator[Record]:
        """What the next tasks to finish give; of those that were lost, the job once more."""
        ray = self._ray
        ready, _ = ray.wait(list(under_way), num_returns=1)
        for task in ready:
            job = under_way.pop(task)
            try:
                yield ray.get(task)
            except ray.exceptions.RayTaskError as error:
                yield failure(job, error, 0.0, 0.0)
            except ray.exceptions.RayError as error:
                yield from again_or_lost(job, todo, type(error).__name__)


def _attempt(job: Job, here: str) -> Record:
    """What runs on a worker of Ray: in the directory of the sweep, if the machine has it."""
    if Path(here).is_dir():
        os.chdir(here)
    return attempt(job, _memory, limit=deadly_deadline)
