"""The commands, what becomes of errors, and the status that the program ends with."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from upscale.capture import Example
from upscale.cli import arguments as command_line
from upscale.cli.arguments import amount_of, example_of, selection_of, target_of, targets_of
from upscale.cli.given_data import GivenData
from upscale.cli.progress import Progress
from upscale.cli.races import as_table, plain, ratio_of
from upscale.cli.reading import ArgumentsError
from upscale.deploy import to_exported, to_onnx, to_torchscript
from upscale.errors import ExampleError, SlowerWarning, UpscaleError
from upscale.lab import sweep as lab
from upscale.lab.sources import SourceError, find_model, is_onnx
from upscale.lab.sweep.records import rows_of
from upscale.lab.sweep.running import Pace
from upscale.onnx_files import by_layer, write_onnx
from upscale.onnx_files import example_of as example_of_file
from upscale.pruning.prune import prune
from upscale.pruning.survey import survey
from upscale.selection.options import OPTIONS
from upscale.store import save
from upscale.targets.racing import Measurement, race_models
from upscale.targets.runtime import cache_path, calibrate, runtime_of
from upscale.tools.interrupts import STATUS, end_interrupted, interruptible

OK, FAILED, MISUSED, SLOWER, INTERRUPTED = 0, 1, 2, 3, STATUS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is what scripts go by."""
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        with interruptible():
            status = _run(command_line.make_parser().parse_args(given))
            sys.stdout.flush()
            return status
    except (Exception, KeyboardInterrupt) as error:  # a model's own code may raise anything
        status = say_error(error, as_json=wants_json(given))
        if status == INTERRUPTED:
            end_interrupted()
        return status


def _run(arguments: argparse.Namespace) -> int:
    commands = {"prune": _prune, "inspect": _inspect, "bench": _bench, "calibrate": _calibrate}
    commands |= {"sweep": _sweep, "operations": _operations}
    command_line.check(arguments)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", UserWarning)
        try:
            status = commands[arguments.command](arguments)
        except SystemExit as error:
            raise SourceError(f"code that was given called sys.exit({error.code!r})") from error
    for warning in told:
        if warning.category.__module__.startswith("upscale"):
            print(f"upscale: {warning.message}", file=sys.stderr)
    slower = any(issubclass(warning.category, SlowerWarning) for warning in told)
    return SLOWER if slower and status == OK else status


def _prune(arguments: argparse.Namespace) -> int:
    formats = {"onnx": to_onnx, "pt2": to_exported, "torchscript": to_torchscript}
    asked = {name: path for name in formats if (path := getattr(arguments, name)) is not None}
    command_line.check_apart({"out": arguments.out, **asked})
    selection = selection_of(arguments)
    data = GivenData.of(arguments)
    into_onnx = is_onnx(arguments.model) and is_onnx(arguments.out)
    steps = 3 + len(asked) + (2 if data is not None else 0)
    with Progress(steps, quiet=arguments.quiet) as progress:
        model = _model(arguments, progress)
        example = _example(arguments, model, data)
        if selection is not None and is_onnx(arguments.model):
            selection = by_layer(model, selection)
        options = {} if selection is not None else _options(arguments)
        if data is not None:
            progress.step(f"reading {arguments.data}")
            options |= data.options(model, example, arguments.importance)
        progress.step("pruning and verifying")
        pruned = prune(
            model,
            example,
            amount=None if selection is not None else amount_of(arguments),
            selection=selection,
            target=target_of(arguments, _batch(example)),
            verify=not arguments.no_verify,
            measure=arguments.measure,
            fuse=arguments.fuse,
            recover={None: False, "all": True}.get(arguments.recover, arguments.recover),
            bias=bool(arguments.bias),
            steps=arguments.steps,
            progress=progress.tell,
            **options,
        )
        progress.step(f"writing {arguments.out}")
        if into_onnx:
            write_onnx(pruned, model, arguments.out, example=example)
        else:
            save(pruned, arguments.out)
        for name, path in asked.items():
            progress.step(f"writing {path}")
            formats[name](pruned, example, path)
        answers = None
        if data is not None:
            progress.step("answering before and after")
            answers = data.answers(model, pruned, example)
    before, after = _weights(model), _weights(pruned)
    verified = pruned.meta.get("verified")
    race = {name: own.median_ms for name, own in pruned.meta.get("race", {}).items()}
    result: dict[str, Any] = {
        "model": arguments.model,
        "parameters_before": before,
        "parameters_after": after,
        "files": [str(path) for path in (arguments.out, *asked.values())],
        "verified": verified is not None and verified.exact,
        "verification": None if verified is None else asdict(verified),
        "median_ms": race or None,
        "data": None if data is None else data.told(),
        "answers": None if answers is None else asdict(answers),
    }
    lines = [
        f"{arguments.model}: {before:,} parameters became {after:,} ({after / before:.1%}).",
        "Not verified, as asked." if verified is None else str(verified),
        *([] if data is None else data.lines()),
        *([] if answers is None else [str(answers)]),
        *(f"{name}: {taken:.2f} ms" for name, taken in race.items()),
        *(f"Written: {path}" for path in result["files"]),
    ]
    return _show(arguments, result, lines)


