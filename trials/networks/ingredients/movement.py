"""Channels move: chunks, slices, shuffles, padding, repeats."""

from __future__ import annotations

from hypothesis import strategies as st

from trials.networks.draft import WIDEST, Draft, Made, ingredient


@ingredient()
def chunked(d: Draft, t: Made) -> None:
    parts = d.pick(2, 3)
    t = d.fitting(t, parts)
    codes = """
        torch.chunk({t}, {n}, {a})
        {t}.chunk({n}, dim={a})
        torch.split({t}, {s}, {a})
        {t}.tensor_split({n}, {a})
    """
    each = t.channels // parts
    d.let_all(d.one_of(codes, t=t, n=parts, a=t.axis, s=each), t, [each] * parts)


@ingredient()
def split_unevenly(d: Draft, t: Made) -> None:
    if t.channels < 2:
        t = d.layer(t, d.width(2))
    first = d.draw(st.integers(1, t.channels - 1))
    sizes = [first, t.channels - first]
    d.let_all(f"torch.split({t}, {sizes}, dim={t.axis})", t, sizes)


@ingredient()
def sliced(d: Draft, t: Made) -> None:
    c = t.channels
    start = d.draw(st.integers(0, c - 1))
    stop = d.draw(st.integers(start + 1, c))
    step = d.pick(1, 2)
    bounds, left = f"{start}:{stop}:{step}", len(range(start, stop, step))
    if d.pick(False, True):
        d.let(f"{t}.narrow({t.axis}, {start}, {stop - start})", t, stop - start)
    else:
        d.let(f"{t}[:, {bounds}]" if t.axis == 1 else f"{t}[..., {bounds}]", t, left)


@ingredient()
def indexed(d: Draft, t: Made) -> None:
    order = d.draw(st.lists(st.integers(0, t.channels - 1), min_size=1, max_size=WIDEST))
    way = d.pick("list", "index_select", "single")
    if way == "list":
        code = f"{t}[:, {order}]" if t.axis == 1 else f"{t}[..., {order}]"
        d.let(code, t, len(order))
    elif way == "index_select":
        d.let(f"torch.index_select({t}, {t.axis}, torch.tensor({order}))", t, len(order))
    else:
        code = f"{t}[:, {order[0]}].unsqueeze(1)" if t.axis == 1 else f"{t}[..., {order[0]}, None]"
        d.let(code, t, 1)


@ingredient()
def flipped_or_rolled(d: Draft, t: Made) -> None:
    codes = """
        {t}.flip({a})
        torch.roll({t}, 1, dims={a})
        {t}.roll(-2, {a})
        {t} + {t}.flip({a})
    """
    d.let(d.one_of(codes, t=t, a=t.axis), t, t.channels)


@ingredient()
def gated_halves(d: Draft, t: Made) -> None:
    t = d.fitting(t, 2)
    d.do(f"a, b = {t}.chunk(2, {t.axis})")
    code = d.pick("a * b", "F.glu({t}, {a})", "a * b.sigmoid()", "a - b")
    d.let(code.format(t=t, a=t.axis), t, t.channels // 2)


@ingredient("map")
def shuffled(d: Draft, t: Made) -> None:
    groups = d.pick(2, 3)
    t = d.fitting(t, groups)
    if d.pick(False, True):
        d.let(f"{d.own(f'nn.ChannelShuffle({groups})')}({t})", t, t.channels)
        return
    d.do(f"b, c, h, w = {t}.{d.pick('shape', 'size()')}")
    d.do(f"mixed = {t}.view(b, {groups}, c // {groups}, h, w).transpose(1, 2)")
    codes = """
        mixed.contiguous().view(b, c, h, w)
        mixed.reshape(b, c, h, w)
        mixed.reshape(b, -1, h, w)
        mixed.flatten(1, 2)
    """
    d.let(d.one_of(codes), t, t.channels)


@ingredient("map")
def padded_channels(d: Draft, t: Made) -> None:
    before, after = d.draw(st.integers(0, 3)), d.draw(st.integers(0, 3))
    value = d.pick("", "", ", value=1.0")
    pad = f"F.pad({t}, (0, 0, 0, 0, {before}, {after}){value})"
    d.let(pad, t, before + t.channels + after)


@ingredient("map")
def padded_shortcut(d: Draft, t: Made) -> None:
    extra = d.draw(st.integers(1, 3))
    wide = d.layer(t, t.channels + extra)
    d.let(f"{wide} + F.pad({t}, (0, 0, 0, 0, 0, {extra}))", t, wide.channels)


@ingredient()
def repeated(d: Draft, t: Made) -> None:
    sizes = {"map": "1, 2, 1, 1", "rows": "1, 1, 1, 2", "tokens": "1, 1, 2", "vector": "1, 2"}
    t = t if t.channels <= WIDEST else d.layer(t)
    if d.pick(True, False):
        d.let(f"{t}.repeat({sizes[t.kind]})", t, 2 * t.channels)
    else:
        d.let(f"{t}.repeat_interleave(2, {t.axis})", t, 2 * t.channels)
