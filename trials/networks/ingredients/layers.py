"""Layers: convolutions and linears in all their forms, norms, activations."""

from __future__ import annotations

from trials.networks.draft import Draft, Made, ingredient


@ingredient()
def layer(d: Draft, t: Made) -> None:
    d.layer(t)


@ingredient()
def normalisation(d: Draft, t: Made) -> None:
    d.normalised(t)


@ingredient()
def activation(d: Draft, t: Made) -> None:
    d.activated(t)


@ingredient()
def layer_norm_activation(d: Draft, t: Made) -> None:
    d.activated(d.normalised(d.layer(t)))


@ingredient("map")
def strided(d: Draft, t: Made) -> None:
    o = d.width()
    if t.level < 2:
        kernel = d.pick(1, 3)
        conv = f"nn.Conv2d({t.channels}, {o}, {kernel}, stride=2, padding={kernel // 2})"
        d.let(f"{d.own(conv, t.channels)}({t})", t, o, t.level + 1)
    else:
        d.layer(t, o)


@ingredient("map")
def grouped(d: Draft, t: Made) -> None:
    groups = d.pick(2, 3)
    t, o = d.fitting(t, groups), d.width(groups)
    conv = f"nn.Conv2d({t.channels}, {o}, 3, padding=1, groups={groups})"
    d.let(f"{d.own(conv, t.channels // groups)}({t})", t, o)


@ingredient("map")
def depthwise(d: Draft, t: Made) -> None:
    c, multiplier = t.channels, d.pick(1, 1, 2)
    bias = d.pick("", ", bias=False")
    conv = f"nn.Conv2d({c}, {c * multiplier}, 3, padding=1, groups={c}{bias})"
    d.let(f"{d.own(conv, 1)}({t})", t, c * multiplier)


@ingredient("map")
def transposed(d: Draft, t: Made) -> None:
    o, up = d.width(), t.level > -1
    geometry = "2, stride=2" if up else "3, padding=1"
    conv = f"nn.ConvTranspose2d({t.channels}, {o}, {geometry})"
    d.let(f"{d.own(conv, t.channels)}({t})", t, o, t.level - up)


@ingredient("map")
def grouped_transposed(d: Draft, t: Made) -> None:
    t, o = d.fitting(t, 2), d.width(2)
    conv = f"nn.ConvTranspose2d({t.channels}, {o}, 3, padding=1, groups=2)"
    d.let(f"{d.own(conv, t.channels)}({t})", t, o)


@ingredient("map")
def volume(d: Draft, t: Made) -> None:
    o = d.width()
    conv = d.own(f"nn.Conv3d({t.channels}, {o}, (1, 3, 3), padding=(0, 1, 1))", t.channels)
    d.let(f"{conv}({t}.unsqueeze(2)).squeeze(2)", t, o)


@ingredient("tokens")
def along_tokens(d: Draft, t: Made) -> None:
    o = d.width()
    conv = d.own(f"nn.Conv1d({t.channels}, {o}, 3, padding=1)", t.channels)
    d.let(f"{conv}({t}.transpose(1, 2)).transpose(1, 2)", t, o)


@ingredient("map")
def functional_convolution(d: Draft, t: Made) -> None:
    o = d.width()
    if d.pick(True, False):
        kernel = d.parameter(o, t.channels, 3, 3)
        d.let(f"F.conv2d({t}, {kernel}, padding=1)", t, o)
    else:
        conv = d.own(f"nn.Conv2d({t.channels}, {o}, 1)", t.channels)
        d.let(f"F.conv2d({t}, {conv}.weight, {conv}.bias)", t, o)


@ingredient("rows", "tokens", "vector")
def functional_linear(d: Draft, t: Made) -> None:
    o = d.width()
    weight = d.parameter(o, t.channels)
    spelling = d.pick("F.linear({t}, {w})", "{t} @ {w}.t()", "torch.matmul({t}, {w}.T)")
    d.let(spelling.format(t=t, w=weight), t, o)


@ingredient("map")
def einsum(d: Draft, t: Made) -> None:
    o = d.width()
    d.let(f"torch.einsum('bchw,oc->bohw', {t}, {d.parameter(o, t.channels)})", t, o)