def _example(arguments: argparse.Namespace, model: nn.Module, data: GivenData | None = None) -> Any:
    """An input of the shape asked for; if none is, as data or the model's own file have it."""
    held = None if data is None or arguments.shape is not None else data.example()
    if held is None and arguments.shape is None and is_onnx(arguments.model):
        held = example_of_file(model)
    return example_of(arguments) if held is None else held


def _batch(example: Any) -> int:
    return len(Example.of(example).tensors[0])


def _inspect(arguments: argparse.Namespace) -> int:
    with Progress(2, quiet=arguments.quiet) as progress:
        model = _model(arguments, progress)
        example = _example(arguments, model)
        progress.step("following its channels")
        found = survey(model, example, target=target_of(arguments, _batch(example)))
    return _show(arguments, asdict(found), [str(found)])


def _bench(arguments: argparse.Namespace) -> int:
    taken: dict[str, dict[str, Measurement]] = {}
    with Progress(1 + 2 * len(targets_of(arguments)), quiet=arguments.quiet) as progress:
        model = _model(arguments, progress)
        example = _example(arguments, model)
        targets = targets_of(arguments, _batch(example))
        for target in targets:
            if arguments.against is not None:
                progress.step(f"loading {arguments.against}")
                smaller: nn.Module = find_model(str(arguments.against), None)
            else:
                progress.step(f"pruning for {target.runtime}")
                options = {"amount": amount_of(arguments), **_options(arguments)}
                smaller = prune(model, example, target=target, **options)
            progress.step(f"racing on {target.runtime}")
            _check_takes(smaller, example)
            models = {"unpruned": model, "pruned": smaller}
            taken[target.runtime] = race_models(models, example, target, runs=arguments.runs)
    results = {name: {"ratio": ratio_of(own), **plain(own)} for name, own in taken.items()}
    first = targets[0].runtime
    if len(targets) > 1:
        _show(arguments, results, as_table(taken))
    else:
        lines = [f"{name}: {own}" for name, own in taken[first].items()]
        ratio = results[first]["ratio"]
        lines.append(f"The pruned model takes {ratio:.2f} times as long as the unpruned.")
        _show(arguments, results[first], lines)
    return OK if all(own["ratio"] < 1 for own in results.values()) else SLOWER


def _operations(arguments: argparse.Namespace) -> int:
    with Progress(2, quiet=arguments.quiet) as progress:
        model = _model(arguments, progress)
        example = _example(arguments, model)
        target = target_of(arguments, _batch(example))
        progress.step(f"asking {target.runtime}")
        runtime = runtime_of(target)
        runtime.check_installed()
        found = runtime.operations(model.eval(), Example.of(example), target)
    moving = sum(count for kind, count in found.items() if kind in runtime.moving)
    lines = [
        f"{count:5} {kind}{'  (moves data)' if kind in runtime.moving else ''}"
        for kind, count in found.most_common()
    ]
    lines.append(f"{moving} of {found.total()} operations copy or change a layout.")
    return _show(arguments, {"operations": dict(found), "moving": moving}, lines)


