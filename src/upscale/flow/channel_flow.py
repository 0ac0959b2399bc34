"""Channel flow: the steps of a captured model, and what is known of every line. No torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from upscale.channels import Positions
from upscale.flow.relations import Fold, HeadGrid, Line, Pass, Reduce, Relation, Select


@dataclass(frozen=True, slots=True)
class Frozen:
    """Why something stays whole: the layer or node, the operation, the reason, the source."""

    layer: str
    operation: str
    because: str
    source: str


@dataclass(frozen=True, slots=True)
class Step:
    """What one node of the graph does to lines.

    `reads` are the values it is given, `makes` those it returns. An executed step runs in the
    exported model; the others (selects, aliases) are looked through. `module` is the module a
    node calls. `resize` names the lines whose size stands among a reshape's arguments. A step
    that `keeps` writes what later calls read: it runs whoever wants its result. A step that
    lowering inserted runs `at` a node of the graph.
    """

    node: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    relations: tuple[Relation, ...]
    executed: bool
    module: str | None = None
    frozen: Frozen | None = None
    resize: tuple[Line, ...] = ()
    shape_only: bool = False
    keeps: bool = False
    at: str | None = None


@dataclass(frozen=True)
class ChannelFlow:
    """How channels run through a captured model.

    `grids` are lines spread over several axes; `blocks` those lines whose tensors need equally
    many channels in each of that many blocks; `nbytes` what values weigh on the example. The rest
    is read off the steps once: the `lines` of each value, the `sizes` of all lines in the unpruned
    model, the relations of three kinds, each with its step, and the `nested` lines, whose parts
    are read side by side.
    """

    steps: tuple[Step, ...]
    classes: Mapping[Line, Positions]
    grids: Mapping[Line, HeadGrid]
    blocks: Mapping[Line, int]
    shapes: Mapping[str, tuple[int, ...]]
    nbytes: Mapping[str, int]
    lines: Mapping[str, tuple[Line, ...]] = field(init=False, repr=False)
    sizes: Mapping[Line, int] = field(init=False, repr=False)
    layers: tuple[tuple[Step, Reduce], ...] = field(init=False, repr=False)
    passes: tuple[tuple[Step, Pass], ...] = field(init=False, repr=False)
    selects: tuple[tuple[Step, Select], ...] = field(init=False, repr=False)
    nested: frozenset[Line] = field(init=False, repr=False)
    class_count: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lines: dict[str, list[Line]] = defaultdict(list)
        for line in sorted(self.classes):
            lines[line.value].append(line)
        sizes = {line: len(classes) for line, classes in self.classes.items()}
        kinds: dict[type, list[tuple[Step, Relation]]] = defaultdict(list)
        for step in self.steps:
            for relation in step.relations:
                kinds[type(relation)].append((step, relation))
                values = {line.value for line in (*relation.reads, *relation.cuts)}
                for value in values:
                    for axis, size in enumerate(self.shapes[value]):
                        sizes.setdefault(Line(value, axis), size)
        highest = max((int(c.max()) for c in self.classes.values() if len(c)), default=0)
        derived = {
            "lines": {value: tuple(of_value) for value, of_value in lines.items()},
            "sizes": sizes,
            "layers": tuple(kinds[Reduce]),
            "passes": tuple(kinds[Pass]),
            "selects": tuple(kinds[Select]),
            "nested": frozenset(r.read for _, r in kinds[Fold] if isinstance(r, Fold) and r.nested),
            "class_count": highest + 1,
        }
        for name, known in derived.items():
            object.__setattr__(self, name, known)

    def unrelated(self, step: Step) -> list[Line]:
        """The lines a step is given that none of its relations reads: it needs them whole."""
        related = {line for relation in step.relations for line in relation.reads}
        given = (line for value in step.reads for line in self.lines.get(value, ()))
        return [line for line in given if line not in related]
