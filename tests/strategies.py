"""Random networks for property tests: drawn as data, read as code.

A `Network` is a list of ingredients, each a few lines of a module's `__init__` and `forward` that
name earlier tensors by number. Its text is a program that builds it, so a failure shrinks to
something that can be read, pasted and run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import upscale
from upscale.capture import Example

T = TypeVar("T")

GEOMETRIES = """
    1
    3, padding=1
    1
    3, padding=1
    3, padding=2, dilation=2
    3, padding=1, padding_mode='reflect'
"""
SIZE = 8  # pixels of an input; a level halves them, and there are two levels below and one above
ANOTHER_SIZE = 12
MOST_OPS = 12
WIDEST = 12


@dataclass(frozen=True, slots=True)
class Op:
    """One ingredient: what it adds to `__init__`, and to `forward`."""

    ingredient: str
    setup: tuple[str, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """An argument of `forward`: an image, or with no level a vector."""

    name: str
    channels: int
    level: int | None

    def shape(self, size: int) -> tuple[int, ...]:
        """Its shape without the batch."""
        if self.level is None:
            return (self.channels,)
        return (self.channels, size >> self.level, size >> self.level)


@dataclass(frozen=True, slots=True, repr=False)
class Network:
    """A network, its example and what each layer keeps. Its text is a program.

    `fixed` says that its layers fit one image size only.
    """

    inputs: tuple[Input, ...]
    ops: tuple[Op, ...]
    returns: str
    dtype: str
    batch: int
    by_keyword: bool
    fixed: bool
    kept: tuple[tuple[str, tuple[int, ...]], ...]
    order: str

    @property
    def source(self) -> str:
        """The class, as code."""
        setup = [line for op in self.ops for line in op.setup]
        lines = [line for op in self.ops for line in op.lines]
        arguments = ", ".join(given.name for given in self.inputs)
        return "\n".join(
            (
                "class Net(nn.Module):",
                "    def __init__(self):",
                "        super().__init__()",
                *(f"        {line}" for line in setup),
                "",
                f"    def forward(self, {arguments}):",
                *(f"        {line}" for line in lines),
                f"        return {self.returns}",
            )
        )

    def __repr__(self) -> str:
        tensors = {
            given.name: ", ".join(map(str, (self.batch, *given.shape(SIZE))))
            for given in self.inputs
        }
        inputs = ", ".join(
            f"{name!r}: " * self.by_keyword + f"torch.randn({shape}, dtype=torch.{self.dtype})"
            for name, shape in tensors.items()
        )
        example = f"{{{inputs}}}" if self.by_keyword else f"({inputs},)"
        kept = {layer: list(columns) for layer, columns in self.kept}
        return "\n".join(
            (
                "",
                self.source,
                "",
                f"model = told_apart(Net()).to(torch.{self.dtype})",
                f"example = {example}",
                f"selection = upscale.Selection(kept={kept})",
                f"plan = upscale.plan(model, example, selection, order={self.order!r})",
            )
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How hypothesis prints it: as the program, not field by field."""
        printer.text(repr(self))

    @property
    def selection(self) -> upscale.Selection:
        """What each layer keeps."""
        return upscale.Selection(kept=dict(self.kept))

    def example(self, batch: int, size: int, seed: int = 0) -> Any:
        """An input of the network, in the way it wants to be called."""
        generator = torch.Generator().manual_seed(seed)
        dtype = getattr(torch, self.dtype)
        tensors = {
            given.name: torch.randn(batch, *given.shape(size), generator=generator).to(dtype)
            for given in self.inputs
        }
        return tensors if self.by_keyword else tuple(tensors.values())


def build(network: Network) -> nn.Module:
    """The module that a network describes, with the same weights every time."""
    namespace: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "Tensor": Tensor}
    exec(compile(network.source, "<network>", "exec"), namespace)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = told_apart(namespace["Net"]())
    return model.to(getattr(torch, network.dtype))


