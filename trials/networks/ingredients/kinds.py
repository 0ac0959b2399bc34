"""Between kinds of tensors: maps, rows, tokens, vectors."""

from __future__ import annotations

from trials.networks.draft import Draft, Made, ingredient


@ingredient("map", often=3)
def to_rows(d: Draft, t: Made) -> None:
    rows = d.let_kind(f"{t}.permute(0, 2, 3, 1)", "rows", t.channels, t.level)
    d.layer(d.normalised(rows) if d.pick(True, False) else rows)


@ingredient("rows")
def from_rows(d: Draft, t: Made) -> None:
    codes = """
        {t}.permute(0, 3, 1, 2)
        {t}.permute(0, 3, 1, 2).contiguous()
        {t}.movedim(-1, 1)
    """
    d.let_kind(d.one_of(codes, t=t), "map", t.channels, t.level)


@ingredient("map", often=3)
def to_tokens(d: Draft, t: Made) -> None:
    codes = """
        {t}.flatten(2).transpose(1, 2)
        {t}.view({t}.size(0), {t}.size(1), -1).permute(0, 2, 1)
    """
    d.let_kind(d.one_of(codes, t=t), "tokens", t.channels, t.level)


@ingredient("tokens")
def from_tokens(d: Draft, t: Made) -> None:
    sizes = next((m for m in d.made if (m.kind, m.level) == ("map", t.level)), None)
    if sizes is None:
        d.layer(t)
        return
    d.do(f"b, n, c = {t}.shape")
    d.do(f"_, _, h, w = {sizes}.shape")
    codes = """
        {t}.transpose(1, 2).reshape(b, c, h, w)
        {t}.view(b, h, w, c).permute(0, 3, 1, 2)
        {t}.transpose(1, 2).unflatten(2, (h, w))
    """
    d.let_kind(d.one_of(codes, t=t), "map", t.channels, t.level)


@ingredient("map", "rows", "tokens")
def to_vector(d: Draft, t: Made) -> None:
    c = t.channels
    if t.kind == "tokens":
        d.let_kind(d.pick(f"{t}.mean(1)", f"{t}[:, 0]"), "vector", c, 0)
    elif t.kind == "rows":
        d.let_kind(f"{t}.mean((1, 2))", "vector", c, 0)
    elif d.pick(True, False):
        means = (f"{t}.mean((2, 3))", f"{t}.amax((2, 3))", f"{t}.flatten(2).mean(-1)")
        d.let_kind(d.pick(*means), "vector", c, 0)
    else:
        codes = """
            F.adaptive_avg_pool2d({t}, 2).flatten(1)
            F.adaptive_avg_pool2d({t}, 2).reshape({t}.shape[0], -1)
            torch.flatten(F.adaptive_avg_pool2d({t}, 2).permute(0, 2, 3, 1), 1)
        """
        d.let_kind(d.one_of(codes, t=t), "vector", 4 * c, 0)


@ingredient("vector")
def scaled_map(d: Draft, t: Made) -> None:
    maps = [m for m in reversed(d.made) if m.kind == "map"]
    if not maps:
        d.layer(t)
        return
    m = d.pick(*maps)
    scale = t if t.channels == m.channels else d.layer(t, m.channels)
    d.let(f"{m} {d.pick('*', '+')} {scale}[:, :, None, None]", m, m.channels)


@ingredient("rows", "tokens", "vector")
def multilayer_perceptron(d: Draft, t: Made) -> None:
    up, wide = d.linear(t.channels, w := d.width()), w
    inner = d.let(f"F.gelu({up}({d.normalised(t)}))", t, wide)
    d.let(f"{t} + {d.linear(wide, t.channels)}({inner})", t, t.channels)
