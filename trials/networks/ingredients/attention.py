"""Attention, written out and as a module."""

from __future__ import annotations

from trials.networks.draft import Draft, Made, ingredient


@ingredient("tokens")
def attention(d: Draft, t: Made) -> None:
    heads = d.pick(1, 2)
    t = d.fitting(t, heads)
    c, qkv = t.channels, d.linear(t.channels, 3 * t.channels)
    if heads == 1:
        d.do(f"q, k, v = {qkv}({t}).chunk(3, dim=-1)")
        mixed = "(q @ k.transpose(1, 2) * 0.3).softmax(-1) @ v"
    else:
        d.do(f"b, n, c = {t}.shape")
        d.do(f"qkv = {qkv}({t}).reshape(b, n, 3, {heads}, c // {heads}).permute(2, 0, 3, 1, 4)")
        d.do(f"q, k, v = {d.pick('qkv.unbind(0)', '(qkv[0], qkv[1], qkv[2])')}")
        codes = """
            ((q @ k.transpose(-2, -1) * 0.3).softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c)
            F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        """
        mixed = d.one_of(codes)
    out = d.let(mixed, t, c)
    d.let(f"{t} + {d.linear(c, c)}({out})", t, c)


@ingredient("tokens")
def attention_apart(d: Draft, t: Made) -> None:
    w, v = d.width(), d.width()
    d.do(f"q, k = {d.linear(t.channels, w)}({t}), {d.linear(t.channels, w)}({t})")
    d.do(f"weights = F.softmax(torch.matmul(q, k.transpose(-2, -1)) / {w} ** 0.5, dim=-1)")
    mixed = d.let(f"torch.matmul(weights, {d.linear(t.channels, v)}({t}))", t, v)
    d.layer(mixed)


@ingredient("tokens")
def attention_module(d: Draft, t: Made) -> None:
    heads = d.pick(1, 2)
    t = d.fitting(t, heads)
    module = d.own(f"nn.MultiheadAttention({t.channels}, {heads}, batch_first=True)")
    d.also_named(f"{module}.out_proj", t.channels)
    d.let(f"{module}({t}, {t}, {t}, need_weights=False)[0]", t, t.channels)


@ingredient("map")
def non_local(d: Draft, t: Made) -> None:
    w = d.width()
    q, k, v = (d.convolution(t.channels, o, kernel=1) for o in (w, w, t.channels))
    d.do(f"b, c, h, w = {t}.shape")
    d.do(f"q, k, v = {q}({t}).flatten(2), {k}({t}).flatten(2), {v}({t}).flatten(2)")
    d.do("weights = torch.bmm(q.transpose(1, 2), k).softmax(dim=-1)")
    d.let(f"{t} + torch.bmm(v, weights.transpose(1, 2)).view(b, c, h, w)", t, t.channels)


@ingredient()
def dead_branch(d: Draft, t: Made) -> None:
    d.do(f"unused = {d.projection(t, d.width())}({t})")
    d.let(f"{t}.relu()", t, t.channels)