def told_apart(model: nn.Module) -> nn.Module:
    """Evaluation mode, with normalisations that treat no two channels alike."""
    kinds = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    for module in model.modules():
        if isinstance(module, kinds):
            for tensor in module.state_dict().values():
                if tensor.is_floating_point():
                    tensor.uniform_(0.5, 1.5)
    return model.eval()


@st.composite
def networks(draw: DrawFn) -> Network:
    """Any network of a few ingredients, and masks for its layers."""
    draft = Draft(draw)
    draft.begin()
    # A choice to go on before each ingredient lets any one of them shrink away by itself.
    while len(draft.ops) < MOST_OPS and draft.pick(False, *[True] * 19):
        draft.grow()
    returns = draft.finish()
    network = Network(
        inputs=tuple(draft.inputs),
        ops=tuple(draft.ops),
        returns=returns,
        dtype=draft.dtype,
        batch=draft.pick(1, 2, 3),
        by_keyword=draft.pick(False, False, False, True),
        fixed=draft.fixed,
        kept=draft.masks(),
        order=draft.pick("none", "optimal", "mrap"),
    )
    return network if ".view(" not in network.source or runs(network) else reshaped(network)


def runs(network: Network) -> bool:
    """Whether the network runs at all; views fail where memory does not lie as they need it."""
    try:
        outputs(build(network), network.example(2, SIZE))
    except RuntimeError as error:
        if "view" in str(error):
            return False
        raise
    return True


def reshaped(network: Network) -> Network:
    """The same network with a reshape in place of every view."""
    ops = tuple(
        replace(op, lines=tuple(line.replace(".view(", ".reshape(") for line in op.lines))
        for op in network.ops
    )
    return replace(network, ops=ops)


def outputs(model: nn.Module, example: Any) -> list[Tensor]:
    """Every tensor a model returns."""
    given = Example.of(example)
    with torch.no_grad():
        result = model(*given.args, **given.kwargs)
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


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
            chosen = kept.get(twin) if twin else self._mask(columns)
            if chosen is not None:
                kept[name] = chosen
        return tuple(kept.items())

    def _mask(self, columns: int) -> tuple[int, ...] | None:
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


# Layers.


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


# Reuse.


@ingredient()
def called_twice(d: Draft, t: Made) -> None:
    again = d.projection(t, t.channels)
    inner = d.activated(d.let(f"{again}({t})", t, t.channels))
    d.let(f"{again}({inner})", t, t.channels)


@ingredient()
def called_on_two(d: Draft, t: Made) -> None:
    o, other = d.width(), d.partner(t)
    both = d.projection(t, o)
    one = d.let(f"{both}({t})", t, o)
    d.let(f"{one} {d.pick('+', '*')} {both}({other})", t, o)


@ingredient()
def norm_twice(d: Draft, t: Made) -> None:
    c = t.channels
    kinds = {"map": f"nn.BatchNorm2d({c})", "vector": f"nn.BatchNorm1d({c})"}
    norm = d.own(kinds.get(t.kind, f"nn.LayerNorm({c}, eps=0.1)"))
    one, other = d.let(f"{norm}({t})", t, c), d.partner(t)
    d.let(f"{norm}({other})", t, c)
    d.layer(one)


@ingredient()
def shared_weight(d: Draft, t: Made) -> None:
    o, other = d.width(), d.partner(t)
    make = (
        f"nn.Conv2d({t.channels}, {o}, 1)" if t.kind == "map" else f"nn.Linear({t.channels}, {o})"
    )
    one, two = d.own(make, t.channels), d.own(make, t.channels)
    d.share(two, one)
    first = d.let(f"{one}({t})", t, o)
    second = d.let(f"{two}({other})", t, o)
    if d.pick(True, False):
        d.let(f"{first} + {second}", t, o)