def _calibrate(arguments: argparse.Namespace) -> int:
    with Progress(1, quiet=arguments.quiet) as progress:
        progress.step("measuring")
        prices = asdict(calibrate(target_of(arguments)))
    lines = [f"{name}: {value}" for name, value in prices.items()]
    return _show(arguments, prices, [*lines, f"Kept in {cache_path()}"])


def _sweep(arguments: argparse.Namespace) -> int:
    """Measure what has no record yet, or show what has. The status is 1 if a cell failed."""
    if arguments.csv and not arguments.show:
        raise ArgumentsError("--csv is how --show prints: give both")
    if arguments.address is not None and arguments.on != "ray":
        raise ArgumentsError("--address is that of a Ray: give --on ray too")
    cells = lab.read_grid(arguments.grid)
    path = arguments.records or arguments.grid.with_suffix(".sqlite")
    if arguments.show:
        wanted = {cell.key for cell in cells}
        records = [own for own in lab.read_records(path) if own.cell.key in wanted]
        table = lab.as_table(records) if records else "No cell of this grid has a record yet."
        told = lab.as_csv(records).removesuffix("\n") if arguments.csv else table
        return _show(arguments, rows_of(records), [told])
    with Progress(len(cells), quiet=arguments.quiet) as progress:

        def tell(record: lab.Record | None, pace: Pace) -> None:
            if record is None:
                progress.skip(len(cells) - sum(pace.cells.values()))
            elif record.error is not None:
                progress.say(f"failed: {record.cell}: {record.error}")
            progress.step(str(pace))

        summary = lab.run(
            cells,
            path,
            on=arguments.on,
            workers=arguments.workers,
            address=arguments.address,
            retry=arguments.retry,
            timeout=arguments.timeout,
            tell=tell,
            say=progress.say,
        )
    told = (
        f"{summary.cells} cells: {summary.measured} measured now, {summary.before} recorded "
        f"before, {summary.failed} failed. Records: {path}"
    )
    _show(arguments, {**asdict(summary), "records": str(path)}, [told])
    return FAILED if summary.failed else OK


def _model(arguments: argparse.Namespace, progress: Progress) -> nn.Module:
    progress.step(f"loading {arguments.model}")
    model = find_model(arguments.model, arguments.weights).to(getattr(torch, arguments.dtype))
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    if arguments.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `select` is told."""
    return {name: getattr(arguments, name) for name in OPTIONS}


def _check_takes(model: nn.Module, example: Any) -> None:
    """Raise unless a model that was read from a file takes an input of the shape given."""
    given = Example.of(example)
    try:
        with torch.inference_mode():
            model(*given.args, **given.kwargs)
    except (RuntimeError, TypeError, ValueError) as error:
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise ExampleError(
            f"the pruned model does not take an input of shape "
            f"{', '.join(str(tuple(own.shape)) for own in given.tensors)}: {first[0]}"
        ) from error


def _weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _show(arguments: argparse.Namespace, result: object, lines: Sequence[str]) -> int:
    print(json.dumps(result, indent=2, default=str) if arguments.json else "\n".join(lines))
    return OK


def wants_json(given: Sequence[str]) -> bool:
    """Whether arguments ask for JSON, as far as they can be read at all; they may be cut short."""
    return any(len(own) > 2 and "--json".startswith(own) for own in given)


def say_error(error: BaseException, *, as_json: bool) -> int:
    """Say what went wrong in one line, and as JSON where that is asked for; the status."""
    status, message = _outcome(error)
    print(f"upscale: {message}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": type(error).__name__, "message": message}, indent=2))
        sys.stdout.flush()
    return status


def _outcome(error: BaseException) -> tuple[int, str]:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    if isinstance(error, UpscaleError):
        return (MISUSED if isinstance(error, ArgumentsError) else FAILED), str(error)
    if isinstance(error, ValueError):
        return MISUSED, str(error)
    if isinstance(error, OSError):
        return FAILED, f"{error.strerror or error}: {error.filename or ''}"
    # Nobody foresaw it: where it came from is worth more than brevity.
    traceback.print_exception(error)
    return FAILED, f"{type(error).__name__}: {error}"
