"""Analysis: a captured model becomes a channel flow, node by node, rule by rule."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from torch import fx

from upscale.capture import PACKS, Call, Captured, Observed
from upscale.capture.node_queries import asks_property, asks_sizes, size_arguments
from upscale.capture.tracer import source_line
from upscale.channels import Parameter
from upscale.flow.channel_flow import ChannelFlow, Frozen, Step
from upscale.flow.lines import Line
from upscale.flow.relations import Carry, Fold, Pass, Reduce, Relation, Select
from upscale.flow.walk import Declined, Unlined, Walk
from upscale.ops.table import OPERATIONS


def analyse(captured: Captured) -> ChannelFlow:
    """Follow every channel through a captured model; freeze what no rule vouches for."""
    opaque: dict[str, str] = {}
    while True:
        analyst = _Analyst(captured, opaque)
        for node in captured.graph.nodes:
            analyst.visit(node, captured.observed[node.name])
        failing = _misused_parameters(analyst.steps)
        if not failing:
            return analyst.flow()
        opaque.update(failing)


class _Analyst:
    def __init__(self, captured: Captured, opaque: dict[str, str]) -> None:
        self.captured = captured
        self.steps: list[Step] = []
        self._opaque = opaque
        self._resized: set[str] = set()
        self._shapes = {name: info.shape for name, info in captured.values.items()}
        self._walk = Walk(self._shapes, captured.computed)

    def flow(self) -> ChannelFlow:
        """The finished flow."""
        walk, values, sizes = self._walk, self.captured.values, self.captured.sizes
        return ChannelFlow(
            steps=tuple(self.steps),
            classes={line: walk.classes.find(classes) for line, classes in walk.known.items()},
            grids=walk.grids,
            blocks=walk.blocks,
            loose=frozenset(walk.loose),
            shapes=self._shapes,
            nbytes={n: math.prod(sizes[n]) * info.itemsize for n, info in values.items()},
        )

    def visit(self, node: fx.Node, observed: Observed) -> None:
        """Add the step that a node is, if it is one."""
        self._walk.begin()
        if node.op in ("placeholder", "get_attr"):
            return
        if node.op == "output":
            self._add(node, observed, "")
        elif not observed.calls:
            self._visit_silent(node, observed)
        elif self._meets_state(observed):
            self._add(node, observed, "it meets a buffer that the model writes to")
        elif node.name in self.captured.doubted:
            self._add(node, observed, "it may do something else on another input")
        elif node.name in self._opaque:
            self._add(node, observed, self._opaque[node.name])
        else:
            self._visit_calls(node, observed)

    def _meets_state(self, observed: Observed) -> bool:
        """Whether a node reads or writes a buffer that calls leave changed.

        It runs in its place, on the buffer as it is: what is looked through, or read from a
        copy made before, would come at another time.
        """
        met = {*observed.takes, *_parameters(observed)}
        return observed.keeps or not self.captured.state.isdisjoint(met)

    def _visit_silent(self, node: fx.Node, observed: Observed) -> None:
        """Nodes that perform no tensor operation: shapes, numbers, tuples, identities."""
        reads, makes = observed.takes, observed.makes
        if PACKS in node.meta:
            self._add(node, observed, "")
        elif not makes and (not reads or asks_sizes(node) or asks_property(node)):
            self.steps.append(Step(node.name, reads, (), (), executed=True, shape_only=True))
        elif not set(makes) <= set(reads) or not makes:
            self._add(node, observed, "no rule knows what it does")

    def _visit_calls(self, node: fx.Node, observed: Observed) -> None:
        made = {out for call in observed.calls for out in call.outs}
        try:
            self._apply_all(observed, made)
            self._check_chain(node, observed, made)
            resize = self._resize(node)
        except Declined as declined:
            self._walk.forget(made)
            self._add(node, observed, str(declined))
        else:
            self._add(node, observed, self._walk.note, tuple(self._walk.relations), resize)

    def _apply_all(self, observed: Observed, made: set[str]) -> None:
        try:
            for call in observed.calls:
                self._apply(call)
                self._walk.inner.update(call.outs)
        except Unlined as unlined:
            self._walk.forget(made)
            (line,) = unlined.args
            self._line_up(line, observed.takes)
            self._walk.inner = set()
            for call in observed.calls:
                self._apply(call)

    def _line_up(self, line: Line, reads: tuple[str, ...]) -> None:
        """Make a line of the axis, in what a node reads, that it later reduces within itself."""
        shape = self._shapes[line.value]
        for value in reads:
            like = self._shapes[value]
            if len(like) == len(shape) and like[line.axis] == shape[line.axis]:
                self._walk.line(Line(value, line.axis))

    def _apply(self, call: Call) -> None:
        self._walk.derive(call)
        self._walk.made.update(call.outs)
        reads, operation = call.reads, OPERATIONS[call.op]
        if call.aliased and any(map(self._walk.lines, reads)):
            raise Declined("it writes in place into memory it shares")
        if operation.resizes:
            self._resized.update(call.outs)
        if operation.flow is not None:
            operation.flow(call, self._walk)
        elif any(map(self._walk.has_channels, reads)):
            raise Declined("no rule for this operation")

    def _check_chain(self, node: fx.Node, observed: Observed, made: set[str]) -> None:
        """Several operations within one node must hand one line on, untouched from outside."""
        relations = self._walk.relations
        if len(observed.calls) < 2 or not relations:
            return
        if any(isinstance(relation, (Select, Fold)) for relation in relations):
            raise Declined("it rearranges channels within")
        reductions = [r for r in relations if isinstance(r, Reduce)]
        if any(r.groups > 1 and not r.channelwise for r in reductions):
            raise Declined("it rearranges channels within")
        module = _module(node)
        if module and _roles(relations) and module not in self.captured.leaves:
            raise Declined("its layers are used from within another module")
        read = [line for relation in relations for line in relation.reads]
        for value in {value for call in observed.calls for value in call.reads}:
            if value in self._walk.splits or not set(self._walk.lines(value)).issubset(read):
                raise Declined("it mixes channels within")
        seen = [line for line in read if not isinstance(line.value, Parameter)]
        if len(seen) != len(set(seen)):
            raise Declined("several operations within it read the same channels")
        if any(line.value in made and line not in self._walk.known for line in seen):
            raise Declined("it makes a tensor as wide as the channels it meets")

    def _resize(self, node: fx.Node) -> tuple[Line, ...]:
        """The lines whose sizes stand among a node's arguments."""
        lines = tuple(
            relation.out
            for relation in self._walk.relations
            if isinstance(relation, (Pass, Carry)) and relation.out.value in self._resized
        )
        if lines and size_arguments(node) is None:
            raise Declined("its sizes cannot be changed from outside")
        return lines

    def _add(
        self,
        node: fx.Node,
        observed: Observed,
        because: str,
        relations: tuple[Relation, ...] = (),
        resize: tuple[Line, ...] = (),
    ) -> None:
        """Add a node's step; without relations it needs all that it reads whole."""
        makes = () if node.op == "output" else observed.makes
        self.steps.append(
            Step(
                node.name,
                tuple(dict.fromkeys((*observed.takes, *_parameters(observed)))),
                tuple(value for value in makes if value not in self.captured.state),
                relations,
                executed=not any(isinstance(relation, Select) for relation in relations),
                module=_module(node),
                frozen=self._frozen(node, observed, because),
                resize=resize,
                keeps=observed.keeps,
            )
        )

    def _frozen(self, node: fx.Node, observed: Observed, because: str) -> Frozen | None:
        """What the report says of a node that needs channels whole, if it reads any."""
        if not because or not any(map(self._walk.has_channels, observed.takes)):
            return None
        operations = list(dict.fromkeys(call.op for call in observed.calls))
        operation = ", ".join(operations[:3]) or str(node.target)
        module = _module(node)
        if module and len(operations) > 1:
            operation = self.captured.kinds[module]  # an LSTM is known by its name
        return Frozen(module or node.name, operation, because, source_line(node))