@ingredient("rows", "tokens", "vector")
def tied_weight(d: Draft, t: Made) -> None:
    code = d.linear(t.channels, o := d.width())
    inner = d.let(f"{code}({t})", t, o)
    d.let(f"F.linear({inner}, {code}.weight.t())", t, t.channels)


@ingredient()
def per_channel(d: Draft, t: Made) -> None:
    c = t.channels
    if d.pick(True, False):
        scale, bias = t.spread(d.parameter(c)), t.spread(d.parameter(c))
        d.let(f"{t} * {scale} + {bias}", t, c)
    elif t.kind == "map":
        d.let(f"{d.parameter(1, c, 1, 1)} * {t}", t, c)
    else:
        d.let(f"torch.addcmul({d.parameter(c)}, {t}, {d.parameter(c)})", t, c)


@ingredient()
def one_parameter_twice(d: Draft, t: Made) -> None:
    scale, other = d.parameter(t.channels), d.partner(t)
    d.let(f"{t} * {t.spread(scale)}", t, t.channels)
    d.let(f"{other} + {other.spread(scale)}", other, other.channels)


# Elementwise.


@ingredient()
def in_place(d: Draft, t: Made) -> None:
    code = d.pick("F.relu_({t})", "{t}.mul_(0.5)", "{t}.add_(1.0)", "{m}({t})", "{t}.add_({o})")
    activation = d.pick("nn.ReLU", "nn.SiLU", "nn.Hardswish")
    module = d.own(f"{activation}(inplace=True)") if "{m}" in code else ""
    other = d.partner(t) if "{o}" in code else ""
    d.let(code.format(t=t, m=module, o=other), t, t.channels)


@ingredient()
def in_place_operator(d: Draft, t: Made) -> None:
    fresh, other = d.layer(d.another(t), t.channels), t
    d.do(f"{fresh} {d.pick('+=', '*=', '-=')} {other}")
    d.activated(fresh)


@ingredient()
def in_place_on_part(d: Draft, t: Made) -> None:
    t = d.fitting(t, 2)
    half = t.channels // 2
    part = f"{t}[:, :{half}]" if t.axis == 1 else f"{t}[..., :{half}]"
    d.let(f"{part}.{d.pick('mul_(2.0)', 'relu_()')}", t, half)


@ingredient()
def arithmetic(d: Draft, t: Made) -> None:
    codes = """
        {t} * 0.5 + 1
        1 - {t}
        -{t}
        {t} / 3
        {t}.abs()
        {t}.clamp(-1, 1)
        torch.exp(-{t} ** 2)
        {t}.clamp(min=0).sqrt()
    """
    d.let(d.one_of(codes, t=t), t, t.channels)


@ingredient()
def combined(d: Draft, t: Made) -> None:
    codes = """
        {t} + {o}
        {t} - {o}
        {t} * {o}.sigmoid()
        {t} * {o}.tanh()
        torch.add({t}, {o}, alpha=2)
        torch.maximum({t}, {o})
        torch.where({t} > 0, {t}, {o})
        torch.lerp({t}, {o}, 0.3)
    """
    d.let(d.one_of(codes, t=t, o=d.partner(t)), t, t.channels)


@ingredient()
def with_itself(d: Draft, t: Made) -> None:
    codes = """
        {t} + {t}
        {t} * {t}.sigmoid()
        {t} - 0.5 * {t}.relu()
        {t}.tanh() * {t}.tanh()
    """
    d.let(d.one_of(codes, t=t), t, t.channels)


@ingredient()
def stacked(d: Draft, t: Made) -> None:
    others = [t, *(d.partner(t) for _ in range(d.pick(1, 2)))]
    joined = ", ".join(map(str, others))
    reduced = d.pick("sum(0)", "mean(0)", "amax(0)", "max(0)[0]")
    d.let(f"torch.stack([{joined}]).{reduced}", t, t.channels)


