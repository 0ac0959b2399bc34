"""Elementwise operations, out of place and in place."""

from __future__ import annotations

from trials.networks.draft import Draft, Made, ingredient


@ingredient()
def in_place(d: Draft, t: Made) -> None:
    code = d.pick("F.relu_({t})", "{t}.mul_(0.5)", "{t}.add_(1.0)", "{m}({t})", "{t}.add_({o})")
    activation = d.pick("nn.ReLU", "nn.SiLU", "nn.Hardswish")
    module = d.own(f"{activation}(inplace=True)") if "{m}" in code else ""
    other = d.partner(t) if "{o}" in code else ""
    d.let(code.format(t=t, m=module, o=other), t, t.channels)


@ingredient()
def in_place_operator(d: Draft, t: Made) -> None:
    fresh, other = d.layer(d.another(t), t.channels), t
    d.do(f"{fresh} {d.pick('+=', '*=', '-=')} {other}")
    d.activated(fresh)


@ingredient()
def in_place_on_part(d: Draft, t: Made) -> None:
    t = d.fitting(t, 2)
    half = t.channels // 2
    part = f"{t}[:, :{half}]" if t.axis == 1 else f"{t}[..., :{half}]"
    d.let(f"{part}.{d.pick('mul_(2.0)', 'relu_()')}", t, half)


@ingredient()
def arithmetic(d: Draft, t: Made) -> None:
    codes = """
        {t} * 0.5 + 1
        1 - {t}
        -{t}
        {t} / 3
        {t}.abs()
        {t}.clamp(-1, 1)
        torch.exp(-{t} ** 2)
        {t}.clamp(min=0).sqrt()
    """
    d.let(d.one_of(codes, t=t), t, t.channels)


@ingredient()
def combined(d: Draft, t: Made) -> None:
    codes = """
        {t} + {o}
        {t} - {o}
        {t} * {o}.sigmoid()
        {t} * {o}.tanh()
        torch.add({t}, {o}, alpha=2)
        torch.maximum({t}, {o})
        torch.where({t} > 0, {t}, {o})
        torch.lerp({t}, {o}, 0.3)
    """
    d.let(d.one_of(codes, t=t, o=d.partner(t)), t, t.channels)


@ingredient()
def with_itself(d: Draft, t: Made) -> None:
    codes = """
        {t} + {t}
        {t} * {t}.sigmoid()
        {t} - 0.5 * {t}.relu()
        {t}.tanh() * {t}.tanh()
    """
    d.let(d.one_of(codes, t=t), t, t.channels)


@ingredient()
def stacked(d: Draft, t: Made) -> None:
    others = [t, *(d.partner(t) for _ in range(d.pick(1, 2)))]
    joined = ", ".join(map(str, others))
    reduced = d.pick("sum(0)", "mean(0)", "amax(0)", "max(0)[0]")
    d.let(f"torch.stack([{joined}]).{reduced}", t, t.channels)


@ingredient()
def dropped_out(d: Draft, t: Made) -> None:
    kinds = ["nn.Dropout(0.5)", "nn.Identity()"] + ["nn.Dropout2d(0.5)"] * (t.kind == "map")
    if d.pick(True, False):
        d.let(f"{d.own(d.pick(*kinds))}({t})", t, t.channels)
    else:
        d.let(f"F.dropout({t}, 0.5, self.training)", t, t.channels)
