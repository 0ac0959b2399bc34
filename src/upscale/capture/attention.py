"""Self-attention written out, so that its value path can be followed and pruned."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional as F


def is_plain_self_attention(m: nn.MultiheadAttention, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a call is self-attention without masks, weights asked for or added keys."""
    options = {name: value for name, value in kwargs.items() if value is not None}
    return (
        type(m) is nn.MultiheadAttention
        and len(args) == 3
        and args[0] is args[1] is args[2]
        and options == {"need_weights": False}
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
