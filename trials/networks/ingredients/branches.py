"""Branches: residual, dense and inception blocks."""

from __future__ import annotations

from hypothesis import strategies as st

from trials.networks.draft import Draft, Made, ingredient


@ingredient()
def residual(d: Draft, t: Made) -> None:
    inner = d.activated(d.layer(t))
    d.let(f"{t} + {d.projection(inner, t.channels)}({inner})", t, t.channels)


@ingredient()
def residual_chain(d: Draft, t: Made) -> None:
    for _ in range(d.pick(2, 3)):
        inner = d.activated(d.let(f"{d.projection(t, w := d.width())}({t})", t, w))
        t = d.let(f"{t} + {d.projection(inner, t.channels)}({inner})", t, t.channels)


@ingredient("map")
def downsampling_residual(d: Draft, t: Made) -> None:
    if t.level > 1:
        d.layer(t)
        return
    c, o = t.channels, d.width()
    a = d.own(f"nn.Conv2d({c}, {o}, 3, stride=2, padding=1, bias=False)", c)
    b = d.own(f"nn.Conv2d({c}, {o}, 1, stride=2, bias=False)", c)
    norm = d.own(f"nn.BatchNorm2d({o})")
    d.let(f"{norm}({a}({t})).relu() + {b}({t})", t, o, t.level + 1)


@ingredient()
def concatenated(d: Draft, t: Made) -> None:
    parts = [t, *(d.another(t) for _ in range(d.pick(1, 2)))]
    joined = ", ".join(map(str, parts))
    d.let(f"torch.cat([{joined}], {t.axis})", t, sum(p.channels for p in parts))


@ingredient()
def dense(d: Draft, t: Made) -> None:
    parts = [t]
    joined = t
    for _ in range(d.pick(2, 3)):
        parts.append(d.activated(d.layer(joined, d.draw(st.integers(1, 4)))))
        names = ", ".join(map(str, parts))
        channels = sum(p.channels for p in parts)
        joined = d.let(f"torch.cat([{names}], dim={t.axis})", t, channels)


@ingredient()
def concatenated_twice(d: Draft, t: Made) -> None:
    other = d.another(t)
    inner = d.let(f"torch.cat([{t}, {other}], {t.axis})", t, t.channels + other.channels)
    last = d.layer(d.another(t))
    channels = inner.channels + last.channels
    d.let(f"torch.cat([{last}, {inner}], {t.axis})", t, channels)


@ingredient("map")
def inception(d: Draft, t: Made) -> None:
    one, three = d.layer(t), d.layer(d.activated(d.layer(t)))
    pool = d.pick("F.max_pool2d({t}, 3, 1, 1)", "F.avg_pool2d({t}, 3, stride=1, padding=1)")
    pooled = d.layer(d.let(pool.format(t=t), t, t.channels))
    channels = one.channels + three.channels + pooled.channels
    d.let(f"torch.cat([{one}, {three}, {pooled}], dim=1)", t, channels)