@ingredient()
def dropped_out(d: Draft, t: Made) -> None:
    kinds = ["nn.Dropout(0.5)", "nn.Identity()"] + ["nn.Dropout2d(0.5)"] * (t.kind == "map")
    if d.pick(True, False):
        d.let(f"{d.own(d.pick(*kinds))}({t})", t, t.channels)
    else:
        d.let(f"F.dropout({t}, 0.5, self.training)", t, t.channels)


# Residual and dense.


@ingredient()
def residual(d: Draft, t: Made) -> None:
    inner = d.activated(d.layer(t))
    d.let(f"{t} + {d.projection(inner, t.channels)}({inner})", t, t.channels)


@ingredient()
def residual_chain(d: Draft, t: Made) -> None:
    for _ in range(d.pick(2, 3)):
        inner = d.activated(d.let(f"{d.projection(t, w := d.width())}({t})", t, w))
        t = d.let(f"{t} + {d.projection(inner, t.channels)}({inner})", t, t.channels)


@ingredient("map")
def downsampling_residual(d: Draft, t: Made) -> None:
    if t.level > 1:
        d.layer(t)
        return
    c, o = t.channels, d.width()
    a = d.own(f"nn.Conv2d({c}, {o}, 3, stride=2, padding=1, bias=False)", c)
    b = d.own(f"nn.Conv2d({c}, {o}, 1, stride=2, bias=False)", c)
    norm = d.own(f"nn.BatchNorm2d({o})")
    d.let(f"{norm}({a}({t})).relu() + {b}({t})", t, o, t.level + 1)


@ingredient()
def concatenated(d: Draft, t: Made) -> None:
    parts = [t, *(d.another(t) for _ in range(d.pick(1, 2)))]
    joined = ", ".join(map(str, parts))
    d.let(f"torch.cat([{joined}], {t.axis})", t, sum(p.channels for p in parts))


@ingredient()
def dense(d: Draft, t: Made) -> None:
    parts = [t]
    joined = t
    for _ in range(d.pick(2, 3)):
        parts.append(d.activated(d.layer(joined, d.draw(st.integers(1, 4)))))
        names = ", ".join(map(str, parts))
        channels = sum(p.channels for p in parts)
        joined = d.let(f"torch.cat([{names}], dim={t.axis})", t, channels)


@ingredient()
def concatenated_twice(d: Draft, t: Made) -> None:
    other = d.another(t)
    inner = d.let(f"torch.cat([{t}, {other}], {t.axis})", t, t.channels + other.channels)
    last = d.layer(d.another(t))
    channels = inner.channels + last.channels
    d.let(f"torch.cat([{last}, {inner}], {t.axis})", t, channels)


@ingredient("map")
def inception(d: Draft, t: Made) -> None:
    one, three = d.layer(t), d.layer(d.activated(d.layer(t)))
    pool = d.pick("F.max_pool2d({t}, 3, 1, 1)", "F.avg_pool2d({t}, 3, stride=1, padding=1)")
    pooled = d.layer(d.let(pool.format(t=t), t, t.channels))
    channels = one.channels + three.channels + pooled.channels
    d.let(f"torch.cat([{one}, {three}, {pooled}], dim=1)", t, channels)


# Channels move.


@ingredient()
def chunked(d: Draft, t: Made) -> None:
    parts = d.pick(2, 3)
    t = d.fitting(t, parts)
    codes = """
        torch.chunk({t}, {n}, {a})
        {t}.chunk({n}, dim={a})
        torch.split({t}, {s}, {a})
        {t}.tensor_split({n}, {a})
    """
    each = t.channels // parts
    d.let_all(d.one_of(codes, t=t, n=parts, a=t.axis, s=each), t, [each] * parts)


@ingredient()
def split_unevenly(d: Draft, t: Made) -> None:
    if t.channels < 2:
        t = d.layer(t, d.width(2))
    first = d.draw(st.integers(1, t.channels - 1))
    sizes = [first, t.channels - first]
    d.let_all(f"torch.split({t}, {sizes}, dim={t.axis})", t, sizes)


