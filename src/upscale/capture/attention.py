"""Self-attention, and encoders made of it, written out: so heads can be followed and pruned."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional as F

ENCODERS = (nn.TransformerEncoder, nn.TransformerEncoderLayer)


def is_plain_self_attention(m: nn.MultiheadAttention, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call is self-attention without masks, weights asked for or added keys."""
    options = {name: value for name, value in kwargs.items() if not _says_nothing(value)}
    return (
        type(m) is nn.MultiheadAttention
        and len(args) == 3
        and args[0] is args[1] is args[2]
        and not options
        and kwargs.get("need_weights") is False
        and m.batch_first
        and m._qkv_same_embed_dim
        and m.bias_k is None
        and not m.add_zero_attn
        and not (m._forward_hooks or m._forward_pre_hooks)
    )


def self_attention(m: nn.MultiheadAttention, x: Any) -> tuple[Any, None]:
    """What the module computes, in operations that have rules."""
    parts = F.linear(x, m.in_proj_weight, m.in_proj_bias).chunk(3, -1)
    query, key, value = (
        parts[index].unflatten(-1, (m.num_heads, m.head_dim)).transpose(-2, -3)
        for index in range(3)
    )
    dropout = m.dropout if m.training else 0.0
    seen = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
    merged = seen.transpose(-2, -3).flatten(-2)
    return F.linear(merged, m.out_proj.weight, m.out_proj.bias), None


def is_plain_encoder(m: nn.Module, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call is of one of torch's own encoders, or layers of one, and without masks."""
    options = [value for value in (*args[1:], *kwargs.values()) if not _says_nothing(value)]
    return (
        type(m) in ENCODERS
        and len(args) > 0
        and not options
        and not (m._forward_hooks or m._forward_pre_hooks)
    )


def encoder(m: nn.Module, x: Any) -> Any:
    """What the module computes, with its layers called one after the other."""
    if isinstance(m, nn.TransformerEncoderLayer):
        return _encoder_layer(m, x)
    assert isinstance(m, nn.TransformerEncoder)
    for layer in m.layers:
        x = layer(x)
    return x if m.norm is None else m.norm(x)


def _encoder_layer(m: nn.TransformerEncoderLayer, x: Any) -> Any:
    def attended(y: Any) -> Any:
        return m.dropout1(m.self_attn(y, y, y, need_weights=False)[0])

    def fed(y: Any) -> Any:
        return m.dropout2(m.linear2(m.dropout(m.activation(m.linear1(y)))))

    if m.norm_first:
        x = x + attended(m.norm1(x))
        return x + fed(m.norm2(x))
    x = m.norm1(x + attended(x))
    return m.norm2(x + fed(x))


def _says_nothing(value: Any) -> bool:
    """Whether an argument is what it is if nobody gives it."""
    return value is None or value is False
