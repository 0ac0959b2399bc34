"""Channels are mixed, counted, or treated in ways without a rule."""

from __future__ import annotations

from hypothesis import strategies as st

from trials.networks.draft import Draft, Made, ingredient


@ingredient()
def over_channels(d: Draft, t: Made) -> None:
    codes = """
        {t} - {t}.mean({a}, keepdim=True)
        {t} * {t}.amax({a}, keepdim=True).sigmoid()
        {t}.softmax({a})
        F.normalize({t}, dim={a}, eps=0.1)
        {t} / {t}.shape[{a}]
        {t} * torch.rsqrt({t}.pow(2).mean({a}, keepdim=True) + 0.1)
    """
    d.let(d.one_of(codes, t=t, a=t.axis), t, t.channels)


@ingredient()
def without_rule(d: Draft, t: Made) -> None:
    codes = """
        torch.cumsum({t}, {a})
        torch.sort({t}, dim={a})[0]
        {t} + torch.logsumexp({t}, {a}, keepdim=True)
        {t} - torch.diff({t}, dim={a}, append={t}.narrow({a}, 0, 1))
    """
    if d.dtype != "bfloat16":  # in which they do not exist
        codes += "torch.fft.fft({t}, dim={a}).real\n"
        codes += "F.local_response_norm({t}, 3)\n" * (t.kind == "map")
    d.let(d.one_of(codes, t=t, a=t.axis), t, t.channels)


@ingredient("map")
def spatial_attention(d: Draft, t: Made) -> None:
    codes = """
        {t}.amax(1, keepdim=True)
        {t}.max(1, keepdim=True)[0]
        torch.max({t}, dim=1, keepdim=True).values
    """
    most = d.one_of(codes, t=t)
    both = d.let(f"torch.cat([{t}.mean(1, keepdim=True), {most}], dim=1)", t, 2)
    d.let(f"{t} * {d.convolution(2, 1)}({both}).sigmoid()", t, t.channels)


@ingredient("map")
def squeeze_excite(d: Draft, t: Made) -> None:
    c, r = t.channels, d.draw(st.integers(1, 4))
    down, up = d.convolution(c, r, kernel=1), d.convolution(r, c, kernel=1)
    pooled = d.pick("F.adaptive_avg_pool2d({t}, 1)", "{t}.mean((2, 3), keepdim=True)")
    d.do(f"scale = {up}(F.relu({down}({pooled.format(t=t)})))")
    d.let(f"{t} * {d.pick('scale.sigmoid()', 'F.hardsigmoid(scale)')}", t, c)


@ingredient("map")
def squeeze_excite_linear(d: Draft, t: Made) -> None:
    c, r = t.channels, d.draw(st.integers(1, 4))
    down, up = d.linear(c, r), d.linear(r, c)
    d.do(f"b, c, _, _ = {t}.shape")
    d.do(f"scale = {up}({down}({t}.mean((2, 3))).relu()).sigmoid()")
    codes = """
        {t} * scale.view(b, c, 1, 1)
        {t} * scale.view(b, c, 1, 1).expand_as({t})
        {t} * scale[:, :, None, None]
        {t} * scale.unsqueeze(-1).unsqueeze(-1)
    """
    d.let(d.one_of(codes, t=t), t, c)


@ingredient("map")
def sizes_read(d: Draft, t: Made) -> None:
    d.do(f"b, c, h, w = {t}.shape")
    codes = """
        {t} * (1.0 / c)
        {t}.reshape(b, c, -1).reshape(b, c, h, w)
        {t}.reshape(b * c, h, w).view(b, c, h, w)
        {t} * {t}.view(b, c, h * w).mean(2).view(b, c, 1, 1)
        {t} + {t}.view(b, -1, h * w).mean(-1).reshape({t}.size(0), {t}.size(1), 1, 1)
        F.interpolate(F.avg_pool2d({t}, 2), size=(h, w))
    """
    d.let(d.one_of(codes, t=t), t, t.channels)
