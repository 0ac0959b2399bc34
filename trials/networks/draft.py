"""A network while it is drawn, and the ingredients it can be drawn from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from trials.networks.network import SIZE, Input, Op

T = TypeVar("T")

GEOMETRIES = """
    1
    3, padding=1
    1
    3, padding=1
    3, padding=2, dilation=2
    3, padding=1, padding_mode='reflect'
"""
WIDEST = 12


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor of the network at hand.

    A `map` is batch × channels × height × width, `rows` have their channels last, `tokens` are
    batch × places × channels, and a `vector` has no places.
    """

    name: str
    kind: str
    channels: int
    level: int

    def __str__(self) -> str:
        return self.name

    @property
    def axis(self) -> int:
        return 1 if self.kind in ("map", "vector") else -1

    def spread(self, parameter: str) -> str:
        """A parameter of one number per channel, shaped to broadcast."""
        return f"{parameter}[:, None, None]" if self.kind == "map" else parameter


Ingredient = Callable[["Draft", Made], None]
INGREDIENTS: dict[str, Ingredient] = {}
CHANCES: dict[str, list[str]] = {"map": [], "rows": [], "tokens": [], "vector": []}


def ingredient(*kinds: str, often: int = 1) -> Callable[[Ingredient], Ingredient]:
    """Register an ingredient for tensors of the given kinds; of all, if none is given."""

    def register(function: Ingredient) -> Ingredient:
        INGREDIENTS[function.__name__] = function
        for kind in kinds or CHANCES:
            # Most tensors are maps: what works on few kinds alone gets a better chance there.
            chances = often if not kinds or kind == "map" else 8 * often // len(kinds)
            CHANCES[kind] += [function.__name__] * chances
        return function

    return register


