"""The arguments of every command, and what they mean."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from upscale import __version__
from upscale.cli.data_arguments import add_data, check_data
from upscale.cli.reading import ArgumentsError, reader, whole
from upscale.errors import SelectionError, UpscaleError
from upscale.lab.sources import HELP
from upscale.lab.sweep.cells import SHAPE, sizes_of
from upscale.lab.sweep.running import PLACES
from upscale.selected.amounts import Amount, Latency, Macs, Parameters
from upscale.selected.selection import Selection
from upscale.selection.importance import BY_WEIGHT, CRITERIA
from upscale.selection.options import OPTIONS, Option
from upscale.targets.target import FORMATS, ITEM_BYTES, RUNTIMES, Target

# What an amount may be a share of, and what it means.
AMOUNTS: Mapping[str, tuple[Callable[[float], Amount | Latency], str]] = {
    "amount": (Amount, "share of channels to prune"),
    "parameters": (Parameters, "share of weights to prune"),
    "macs": (Macs, "share of multiply-adds to prune"),
    "latency": (Latency, "share of the unpruned latency to come down to"),
}

EXAMPLES = {
    "prune": """\
examples:
  upscale prune torchvision:resnet50 --weights r50.safetensors --amount 0.3 --out small.safetensors
  upscale prune mypackage.models:build --shape 1,3,32,32 --latency 0.7 --out small.safetensors
  upscale prune upscale:digits --shape 1,1,8,8 --amount 0.5 --out s.safetensors --onnx s.onnx
  upscale prune torchvision:resnet50 --weights r50.safetensors --amount 0.2 --out s.safetensors \\
    --data photos/ --recover
  upscale prune model.onnx --amount 0.25 --out small.onnx
""",
    "inspect": """\
examples:
  upscale inspect torchvision:vit_b_32
  upscale inspect mypackage.models:build --shape 1,3,32,32 --json
""",
    "bench": """\
examples:
  upscale bench torchvision:resnet18 --amount 0.3
  upscale bench torchvision:resnet18 --against small.safetensors --channels-last
  upscale bench torchvision:mobilenet_v3_large --runtime onnxruntime,openvino --threads 1
""",
    "operations": """\
examples:
  upscale operations torchvision:mobilenet_v3_large --runtime onnxruntime
  upscale operations small.safetensors --runtime openvino --threads 1
""",
    "calibrate": """\
examples:
  upscale calibrate --runtime torchscript --threads 1
""",
    "sweep": """\
examples:
  upscale sweep grid.yaml                               # records go to grid.sqlite
  upscale sweep grid.yaml --on processes --workers 8    # stop it when you like, it goes on later
  upscale sweep grid.yaml --on ray --address auto
  upscale sweep grid.yaml --show
  upscale sweep grid.yaml --show --csv > grid.csv
a grid file:
  model: [upscale:digits]
  shape: "1,1,8,8"
  data: upscale:digits
  importance: [l1, l2]
  constraint: [none, segment]
  amount: {from: 0.1, to: 0.5, step: 0.1}
  metric: [accuracy, latency, parameters]
""",
}


class Parser(argparse.ArgumentParser):
    """A parser that raises what it has to complain of."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentsError(f"{message}; see {self.prog} --help")


