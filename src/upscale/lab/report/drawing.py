"""Drawing: rows become an SVG that needs nothing else. Values in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from upscale.lab.report.rows import Read, Reader, Rows

# Pixels. A line holds names and, twice, a panel of cells with room for a remark behind it.
WIDTH, MARGIN = 880, 24
NAMES, PANEL, REMARK = 174, 246, 80
LINE, CELL, WIDEST_CELL = 17, 11, 18
ROOM_FOR_NUMBERS, ROOM_FOR_GAPS = 12, 3
LETTER = 6.1
MOST_READERS = 30
PANELS = (MARGIN + NAMES, MARGIN + NAMES + PANEL + REMARK)

# Blue and vermilion are told apart by the colour-blind too; a copy is marked in words as well.
STYLE = """\
text { font: 11px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f }
.head { font-size: 15px; font-weight: 600 }
.strong { font-size: 12px; font-weight: 600 }
.faint { fill: #66707a }
.reader { text-anchor: end }
.operation { text-anchor: end; font-style: italic; fill: #66707a }
.aside { font-style: italic; fill: #66707a }
.number { font-size: 8px; text-anchor: middle; fill: #66707a }
.remark { font-size: 10px; fill: #66707a }
.copied { font-size: 10px; fill: #a8480c }
.paper { fill: #fdfdfc; stroke: #d8dee4 }
.unread { fill: #e3e8ec }
.away { fill: #c4ccd3 }
.slice { fill: #3d83b5 }
.copy { fill: #dd7f45 }
.join { fill: #87919c }"""


def draw(tensors: Sequence[Rows], *, name: str, left_out: Sequence[Rows] = ()) -> str:
    """An SVG of tensors one below the other: left their own order, right the plan's.

    Those left out are counted, not drawn.
    """
    head = f"{name}: {_copies((*tensors, *left_out))}"
    body = [_text(MARGIN, 38, head, "head"), *_legend(tensors)]
    bottom = 66
    for rows in tensors:
        body += _tensor(rows, bottom + 24)
        bottom += 24 + _height(rows)
    if left_out or not tensors:
        bottom += 28
        rest = f"Not drawn: {len(left_out)} more, where {_copies(left_out)}."
        none = "No tensor has readers that keep different channels."
        body.append(_text(MARGIN, bottom, rest if left_out else none, "faint"))
    height = bottom + MARGIN
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" '
        'aria-labelledby="upscale-title upscale-desc">',
        f'<title id="upscale-title">{escape(head)}</title>',
        f'<desc id="upscale-desc">{escape(_description(tensors))}</desc>',
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="paper" x="0.5" y="0.5" rx="8" width="{WIDTH - 1}" height="{height - 1}"/>',
        *body,
        "</svg>\n",
    )
    return "\n".join(lines)


def _description(tensors: Sequence[Rows]) -> str:
    meaning = "One row a reader, one column a channel; filled cells are the channels it keeps."
    told = (
        f"{', '.join(rows.producers)}: {len(rows.before)} channels, {len(rows.readers)} readers, "
        f"of which {rows.copies_before} copy before and {rows.copies_after} after."
        for rows in tensors
    )
    return " ".join((meaning, *told))


def _copies(tensors: Sequence[Rows]) -> str:
    """How many reads copy; one that joins several tensors counts once."""
    readers = [reader for rows in tensors for reader in rows.readers]
    before = len({(r.node, r.value) for r in readers if r.before.copies})
    after = len({(r.node, r.value) for r in readers if r.after.copies})
    copy = "read copies" if before == 1 else "reads copy"
    return f"{before} {copy} before ordering, {after} after"


def _legend(tensors: Sequence[Rows]) -> Iterator[str]:
    """What the colours that occur stand for."""
    readers = [reader for rows in tensors for reader in rows.readers]
    styles = {_style(read) for reader in readers for read in (reader.before, reader.after)}
    meanings = {
        "slice": "read as a slice",
        "copy": "copied",
        "join": "concatenated",
        "unread": "there, not read",
        "away": "no longer there",
    }
    x = MARGIN
    for style, meaning in meanings.items():
        if style in styles or style in ("unread", "away"):
            box = _box(x, 60, CELL, 1) if style == "away" else _box(x, 55, CELL)
            yield f'<path class="{style}" d="{box}"/>'
            yield _text(x + CELL + 6, 64, meaning, "faint")
            x += CELL + 6 + round(LETTER * len(meaning)) + 14
    if not all(reader.is_layer for reader in readers):
        yield _text(x, 64, "in italics: not a layer", "aside")


def _height(rows: Rows) -> int:
    lines = min(len(rows.readers), MOST_READERS + 1)
    return 42 + 12 * (_cell_width(rows) >= ROOM_FOR_NUMBERS) + LINE * lines


def _cell_width(rows: Rows) -> float:
    return min(WIDEST_CELL, PANEL / max(1, len(rows.before)))


def _tensor(rows: Rows, top: int) -> Iterator[str]:
    """One tensor's title, and a panel for each order."""
    segment = "" if rows.segment is None else f"segment {rows.segment}: "
    title = _shortened(segment + ", ".join(rows.producers), 2 * WIDTH // 15)
    yield _text(MARGIN, top + 10, title, "strong")
    still = f"{len(rows.before)} of {rows.channels} channels left"
    yield _text(MARGIN, top + 30, still, "faint")
    width = _cell_width(rows)
    first = top + 42 + 12 * (width >= ROOM_FOR_NUMBERS)
    readers = _most_telling(rows.readers)
    for line, reader in enumerate(readers):
        kind = "reader" if reader.is_layer else "operation"
        name = _shortened(reader.name, int((NAMES - 10) / LETTER), keep_end=True)
        yield _text(PANELS[0] - 10, first + LINE * line + 9, name, kind)
    if len(readers) < len(rows.readers):
        more = f"and {len(rows.readers) - len(readers)} more"
        yield _text(PANELS[0] - 10, first + LINE * len(readers) + 9, more, "operation")
    for x, order, when, copies in (
        (PANELS[0], rows.before, "before", rows.copies_before),
        (PANELS[1], rows.after, "after", rows.copies_after),
    ):
        yield _text(x, top + 30, f"{when}: {copies} cop{'y' if copies == 1 else 'ies'}", "strong")
        if width >= ROOM_FOR_NUMBERS:
            for at, channel in enumerate(order):
                yield _text(x + (at + 0.5) * width - 0.5, first - 4, str(channel), "number")
        for line, reader in enumerate(readers):
            read = reader.before if when == "before" else reader.after
            yield from _row(x, first + LINE * line, width, order, reader, read)


def _most_telling(readers: Sequence[Reader]) -> list[Reader]:
    """As many readers as are drawn, those that copy before all others, as the model runs."""
    copies = [reader.before.copies + 2 * reader.after.copies for reader in readers]
    by_copies = sorted(range(len(readers)), key=lambda at: -copies[at])
    return [readers[at] for at in sorted(by_copies[:MOST_READERS])]


def _row(
    x: float, y: float, width: float, order: Sequence[int], reader: Reader, read: Read
) -> Iterator[str]:
    """The cells of one reader, and a remark if its channels are not side by side."""
    kept = reader.kept if read.kind != "gone" else frozenset()

    def style(channel: int) -> str:
        there = "unread" if channel in reader.held else "away"
        return _style(read) if channel in kept else there

    gap = 1 if width >= ROOM_FOR_GAPS else 0
    boxes: dict[str, list[str]] = {"away": [], "unread": [], _style(read): []}
    at = x
    for alike, channels in groupby(order, style):
        # Cells too narrow for a gap between them run into each other anyway.
        cells = [width - gap] * len(tuple(channels))
        for cell in cells if gap else [sum(cells)]:
            line = _box(at, y + CELL // 2, cell, 1)
            boxes[alike].append(line if alike == "away" else _box(at, y, cell))
            at += cell + gap
    for alike, drawn in boxes.items():
        if drawn:
            yield f'<path class="{alike}" d="{"".join(drawn)}"/>'
    if remark := _remark(read):
        kind = "copied" if read.copies else "remark"
        yield _text(x + width * len(order) + 6, y + 9, remark, kind)


def _style(read: Read) -> str:
    if read.copies:
        return "copy"
    return "join" if read.kind == "concat" else "slice"


def _remark(read: Read) -> str:
    if read.kind == "gone":
        return "not built"
    if read.runs is None:
        return "copy, joined" if read.copies else ""
    stretches = f"{read.runs} run{'' if read.runs == 1 else 's'}"
    if read.copies:
        return f"copy: {stretches}"
    return stretches if read.runs > 1 else ""


def _box(x: float, y: float, width: float, height: float = CELL) -> str:
    across = _number(width)
    return f"M{_number(x)} {_number(y)}h{across}v{_number(height)}h-{across}z"


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{_number(x)}" y="{_number(y)}">{escape(text)}</text>'


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _shortened(text: str, most: int, *, keep_end: bool = False) -> str:
    if len(text) <= most:
        return text
    return "…" + text[1 - most :] if keep_end else text[: most - 1] + "…"