class Draft:
    """A network while it is drawn."""

    def __init__(self, draw: DrawFn) -> None:
        self.draw = draw
        self.inputs: list[Input] = []
        self.ops: list[Op] = []
        self.made: list[Made] = []
        self.fixed = False
        self.dtype = self.pick("float32", "float32", "float64", "bfloat16")
        self._setup: list[str] = []
        self._lines: list[str] = []
        self._owned = 0
        self._columns: dict[str, int] = {}
        self._same: dict[str, str] = {}

    # Choices.

    def pick(self, *options: T) -> T:
        """One of the options; the first is the simplest."""
        return self.draw(st.sampled_from(options))

    def one_of(self, codes: str, **names: object) -> str:
        """One of the lines of code, with names filled in."""
        return self.pick(*(line.strip() for line in codes.strip().splitlines())).format(**names)

    def width(self, multiple: int = 1) -> int:
        """A number of channels."""
        return multiple * self.draw(st.integers(1, max(1, WIDEST // multiple)))

    def like(self, t: Made) -> list[Made]:
        """Tensors that differ from this one in channels alone, the latest first."""
        return [o for o in reversed(self.made) if (o.kind, o.level) == (t.kind, t.level)]

    def another(self, t: Made) -> Made:
        """A tensor of the same kind and level, perhaps the same."""
        return self.pick(*self.like(t))

    def partner(self, t: Made) -> Made:
        """Another tensor of the same shape; made for the purpose if need be."""
        fitting = [o for o in self.like(t) if o.channels == t.channels and o != t]
        reuse = self.pick(True, True, False)
        if fitting and reuse:
            return self.pick(*fitting)
        return self.layer(self.another(t), t.channels)

    def fitting(self, t: Made, multiple: int) -> Made:
        """The tensor itself if its channels are a multiple; else one made of it that is."""
        return t if t.channels % multiple == 0 else self.layer(t, self.width(multiple))

    # Code.

    def let(self, code: str, t: Made, channels: int, level: int | None = None) -> Made:
        """A new tensor of the same kind as another."""
        return self.let_kind(code, t.kind, channels, t.level if level is None else level)

    def let_kind(self, code: str, kind: str, channels: int, level: int) -> Made:
        """A new tensor, computed by the code."""
        new = Made(f"t{len(self.made) + 1}", kind, channels, level)
        self._lines.append(f"{new} = {code}")
        self.made.append(new)
        return new

    def let_all(self, code: str, t: Made, channels: list[int]) -> None:
        """Several new tensors of the same kind as another, computed at once."""
        first = len(self.made) + 1
        new = [Made(f"t{first + i}", t.kind, c, t.level) for i, c in enumerate(channels)]
        self._lines.append(f"{', '.join(map(str, new))} = {code}")
        self.made += new

    def do(self, line: str) -> None:
        """A line of `forward` that makes no tensor of its own."""
        self._lines.append(line)

    def own(self, code: str, columns: int | None = None) -> str:
        """A module or parameter of the network; layers say how many columns they have."""
        self._owned += 1
        called = re.match(r"nn\.([A-Za-z]+?)(Norm|Transpose)?\d?d?\(", code)
        assert called, code
        name = f"{(called[2] or called[1]).lower()}{self._owned}"
        self._setup.append(f"self.{name} = {code}")
        if columns is not None:
            self._columns[name] = columns
        return f"self.{name}"

    def parameter(self, *shape: int) -> str:
        """A bare parameter."""
        return self.own(f"nn.Parameter(0.3 * torch.randn{shape})")

    def share(self, one: str, other: str) -> None:
        """Two layers with one weight."""
        self._setup.append(f"{one}.weight = {other}.weight")
        self._same[one.removeprefix("self.")] = other.removeprefix("self.")

    def also_named(self, path: str, columns: int) -> None:
        """A layer within a module of another kind."""
        self._columns[path.removeprefix("self.")] = columns

    def convolution(self, i: int, o: int, *, kernel: int | None = None) -> str:
        """A convolution that keeps the size."""
        geometry = f"{kernel}" if kernel else self.one_of(GEOMETRIES)
        bias = self.pick("", "", ", bias=False")
        return self.own(f"nn.Conv2d({i}, {o}, {geometry}{bias})", i)

    def linear(self, i: int, o: int) -> str:
        """A linear layer."""
        return self.own(f"nn.Linear({i}, {o}{self.pick('', '', ', bias=False')})", i)

    def projection(self, t: Made, o: int) -> str:
        """The layer that fits a kind of tensor."""
        if t.kind == "map":
            return self.convolution(t.channels, o)
        return self.linear(t.channels, o)

    def layer(self, t: Made, channels: int | None = None) -> Made:
        """A tensor made of another by a layer."""
        channels = channels or self.width()
        return self.let(f"{self.projection(t, channels)}({t})", t, channels)

    def normalised(self, t: Made) -> Made:
        """A tensor after a normalisation that fits it."""
        c = t.channels
        # A large epsilon: a constant map must not be blown up to its own rounding errors.
        group = f"nn.GroupNorm({self.pick(*(g for g in (1, 2, 3) if c % g == 0))}, {c}, eps=0.1)"
        centred = f"nn.InstanceNorm2d({c}, eps=0.1)"
        code = {
            "map": (
                f"nn.BatchNorm2d({c})",
                group,
                group,
                centred,
                f"nn.InstanceNorm2d({c}, eps=0.1, affine=True)",
            ),
            "vector": (f"nn.BatchNorm1d({c})", f"nn.LayerNorm({c}, eps=0.1)"),
        }
        last = (
            f"nn.LayerNorm({c}, eps=0.1)",
            f"nn.LayerNorm({c}, eps=0.1, elementwise_affine=False)",
        )
        norm = self.pick(*code.get(t.kind, last))
        # The mean of a centred map is zero: pooled, it would be nothing but rounding.
        after = ".relu()" if norm == centred else ""
        return self.let(f"{self.own(norm)}({t}){after}", t, c)

    def activated(self, t: Made) -> Made:
        """A tensor after an activation, in one of its many spellings."""
        spelling = self.pick("functional", "method", "module")
        if spelling == "functional":
            calls = ("F.relu", "F.gelu", "F.silu", "F.hardswish", "F.leaky_relu", "torch.sigmoid")
            return self.let(f"{self.pick(*calls)}({t})", t, t.channels)
        if spelling == "method":
            return self.let(f"{t}.{self.pick('relu', 'tanh', 'sigmoid')}()", t, t.channels)
        kinds = ["nn.ReLU()", "nn.SiLU()", "nn.PReLU()", "nn.Softplus()"]
        if t.kind in ("map", "vector"):
            kinds.append(f"nn.PReLU({t.channels})")
        return self.let(f"{self.own(self.pick(*kinds))}({t})", t, t.channels)

    # Parts of a network.

    def close(self, name: str) -> None:
        """End the ingredient at hand."""
        self.ops.append(Op(name, tuple(self._setup), tuple(self._lines)))
        self._setup, self._lines = [], []

    def begin(self) -> None:
        """Inputs, and a first tensor of each."""
        for number in range(self.pick(1, 1, 1, 2)):
            level = 0 if number == 0 else self.pick(0, 1, None)
            given = Input("xy"[number], self.draw(st.integers(1, 4)), level)
            self.inputs.append(given)
            if level is None:
                self.layer(Made(given.name, "vector", given.channels, 0))
                continue
            raw = Made(given.name, "map", given.channels, level)
            stem = self.pick("layer", "layer", "layer", "raw", "mirrored")
            if stem == "layer":
                self.layer(raw)
            elif stem == "raw":
                self.let(f"{raw} * 2", raw, raw.channels)
            else:
                doubled = self.let(f"torch.cat([{raw}, -{raw}], 1)", raw, 2 * raw.channels)
                self.layer(doubled)
        self.close("stem")

    def grow(self) -> None:
        """One more ingredient."""
        t = self.made[-1] if self.pick(True, False) else self.pick(*reversed(self.made))
        name = self.pick(*CHANCES[t.kind])
        INGREDIENTS[name](self, t)
        self.close(name)

    def finish(self) -> str:
        """Heads on the tensors nothing has read; what is returned, as code."""
        read = set(re.findall(r"\b[t]\d+\b", " ".join(self._reads())))
        outputs = []
        for t in [t for t in self.made if t.name not in read]:
            fate = self.pick("head", "head", "head", "head", "as it is", "nobody's")
            if fate == "head":
                outputs.append(self._head(t))
            elif fate == "as it is":
                outputs.append(t)
        if not outputs:
            outputs = [self._head(self.made[-1])]
        self.close("heads")
        names = [t.name for t in outputs]
        if len(names) == 1 and self.pick(True, True, False):
            return names[0]
        joined = ", ".join(names)
        form = self.pick("tuple", "list", "dict", "nested")
        if form == "dict":
            return "{" + ", ".join(f"'out{i}': {name}" for i, name in enumerate(names)) + "}"
        return {"tuple": f"({joined},)", "list": f"[{joined}]"}.get(
            form, f"({names[0]}, [{joined}])"
        )

    def _reads(self) -> Iterable[str]:
        return (line.partition("=")[2] or line for op in self.ops for line in op.lines)

    def _head(self, t: Made) -> Made:
        if t.kind != "map":
            return self.layer(t, self.draw(st.integers(1, 4)))
        ways = ["conv", "mean", "pool", "view"] + ["flatten", "flat view"] * (t.level > 0)
        way = self.pick(*ways)
        pixels = 1
        if way == "conv":
            return self.layer(t, self.draw(st.integers(1, 4)))
        if way == "mean":
            code = f"{t}.mean((2, 3))"
        elif way == "pool":
            side = self.pick(1, 2)
            code, pixels = f"torch.flatten(F.adaptive_avg_pool2d({t}, {side}), 1)", side * side
        elif way == "view":
            self.do(f"pooled = {self.own('nn.AdaptiveAvgPool2d(1)')}({t})")
            code = "pooled.view(pooled.size(0), -1)"
        else:
            code = f"{t}.flatten(1)" if way == "flatten" else f"{t}.view({t}.size(0), -1)"
            pixels = (SIZE >> t.level) ** 2
            self.fixed = True
        flat = self.let_kind(code, "vector", t.channels * pixels, 0)
        return self.layer(flat, self.draw(st.integers(1, 4)))

    def masks(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """What each layer keeps; layers that share a weight keep the same."""
        kept: dict[str, tuple[int, ...]] = {}
        for name, columns in self._columns.items():
            twin = self._same.get(name)
            chosen = kept.get(twin) if twin else self.mask(columns)
            if chosen is not None:
                kept[name] = chosen
        return tuple(kept.items())

    def mask(self, columns: int) -> tuple[int, ...] | None:
        """Which of so many channels a layer keeps; `None` if nothing is said of it."""
        moods = ("unnamed", "full", *["subset"] * 8, *["contiguous"] * 3, "single", "empty")
        mood = self.pick(*moods)
        if mood == "unnamed":
            return None
        if mood == "empty":
            return ()
        if mood == "single":
            return (self.draw(st.integers(0, columns - 1)),)
        if mood == "contiguous":
            start = self.draw(st.integers(0, columns - 1))
            return tuple(range(start, start + self.draw(st.integers(1, columns - start))))
        if mood == "subset":
            # Bits of those that go, at most ten in one number: larger ones are drawn unevenly.
            gone = [self.draw(st.integers(0, 1023)) for _ in range(-(-columns // 10))]
            return tuple(i for i in range(columns) if not gone[i // 10] >> i % 10 & 1) or (0,)
        return tuple(range(columns))
