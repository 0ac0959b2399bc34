"""Selection: scores, an amount and options become the channels that each layer keeps.

The room stands above planning. Three of its decisions ask what comes later: an amount of what
the *export* does without asks lowering and liveness which rows and columns would stay, and
the constraint `contiguous` plans to see whether a choice would copy. What comes out is plain
data (`masks.Selection`), and nothing below this room imports more of it than that.

The way of one `select`::

    options    what was asked for, checked            options.Options
    units      channels that go together, or stay     units.Units
    limits     what layers hold on to                 choosing.Limits
    scores     how much each channel matters          scoring.score_weights
    measuring  what a choice amounts to               measuring.LayerSizes
    choosing   the lowest go until the amount is met  choosing.Chooser
    streams    windows of one order, if `contiguous`  streams.keep_contiguous
    reached    what it came to, and what stopped it   amounts.Reached

Words: a *class* holds positions of tensors that are tied, so that they go or stay as one. A
*stream* holds classes that share one order. A *segment* holds the producers and consumers that
shared channels connect. A *unit* is what is chosen as one: a channel of one layer, or with the
constraint `segment` the channels of all layers that share a class.
"""
