"""Operations: one table, with all that is known of each in one entry.

An entry says how channels flow through an ATen operation, what it makes of constants, and a few
plain facts. Nothing is assumed of what has no entry, nor of a facet that an entry does not name.

From the bottom up, and imports only point down:

1. `flow.relations`, `flow.known`: what can be said, as plain data;
2. `flow.walk`, and `flow.spread` for operations that move data; `operands`
   here: what rules may ask and say, of channels and of constants;
3. `table`: the type of an entry, and the look-up;
4. `pointwise`, `space`, `reduce`, `layers`, `attend`, `fold`, `move`: the rules and their entries,
   by what operations do. Adding one touches one of these files;
5. `flow.analyse`, which asks the table node by node, and the passes of `lowering`.

`capture` is below all of it: how a model is written down for its fingerprint must not change
because a rule is added, so what it says of operations (which of them are spellings of one another,
which write statistics that their schemas hide) stays there.
"""

# They fill the table.
from upscale.ops import attend, fold, layers, move, pointwise, reduce, space  # noqa: F401