def check_apart(files: Mapping[str, Path]) -> None:
    """Raise if two of the files to be written are one: the later would replace the earlier."""
    options: dict[str, str] = {}
    for option, path in files.items():
        first = options.setdefault(os.path.realpath(path), option)
        if first != option:
            raise ArgumentsError(
                f"--{first} and --{option} name the same file, {path}; give each one of its own"
            )


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser: argparse.ArgumentParser = Parser(
        prog="upscale",
        description="Unconstrained channel pruning for PyTorch, exported exactly and fast.",
        epilog="Exit status: 0 done; 1 an error, which is said; 2 wrong arguments; 3 done, but "
        "pruning does not pay; 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"upscale {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_prune(_command(commands, "prune", "prune a model and write a smaller one"))
    _add_source(_command(commands, "inspect", "say what can be pruned, what cannot, and why"))
    bench = _command(commands, "bench", "race a model and a smaller one, on one runtime or several")
    _add_source(bench, several=True)
    _add_amount(bench, pruning=False)
    bench.add_argument("--against", type=Path, metavar="FILE", help="a file that prune wrote")
    bench.add_argument("--runs", type=whole, default=20, help="runs behind each median")
    about = "count what a runtime computes, copies and lays out anew for a model"
    _add_source(_command(commands, "operations", about))
    _add_target(_command(commands, "calibrate", "measure what copies cost on this machine"))
    _add_sweep(_command(commands, "sweep", "measure every setting of a grid, once, and record it"))
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=EXAMPLES[name],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


def _add_source(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=HELP)
    about = "a state_dict in safetensors or torch.save's format; random weights if not given"
    add("--weights", type=Path, metavar="FILE", help=about)
    add("--shape", help=f"of the input; {SHAPE} if nothing else says it")
    _add_target(parser, several=several)


def _add_target(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Where an export will run; `several` runtimes are said with commas between them."""
    add = parser.add_argument
    if several:
        about = f"what will run the exports, one or several with commas: {', '.join(RUNTIMES)}"
        add("--runtime", type=runtimes, default=("torch",), metavar="NAME,...", help=about)
    else:
        add("--runtime", choices=RUNTIMES, default="torch", help="what will run the export")
    add("--channels-last", action="store_true", help="plan for channels-last")
    add("--threads", type=whole, default=None, help="threads that torch may use")
    add("--dtype", choices=sorted(ITEM_BYTES), default="float32", help="of weights and input")


def _add_amount(parser: argparse.ArgumentParser, *, pruning: bool) -> None:
    """How much to prune, and how; `pruning` may have data, and a selection that is known."""
    group = parser.add_mutually_exclusive_group(required=pruning)
    for name, (_, about) in AMOUNTS.items():
        group.add_argument(f"--{name}", type=float, metavar="SHARE", help=about)
    if pruning:
        about = "the channels to keep: the JSON of a Selection"
        group.add_argument("--selection", type=Path, metavar="FILE", help=about)
    for name, option in OPTIONS.items():
        _add_option(parser, name, option, CRITERIA if pruning else BY_WEIGHT)


def _add_option(
    parser: argparse.ArgumentParser, name: str, option: Option, criteria: Iterable[str]
) -> None:
    """Let an option of `select` be said here, in its own words."""
    flag, about = f"--{name.replace('_', '-')}", option.about
    if name == "importance":
        parser.add_argument(flag, choices=tuple(criteria), default=option.default, help=about)
    elif option.choices:
        parser.add_argument(flag, choices=option.choices, default=option.default, help=about)
    elif option.number:
        read = reader(option.number, option.fits, option.must_be, option.words)
        metavar = "|".join(("N", *option.words))
        parser.add_argument(flag, type=read, default=option.default, metavar=metavar, help=about)
    else:
        parser.add_argument(flag, action="append", default=[], metavar="PATTERN", help=about)


def _add_prune(parser: argparse.ArgumentParser) -> None:
    _add_source(parser)
    _add_amount(parser, pruning=True)
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FILE", help="where to write it")
    add("--onnx", type=Path, metavar="FILE", help="write ONNX too")
    add("--pt2", type=Path, metavar="FILE", help="write torch.export's format too")
    add("--torchscript", type=Path, metavar="FILE", help="write TorchScript too")
    add("--measure", action="store_true", help="race it, and take the fastest")
    add("--fuse", action="store_true", help="fold BatchNorms, for inference alone")
    add("--no-verify", action="store_true", help="do not compare with the masked model")
    add("--steps", type=whole, default=1, metavar="N", help="prune in so many steps")
    add_data(parser)


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("grid", type=Path, metavar="GRID", help="a .yaml or .py file of settings")
    add("--records", type=Path, metavar="FILE", help="GRID with the ending .sqlite if not said")
    add("--on", choices=PLACES, default="local", help="where cells are measured")
    add("--workers", type=whole, metavar="N", help="processes; all cores if not said")
    add("--address", help="of a Ray that runs already, such as auto or host:6379")
    add("--retry", action="store_true", help="try cells again that failed before")
    add("--timeout", type=seconds, metavar="SECONDS", help="a cell that takes longer fails")
    add("--show", action="store_true", help="print the records, measure nothing")
    add("--csv", action="store_true", help="with --show: as CSV, all columns")


def runtimes(said: str) -> tuple[str, ...]:
    """The runtimes that are named, each once."""
    found = tuple(dict.fromkeys(name.strip() for name in said.split(",")))
    for name in found:
        if name not in RUNTIMES:
            raise argparse.ArgumentTypeError(
                f"it is {name!r}; it must be one of {', '.join(RUNTIMES)}"
            )
    return found


seconds = reader(float, lambda value: 0 < value < math.inf, "a number of seconds > 0")


def check(arguments: argparse.Namespace) -> None:
    """Raise `ArgumentsError` if an amount, a target or a shape is none."""
    try:
        if "latency" in arguments:
            amount_of(arguments)
        if "runtime" in arguments:
            targets_of(arguments)
        if "shape" in arguments:
            shape_of(arguments)
        if "data" in arguments:
            check_data(arguments)
            _check_selection(arguments)
    except UpscaleError as error:
        raise ArgumentsError(str(error)) from error


def amount_of(arguments: argparse.Namespace) -> Amount | Latency:
    """The amount asked for; a quarter of channels if none is."""
    for name, (kind, _) in AMOUNTS.items():
        if (share := getattr(arguments, name)) is not None:
            return kind(share)
    return Amount(0.25)


def targets_of(arguments: argparse.Namespace, batch: int = 1) -> list[Target]:
    """The targets asked for, one for each runtime."""
    named = arguments.runtime
    return [
        _target(arguments, name, batch) for name in ([named] if isinstance(named, str) else named)
    ]


def target_of(arguments: argparse.Namespace, batch: int = 1) -> Target:
    """The target asked for."""
    (target,) = targets_of(arguments, batch)
    return target


def _target(arguments: argparse.Namespace, runtime: str, batch: int) -> Target:
    return Target(
        runtime=runtime,
        memory_format=FORMATS[arguments.channels_last],
        batch=batch,
        threads=torch.get_num_threads() if arguments.threads is None else arguments.threads,
        dtype=arguments.dtype,
    )


def example_of(arguments: argparse.Namespace) -> Tensor:
    """An input of the shape asked for."""
    x = torch.randn(shape_of(arguments), generator=torch.Generator().manual_seed(0))
    x = x.to(getattr(torch, arguments.dtype))
    if arguments.channels_last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    return x


def shape_of(arguments: argparse.Namespace) -> tuple[int, ...]:
    """The shape of the input: as it is said, or that of images of the size that is said."""
    size = getattr(arguments, "size", None)
    shape = arguments.shape
    if shape is None:
        shape = SHAPE if size is None else f"1,3,{size[0]},{size[1]}"
    sizes = sizes_of(shape)
    if not sizes:
        raise ArgumentsError(f"--shape is {shape!r}; it must be sizes such as {SHAPE}")
    return sizes


def selection_of(arguments: argparse.Namespace) -> Selection | None:
    """The selection that a file holds, if one is named."""
    path: Path | None = arguments.selection
    if path is None:
        return None
    try:
        return Selection.from_json(path.read_text(encoding="utf-8"))
    except (SelectionError, UnicodeDecodeError) as error:
        raise SelectionError(f"{path} holds no selection: {error}") from error


def _check_selection(arguments: argparse.Namespace) -> None:
    """Raise if options that say how to select come with a selection."""
    if arguments.selection is None:
        return
    for name, option in OPTIONS.items():
        if getattr(arguments, name) not in (option.default, []):
            flag = name.replace("_", "-")
            raise ArgumentsError(f"--{flag} has no say where --selection is given; leave it out")
    if arguments.steps > 1:
        raise ArgumentsError("--steps has no say where --selection is given; leave it out")
