"""Image files are found in folders and zips, and read up to a bound; nothing is unpacked."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from upscale.lab.inputs import album
from upscale.lab.inputs.album import Album, Folder, ImageError, Zip, folders
from upscale.lab.inputs.classes import classes_of

FILES = ("a/1.png", "a/deep/2.JPG", "b/3.webp")
OTHERS = ("notes.txt", "a/.hidden.png", "__MACOSX/a/1.png", "b/archive.zip", "c.png/readme")


def folder_of(path: Path) -> Folder:
    for name in (*FILES, *OTHERS):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(name.encode())
    return Folder(path)


def zip_of(path: Path) -> Zip:
    with zipfile.ZipFile(path, "w") as held:
        for name in (*FILES, *OTHERS):
            held.writestr(name, name)
    return Zip(path)


def both(tmp_path: Path) -> list[Album]:
    return [folder_of(tmp_path / "folder"), zip_of(tmp_path / "some.zip")]


def test_images_are_found_at_any_depth_and_nothing_else_is(tmp_path: Path) -> None:
    for own in both(tmp_path):
        assert [str(path) for path in own.paths] == list(FILES)
        assert [own.read(path).decode() for path in own.paths] == list(FILES)
        assert folders(own.paths) == ["a", "a", "b"]


def test_links_that_lead_back_are_followed_once(tmp_path: Path) -> None:
    root = tmp_path / "folder"
    own = folder_of(root)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "4.png").write_bytes(b"4")
    (root / "d").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "up").symlink_to(root)
    os.mkfifo(root / "pipe.png")
    assert [str(path) for path in own.paths] == [*FILES, "d/4.png"]


def test_no_file_is_read_beyond_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(album, "MOST_BYTES", 1000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as held:
        held.writestr("zeros.png", bytes(1 << 24))
    (tmp_path / "large.png").write_bytes(bytes(1001))
    for own in (Zip(tmp_path / "bomb.zip"), Folder(tmp_path)):
        with pytest.raises(ImageError, match="more than"):
            own.read(own.paths[0])


def test_a_member_that_would_climb_out_of_a_zip_goes_nowhere(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "climbing.zip", "w") as held:
        held.writestr("../../outside.png", b"here")
        held.writestr("/root.png", b"there")
    own = Zip(tmp_path / "climbing.zip")
    assert {own.read(path) for path in own.paths} == {b"here", b"there"}
    assert [path.name for path in tmp_path.iterdir()] == ["climbing.zip"]


def test_a_damaged_or_encrypted_member_is_an_error_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "some.zip"
    with zipfile.ZipFile(file, "w") as held:
        held.writestr("1.png", b"as it was")
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"as it was", b"as it is!"))
    damaged = Zip(file)
    with pytest.raises(ImageError, match="CRC"):
        damaged.read(damaged.paths[0])
    flagged = bytearray(whole)
    flagged[whole.index(b"PK\x01\x02") + 8] |= 1
    file.write_bytes(flagged)
    encrypted = Zip(file)
    with pytest.raises(ImageError, match="encrypted"):
        encrypted.read(encrypted.paths[0])


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["x/a/1.png", "x/b/1.png"], ["a", "b"]),
        (["a/b/1.png", "c/b/1.png"], ["a", "c"]),
        (["1.png", "a/1.png"], None),
        (["a/1.png", "a/2.png"], None),
    ],
)
def test_folders_are_told_below_what_all_files_share(
    paths: list[str], found: list[str] | None
) -> None:
    assert folders(tuple(map(PurePosixPath, paths))) == found


def test_folders_are_classes_only_where_the_model_has_as_many() -> None:
    assert classes_of(["n02", "n01", "n02"], 2) == [1, 0, 1]
    assert classes_of(["n02", "n01"], 1000) is None
    assert classes_of(["10", "9", "007"], 1000) == [10, 9, 7]
    assert classes_of(["1", "2"], 2) is None
