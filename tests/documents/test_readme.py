"""What the README shows runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[2] / "README.md"


def test_the_readmes_python_runs_and_exports_what_it_masks() -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL):
        exec(block, names)
    images = names["images"][:8]
    exported, masked = names["pruned"](images), names["masked"](images)
    assert (exported - masked).abs().max() <= 1e-4 * masked.abs().max()


def test_every_file_the_readme_links_is_there() -> None:
    linked = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert linked
    for path in linked:
        assert (README.parent / path).exists(), path
