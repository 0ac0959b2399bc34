"""Put the recorded results into the documents' page of them: `python -m paper.page`.

A line `<!-- results: gain_by_model -->` in `docs/reproduction.md` is followed by what
`paper/results/gain_by_model.md` says, up to `<!-- end -->`; after `<!-- results: tradeoff 3-6 -->`
stand only the third to the sixth of its paragraphs.
"""

from __future__ import annotations

import re
from pathlib import Path

from paper.common import ROOT

PAGE, RESULTS = ROOT / "docs" / "reproduction.md", ROOT / "paper" / "results"
PLACE = re.compile(r"(<!-- results: (\w+)(?: (\d+)-(\d+))? -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, results: Path) -> str:
    """A page with each result as it was printed, less the line about its figure."""

    def put(found: re.Match[str]) -> str:
        begin, name, first, last, end = found.groups()
        text = (results / f"{name}.md").read_text(encoding="utf-8")
        told = [own for own in text.strip().split("\n\n") if not own.startswith("Drawn: ")]
        if first is not None:
            told = told[int(first) - 1 : int(last)]
        return "\n\n".join([begin.rstrip(), *told, end])

    return PLACE.sub(put, page)


def main() -> int:
    """Fill the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
    print(f"Filled: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
