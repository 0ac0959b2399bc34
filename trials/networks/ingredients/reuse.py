"""Reuse: modules called twice, weights and parameters that are shared."""

from __future__ import annotations

from trials.networks.draft import Draft, Made, ingredient


@ingredient()
def called_twice(d: Draft, t: Made) -> None:
    again = d.projection(t, t.channels)
    inner = d.activated(d.let(f"{again}({t})", t, t.channels))
    d.let(f"{again}({inner})", t, t.channels)


@ingredient()
def called_on_two(d: Draft, t: Made) -> None:
    o, other = d.width(), d.partner(t)
    both = d.projection(t, o)
    one = d.let(f"{both}({t})", t, o)
    d.let(f"{one} {d.pick('+', '*')} {both}({other})", t, o)


@ingredient()
def norm_twice(d: Draft, t: Made) -> None:
    c = t.channels
    kinds = {"map": f"nn.BatchNorm2d({c})", "vector": f"nn.BatchNorm1d({c})"}
    norm = d.own(kinds.get(t.kind, f"nn.LayerNorm({c}, eps=0.1)"))
    one, other = d.let(f"{norm}({t})", t, c), d.partner(t)
    d.let(f"{norm}({other})", t, c)
    d.layer(one)


@ingredient()
def shared_weight(d: Draft, t: Made) -> None:
    o, other = d.width(), d.partner(t)
    make = (
        f"nn.Conv2d({t.channels}, {o}, 1)" if t.kind == "map" else f"nn.Linear({t.channels}, {o})"
    )
    one, two = d.own(make, t.channels), d.own(make, t.channels)
    d.share(two, one)
    first = d.let(f"{one}({t})", t, o)
    second = d.let(f"{two}({other})", t, o)
    if d.pick(True, False):
        d.let(f"{first} + {second}", t, o)


@ingredient("rows", "tokens", "vector")
def tied_weight(d: Draft, t: Made) -> None:
    code = d.linear(t.channels, o := d.width())
    inner = d.let(f"{code}({t})", t, o)
    d.let(f"F.linear({inner}, {code}.weight.t())", t, t.channels)


@ingredient()
def per_channel(d: Draft, t: Made) -> None:
    c = t.channels
    if d.pick(True, False):
        scale, bias = t.spread(d.parameter(c)), t.spread(d.parameter(c))
        d.let(f"{t} * {scale} + {bias}", t, c)
    elif t.kind == "map":
        d.let(f"{d.parameter(1, c, 1, 1)} * {t}", t, c)
    else:
        d.let(f"torch.addcmul({d.parameter(c)}, {t}, {d.parameter(c)})", t, c)


@ingredient()
def one_parameter_twice(d: Draft, t: Made) -> None:
    scale, other = d.parameter(t.channels), d.partner(t)
    d.let(f"{t} * {t.spread(scale)}", t, t.channels)
    d.let(f"{other} + {other.spread(scale)}", other, other.channels)
