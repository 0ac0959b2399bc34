"""Space: pooling, upsampling, padding, patches."""

from __future__ import annotations

from hypothesis import strategies as st

from trials.networks.draft import Draft, Made, ingredient


@ingredient("map")
def pooled(d: Draft, t: Made) -> None:
    if t.level < 2:
        code = d.pick("F.max_pool2d({t}, 2)", "F.avg_pool2d({t}, 2)", "{m}({t})")
        module = d.own(f"nn.{d.pick('MaxPool2d', 'AvgPool2d')}(3, 2, 1)") if "{m" in code else ""
        d.let(code.format(t=t, m=module), t, t.channels, t.level + 1)
    else:
        d.let(f"F.max_pool2d({t}, 3, 1, 1)", t, t.channels)


@ingredient("map")
def upsampled(d: Draft, t: Made) -> None:
    if t.level > -1:
        mode = d.pick("'nearest'", "'bilinear', align_corners=False")
        code = f"F.interpolate({t}, scale_factor=2, mode={mode})"
        d.let(code, t, t.channels, t.level - 1)
    else:
        d.layer(t)


@ingredient("map")
def padded_space(d: Draft, t: Made) -> None:
    codes = """
        F.pad({t}, (1, 1, 1, 1))
        F.pad({t}, (1, 1, 1, 1), mode='reflect')
        F.pad({t}, (1, 1, 1, 1), value=0.5)
        F.pad({t}, (2, 0, 0, 2), mode='replicate')
    """
    wide = d.one_of(codes, t=t)
    if d.pick(True, False):
        o = d.width()
        d.let(f"{d.own(f'nn.Conv2d({t.channels}, {o}, 3)', t.channels)}({wide})", t, o)
    else:
        d.let(f"F.max_pool2d({wide}, 3, 1)", t, t.channels)


@ingredient("map")
def u_net(d: Draft, t: Made) -> None:
    if t.level > 1:
        d.layer(t)
        return
    pooled = d.let(f"F.max_pool2d({t}, 2)", t, t.channels, t.level + 1)
    deep = d.activated(d.layer(pooled))
    if d.pick(True, False):
        o = d.width()
        up = d.own(f"nn.ConvTranspose2d({deep.channels}, {o}, 2, stride=2)", deep.channels)
        risen = d.let(f"{up}({deep})", t, o)
    else:
        code = f"F.interpolate({deep}, size={t}.shape[2:], mode='nearest')"
        risen = d.let(code, t, deep.channels)
    joined = d.let(f"torch.cat([{risen}, {t}], 1)", t, risen.channels + t.channels)
    d.layer(joined)


@ingredient("map")
def pixels_shuffled(d: Draft, t: Made) -> None:
    if t.level > -1 and (t.level > 1 or d.pick(True, False)):
        t = d.fitting(t, 4)
        code = d.pick(f"F.pixel_shuffle({t}, 2)", f"{d.own('nn.PixelShuffle(2)')}({t})")
        d.let(code, t, t.channels // 4, t.level - 1)
    else:
        t = t if t.channels <= 6 else d.layer(t, d.draw(st.integers(1, 6)))
        d.let(f"F.pixel_unshuffle({t}, 2)", t, 4 * t.channels, t.level + 1)


@ingredient("map")
def patches_merged(d: Draft, t: Made) -> None:
    if t.level > 1:
        d.layer(t)
        return
    t = t if t.channels <= 6 else d.layer(t, d.draw(st.integers(1, 6)))
    corners = ", ".join(f"{t}[:, :, {i}::2, {j}::2]" for j in (0, 1) for i in (0, 1))
    d.let(f"torch.cat([{corners}], 1)", t, 4 * t.channels, t.level + 1)
