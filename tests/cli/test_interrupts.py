"""Ctrl-C at any time: status 130, no traceback, no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")

PATIENCE_S = 120
METRIC = """\
import os, time
from pathlib import Path
def slow(trial):
    Path(f"cell-{os.getpid()}").touch()
    time.sleep(60)
    return {}
slow.selects = False
"""
GRID = """\
model: upscale:digits
shape: "1,1,8,8"
metric: metric_of_this_test:slow
amount: [0.1, 0.2, 0.3]
"""
# Says on standard error when the first module of torch's is being imported.
LOUD = """\
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.meta_path.remove(self)
            sys.stderr.write("torch\\n")
            sys.stderr.flush()
sys.meta_path.insert(0, Finder())
"""


def begin(arguments: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
    """A program of its own group, as a shell would start it."""
    (cwd / "sitecustomize.py").write_text(LOUD)
    path = os.pathsep.join([str(cwd), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", "upscale", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
        # Whoever runs the tests in the background has interrupts ignored, and children inherit it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def interrupt(running: subprocess.Popen[str], times: int = 1) -> str:
    """Ctrl-C, which a terminal sends to the whole group; what it said on standard error."""
    for _ in range(times):
        os.killpg(running.pid, signal.SIGINT)
        time.sleep(0.01)
    _, told = running.communicate(timeout=PATIENCE_S)
    return told


def assert_ended_well(running: subprocess.Popen[str], told: str) -> None:
    assert running.returncode == 130, told
    assert "Traceback" not in told
    assert "interrupted" in told
    until(lambda: not group(running.pid), f"processes live on: {group(running.pid)}")


def group(leader: int) -> list[str]:
    """The processes of a session, but for those that are dead and not yet buried."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(path.parent.name)
    return found


def until(true: object, said: str, seconds: float = 5.0) -> None:
    assert callable(true)
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, said
        time.sleep(0.01)


@pytest.mark.parametrize("after_s", [0.0, 0.5])
def test_while_torch_is_loaded(after_s: float, tmp_path: Path) -> None:
    with begin(["inspect", "upscale:digits", "--shape", "1,1,8,8"], tmp_path) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "torch\n"
        time.sleep(after_s)
        assert_ended_well(running, interrupt(running))


@pytest.mark.parametrize(("on", "times"), [("local", 1), ("processes", 3)])
def test_while_a_sweep_measures(on: str, times: int, tmp_path: Path) -> None:
    (tmp_path / "metric_of_this_test.py").write_text(METRIC)
    (tmp_path / "grid.yaml").write_text(GRID)
    with begin(["sweep", "grid.yaml", "--on", on, "--workers", "2"], tmp_path) as running:
        begun = 1 if on == "local" else 2
        until(lambda: len(list(tmp_path.glob("cell-*"))) == begun, "it never began", PATIENCE_S)
        assert_ended_well(running, interrupt(running, times))


def test_while_a_sweep_starts_its_workers(tmp_path: Path) -> None:
    (tmp_path / "metric_of_this_test.py").write_text(METRIC)
    (tmp_path / "grid.yaml").write_text(GRID)
    with begin(["sweep", "grid.yaml", "--on", "processes"], tmp_path) as running:
        assert running.stderr is not None
        assert [running.stderr.readline() for _ in range(2)] == ["torch\n", "torch\n"]
        assert_ended_well(running, interrupt(running))


def test_while_code_from_a_string_runs(tmp_path: Path) -> None:
    """Python would end by the signal then, although the interrupt was caught."""
    (tmp_path / "model_of_this_test.py").write_text(
        "import time\ndef build():\n    exec('print(1, flush=True); time.sleep(60)')\n"
    )
    with begin(["inspect", "model_of_this_test:build", "--json"], tmp_path) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "1\n"
        os.killpg(running.pid, signal.SIGINT)
        out, told = running.communicate(timeout=PATIENCE_S)
        assert_ended_well(running, told)
    assert json.loads(out) == {"error": "KeyboardInterrupt", "message": "interrupted"}