@ingredient()
def sliced(d: Draft, t: Made) -> None:
    c = t.channels
    start = d.draw(st.integers(0, c - 1))
    stop = d.draw(st.integers(start + 1, c))
    step = d.pick(1, 2)
    bounds, left = f"{start}:{stop}:{step}", len(range(start, stop, step))
    if d.pick(False, True):
        d.let(f"{t}.narrow({t.axis}, {start}, {stop - start})", t, stop - start)
    else:
        d.let(f"{t}[:, {bounds}]" if t.axis == 1 else f"{t}[..., {bounds}]", t, left)


@ingredient()
def indexed(d: Draft, t: Made) -> None:
    order = d.draw(st.lists(st.integers(0, t.channels - 1), min_size=1, max_size=WIDEST))
    way = d.pick("list", "index_select", "single")
    if way == "list":
        code = f"{t}[:, {order}]" if t.axis == 1 else f"{t}[..., {order}]"
        d.let(code, t, len(order))
    elif way == "index_select":
        d.let(f"torch.index_select({t}, {t.axis}, torch.tensor({order}))", t, len(order))
    else:
        code = f"{t}[:, {order[0]}].unsqueeze(1)" if t.axis == 1 else f"{t}[..., {order[0]}, None]"
        d.let(code, t, 1)


@ingredient()
def flipped_or_rolled(d: Draft, t: Made) -> None:
    codes = """
        {t}.flip({a})
        torch.roll({t}, 1, dims={a})
        {t}.roll(-2, {a})
        {t} + {t}.flip({a})
    """
    d.let(d.one_of(codes, t=t, a=t.axis), t, t.channels)