def _parameters(observed: Observed) -> list[Parameter]:
    read = (value for call in observed.calls for value in call.reads)
    return [value for value in read if isinstance(value, Parameter)]


def _misused_parameters(steps: Sequence[Step]) -> dict[str, str]:
    """Steps that would cut a parameter another step needs whole, or in another role."""
    roles: dict[Parameter, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for step in steps:
        cut = _roles(step.relations)
        for value in step.reads:
            if isinstance(value, Parameter):
                roles[value][cut.get(value, "whole")].add(step.node)
    return {
        node: f"{value.name} is used in different ways"
        for value, by_role in roles.items()
        for role, nodes in by_role.items()
        for node in nodes
        if len(by_role) > 1 and role != "whole"
    }


def _roles(relations: Iterable[Relation]) -> dict[str, str]:
    """The parameters whose axes follow the lines of relations, and in which role."""
    roles: dict[str, str] = {}
    for relation in relations:
        for line in relation.cuts:
            if not isinstance(relation, Reduce):
                roles[line.value] = f"axis {line.axis}"
            elif line.value != relation.weight:
                roles[line.value] = "rows"
            elif isinstance(line.value, Parameter):
                roles[line.value] = f"weight {line.axis} {relation.groups}"
    return roles


def _module(node: fx.Node) -> str | None:
    return str(node.target) if node.op == "call_module" else None
