"""Make the folder of CIFAR-10: `python -m paper.make_data ARCHIVE_OR_FOLDER --out DIR`.

From `cifar-10-binary.tar.gz` as its authors publish it, or from a folder of images of 32 x 32:
`train/CLASS/*` and `test/CLASS/*`, the ten classes in the order of their names. Let `UPSCALE_DATA`
name DIR then. Nothing is unpickled, and nothing of the archive is written by its own name.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image, UnidentifiedImageError

from benchmarks.data import SIDE, Classes, Pixels

CLASSES, ACROSS = 10, 100
RECORD = 1 + 3 * SIDE * SIDE
# The files of the binary archive, by split.
BATCHES = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
# Six times what the largest of them is: an archive that claims more is none of CIFAR-10's.
MOST_BYTES = 200_000_000

Split = tuple[Pixels, Classes]


class NoData(SystemExit):
    """What was given is not CIFAR-10, or not in a form that is read."""


def from_archive(path: Path) -> dict[str, Split]:
    """The pictures of the binary archive."""
    try:
        with tarfile.open(path) as archive:
            members = {
                PurePosixPath(own.name).name: own for own in archive.getmembers() if own.isfile()
            }
            if "data_batch_1" in members:
                raise NoData(
                    f"{path} is the Python version, whose batches are pickles: reading them may "
                    "run what is in them. Take the binary version, cifar-10-binary.tar.gz."
                )
            return {
                split: joined(
                    [_records(path, _bytes(path, archive, members, name)) for name in names]
                )
                for split, names in BATCHES.items()
            }
    except (tarfile.TarError, EOFError, OSError) as error:
        raise NoData(f"{path} cannot be read as an archive: {error}") from error


def _bytes(
    path: Path, archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str
) -> bytes:
    member = members.get(name)
    stream = None if member is None else archive.extractfile(member)
    if member is None or stream is None:
        raise NoData(f"{path} has no {name}; cifar-10-binary.tar.gz has")
    if member.size > MOST_BYTES:
        raise NoData(f"{name} of {path} has {member.size} bytes, far more than CIFAR-10's")
    return stream.read()


def _records(path: Path, held: bytes) -> Split:
    """A class, then 1,024 bytes each of red, green and blue, for every picture."""
    if not held or len(held) % RECORD:
        raise NoData(f"{path}: {len(held)} bytes are no whole number of pictures of {RECORD}")
    table = np.frombuffer(held, np.uint8).reshape(-1, RECORD)
    if table[:, 0].max() >= CLASSES:
        raise NoData(f"{path}: a class is {table[:, 0].max()}; there are 0 to {CLASSES - 1}")
    planes = table[:, 1:].reshape(-1, 3, SIDE, SIDE)
    return planes.transpose(0, 2, 3, 1), table[:, 0].astype(np.int64)


def joined(parts: list[Split]) -> Split:
    """Several batches as one."""
    return np.concatenate([own for own, _ in parts]), np.concatenate([own for _, own in parts])


def from_folder(path: Path) -> dict[str, Split]:
    """The pictures of `train/CLASS/*` and `test/CLASS/*`."""
    found = {split: _classes(path / split) for split in BATCHES}
    names = {split: [own.name for own in classes] for split, classes in found.items()}
    if names["train"] != names["test"] or len(names["train"]) != CLASSES:
        raise NoData(
            f"{path}: train/ and test/ must have the same {CLASSES} folders, one for each class; "
            f"they have {names['train']} and {names['test']}"
        )
    return {split: _pictures(classes) for split, classes in found.items()}


def _classes(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise NoData(
            f"{folder} is not there; a folder of images has train/CLASS/* and test/CLASS/*"
        )
    return sorted(own for own in folder.iterdir() if own.is_dir())


def _pictures(classes: list[Path]) -> Split:
    files = [(own, number) for number, each in enumerate(classes) for own in sorted(each.iterdir())]
    pictures = []
    for file, _ in files:
        try:
            picture = Image.open(file).convert("RGB")
        except (UnidentifiedImageError, OSError) as error:
            raise NoData(f"{file} is no image: {error}") from error
        if picture.size != (SIDE, SIDE):
            raise NoData(
                f"{file} is {picture.width} x {picture.height}; it must be {SIDE} x {SIDE}"
            )
        pictures.append(np.asarray(picture))
    if not pictures:
        raise NoData(f"{classes[0].parent} has no images")
    return np.stack(pictures), np.asarray([number for _, number in files], dtype=np.int64)


def mosaics_of(pixels: Pixels) -> Iterator[Image.Image]:
    """Pictures side by side, row by row, up to 100 rows of 100; what is left over is black."""
    most = ACROSS * ACROSS
    for part in (pixels[start : start + most] for start in range(0, len(pixels), most)):
        rows = -(-len(part) // ACROSS)
        tiles = np.zeros((rows * ACROSS, SIDE, SIDE, 3), np.uint8)
        tiles[: len(part)] = part
        laid = tiles.reshape(rows, ACROSS, SIDE, SIDE, 3).transpose(0, 2, 1, 3, 4)
        yield Image.fromarray(laid.reshape(rows * SIDE, ACROSS * SIDE, 3))


def write(splits: dict[str, Split], out: Path) -> Path:
    """`cifar10` in a directory, whole or not at all."""
    folder, partial = out / "cifar10", out / "cifar10.partial"
    if folder.exists():
        raise NoData(f"{folder} is there already: remove it, or give another --out")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for split, (pixels, _) in splits.items():
        made = list(mosaics_of(pixels))
        for number, mosaic in enumerate(made, start=1):
            name = f"{split}-{number}.webp" if len(made) > 1 else f"{split}.webp"
            mosaic.save(partial / name, lossless=True)
    labels = {split: classes.tolist() for split, (_, classes) in splits.items()}
    (partial / "labels.json").write_text(json.dumps(labels), encoding="utf-8")
    partial.rename(folder)
    return folder


def main() -> int:
    """Read, write, and say what there is now."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="ARCHIVE_OR_FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    read = from_folder if arguments.source.is_dir() else from_archive
    splits = read(arguments.source)
    folder = write(splits, arguments.out)
    counts = ", ".join(f"{len(classes):,} {split}" for split, (_, classes) in splits.items())
    print(f"{folder}: {counts} images. Let UPSCALE_DATA be {arguments.out}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