@ingredient()
def gated_halves(d: Draft, t: Made) -> None:
    t = d.fitting(t, 2)
    d.do(f"a, b = {t}.chunk(2, {t.axis})")
    code = d.pick("a * b", "F.glu({t}, {a})", "a * b.sigmoid()", "a - b")
    d.let(code.format(t=t, a=t.axis), t, t.channels // 2)


@ingredient("map")
def shuffled(d: Draft, t: Made) -> None:
    groups = d.pick(2, 3)
    t = d.fitting(t, groups)
    if d.pick(False, True):
        d.let(f"{d.own(f'nn.ChannelShuffle({groups})')}({t})", t, t.channels)
        return
    d.do(f"b, c, h, w = {t}.{d.pick('shape', 'size()')}")
    d.do(f"mixed = {t}.view(b, {groups}, c // {groups}, h, w).transpose(1, 2)")
    codes = """
        mixed.contiguous().view(b, c, h, w)
        mixed.reshape(b, c, h, w)
        mixed.reshape(b, -1, h, w)
        mixed.flatten(1, 2)
    """
    d.let(d.one_of(codes), t, t.channels)


@ingredient("map")
def padded_channels(d: Draft, t: Made) -> None:
    before, after = d.draw(st.integers(0, 3)), d.draw(st.integers(0, 3))
    value = d.pick("", "", ", value=1.0")
    pad = f"F.pad({t}, (0, 0, 0, 0, {before}, {after}){value})"
    d.let(pad, t, before + t.channels + after)


@ingredient("map")
def padded_shortcut(d: Draft, t: Made) -> None:
    extra = d.draw(st.integers(1, 3))
    wide = d.layer(t, t.channels + extra)
    d.let(f"{wide} + F.pad({t}, (0, 0, 0, 0, 0, {extra}))", t, wide.channels)


@ingredient()
def repeated(d: Draft, t: Made) -> None:
    sizes = {"map": "1, 2, 1, 1", "rows": "1, 1, 1, 2", "tokens": "1, 1, 2", "vector": "1, 2"}
    t = t if t.channels <= WIDEST else d.layer(t)
    if d.pick(True, False):
        d.let(f"{t}.repeat({sizes[t.kind]})", t, 2 * t.channels)
    else:
        d.let(f"{t}.repeat_interleave(2, {t.axis})", t, 2 * t.channels)


# Channels are mixed, counted, or treated in ways without a rule.


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


# Space.


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


# Between kinds.


@ingredient("map", often=3)
def to_rows(d: Draft, t: Made) -> None:
    rows = d.let_kind(f"{t}.permute(0, 2, 3, 1)", "rows", t.channels, t.level)
    d.layer(d.normalised(rows) if d.pick(True, False) else rows)


@ingredient("rows")
def from_rows(d: Draft, t: Made) -> None:
    codes = """
        {t}.permute(0, 3, 1, 2)
        {t}.permute(0, 3, 1, 2).contiguous()
        {t}.movedim(-1, 1)
    """
    d.let_kind(d.one_of(codes, t=t), "map", t.channels, t.level)


@ingredient("map", often=3)
def to_tokens(d: Draft, t: Made) -> None:
    codes = """
        {t}.flatten(2).transpose(1, 2)
        {t}.view({t}.size(0), {t}.size(1), -1).permute(0, 2, 1)
    """
    d.let_kind(d.one_of(codes, t=t), "tokens", t.channels, t.level)


@ingredient("tokens")
def from_tokens(d: Draft, t: Made) -> None:
    sizes = next((m for m in d.made if (m.kind, m.level) == ("map", t.level)), None)
    if sizes is None:
        d.layer(t)
        return
    d.do(f"b, n, c = {t}.shape")
    d.do(f"_, _, h, w = {sizes}.shape")
    codes = """
        {t}.transpose(1, 2).reshape(b, c, h, w)
        {t}.view(b, h, w, c).permute(0, 3, 1, 2)
        {t}.transpose(1, 2).unflatten(2, (h, w))
    """
    d.let_kind(d.one_of(codes, t=t), "map", t.channels, t.level)


@ingredient("map", "rows", "tokens")
def to_vector(d: Draft, t: Made) -> None:
    c = t.channels
    if t.kind == "tokens":
        d.let_kind(d.pick(f"{t}.mean(1)", f"{t}[:, 0]"), "vector", c, 0)
    elif t.kind == "rows":
        d.let_kind(f"{t}.mean((1, 2))", "vector", c, 0)
    elif d.pick(True, False):
        means = (f"{t}.mean((2, 3))", f"{t}.amax((2, 3))", f"{t}.flatten(2).mean(-1)")
        d.let_kind(d.pick(*means), "vector", c, 0)
    else:
        codes = """
            F.adaptive_avg_pool2d({t}, 2).flatten(1)
            F.adaptive_avg_pool2d({t}, 2).reshape({t}.shape[0], -1)
            torch.flatten(F.adaptive_avg_pool2d({t}, 2).permute(0, 2, 3, 1), 1)
        """
        d.let_kind(d.one_of(codes, t=t), "vector", 4 * c, 0)


@ingredient("vector")
def scaled_map(d: Draft, t: Made) -> None:
    maps = [m for m in reversed(d.made) if m.kind == "map"]
    if not maps:
        d.layer(t)
        return
    m = d.pick(*maps)
    scale = t if t.channels == m.channels else d.layer(t, m.channels)
    d.let(f"{m} {d.pick('*', '+')} {scale}[:, :, None, None]", m, m.channels)


@ingredient("rows", "tokens", "vector")
def multilayer_perceptron(d: Draft, t: Made) -> None:
    up, wide = d.linear(t.channels, w := d.width()), w
    inner = d.let(f"F.gelu({up}({d.normalised(t)}))", t, wide)
    d.let(f"{t} + {d.linear(wide, t.channels)}({inner})", t, t.channels)


# Attention.


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
