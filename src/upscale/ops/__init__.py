"""Operations: what each does to channels, and the walk through a model that asks them all.

One entry in one table says all that is known of an ATen operation: how channels flow through it,
what it makes of constants, and a few plain facts. Nothing is assumed of what has no entry, nor of
a facet that an entry does not name.

From the bottom up, and imports only point down:

1. `walk`, `operands`: what rules may ask and say, of channels and of constants; `numbering` and
   `spread` beside them, for operations that move data;
2. `table`: the type of an entry, and the look-up;
3. `pointwise`, `space`, `reduce`, `normalise`, `contract`, `attend`, `fold`, `move`: the rules and
   their entries, by what operations do. To add one touches one of these files;
4. `analyse`: a captured model becomes a channel flow.

The room stands on `capture` (calls as they were observed) and `flow` (lines and relations, which
are plain data). Neither knows of it: how a model is written down for its fingerprint must not
change because a rule is added.
"""

from upscale.ops import (  # noqa: F401 (they fill the table)
    attend,
    contract,
    fold,
    move,
    normalise,
    pointwise,
    reduce,
    space,
)
