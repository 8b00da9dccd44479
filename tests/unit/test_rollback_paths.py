"""What was at a path comes back, byte for byte; doing it twice is harmless (CONTRACT E2)."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from makegood.errors import DeclarationError
from makegood.tasks import paths


def picture(path: Path) -> object:
    """Everything that can be seen at a path, without following links."""
    if path.is_symlink():
        return f"→ {path.readlink()}"
    if path.is_dir():
        return (
            oct(path.stat().st_mode),
            {each.name: picture(each) for each in sorted(path.iterdir())},
        )
    return (oct(path.stat().st_mode), path.read_bytes()) if path.exists() else None


def leave_absent(path: Path) -> None: ...


def make_file(path: Path) -> None:
    path.write_bytes(b"\x00\xffbefore")
    path.chmod(0o640)


def make_empty_file(path: Path) -> None:
    path.touch()


def make_link(path: Path) -> None:
    path.symlink_to("elsewhere/that/is/not")


def make_folder(path: Path) -> None:
    (path / "sub" / "empty").mkdir(parents=True)
    (path / "a").write_text("a")
    (path / "sub" / "ü b").write_text("b" * 1000)
    (path / "sub" / "link").symlink_to(path / "a")
    (path / "sub" / "closed").mkdir(mode=0o500)
    (path / "a").chmod(0o400)
    path.chmod(0o750)


BEFORE = [leave_absent, make_file, make_empty_file, make_link, make_folder]


def write_over(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        (path / "a").chmod(0o600)
        (path / "a").write_text("changed")
        (path / "new" / "deep").mkdir(parents=True)
        (path / "new" / "deep" / "file").write_text("x")
        (path / "new").chmod(0o500)
        return
    if path.is_symlink():
        path.unlink()
    path.write_text("after")


def replace_by_folder(path: Path) -> None:
    remove(path)
    (path / "x" / "y").mkdir(parents=True)
    (path / "x" / "y" / "z").write_text("z")
    (path / "x" / "y").chmod(0o500)


def replace_by_link(path: Path) -> None:
    remove(path)
    path.symlink_to(path.parent / "kept")


def remove(path: Path) -> None:
    paths.put_back(path, {"type": "absent"})


AFTER = [leave_absent, write_over, replace_by_folder, replace_by_link, remove]


@pytest.mark.contract("E2")
@pytest.mark.parametrize("change", AFTER)
@pytest.mark.parametrize("make", BEFORE)
def test_what_was_there_comes_back(
    tmp_path: Path, make: Callable[[Path], None], change: Callable[[Path], None]
) -> None:
    """Whatever was there and whatever became of it; the second time nothing changes; nothing else is touched."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("not mine")
    path = tmp_path / "declared"
    make(path)
    before = picture(path)
    prior = json.loads(json.dumps(paths.take(path)))
    change(path)
    for _ in range(2):
        paths.put_back(path, prior)
        assert picture(path) == before
    assert (kept / "file").read_text() == "not mine"
    assert {each.name for each in tmp_path.iterdir()} <= {"kept", "declared"}


def test_a_file_that_did_not_change_is_not_written(tmp_path: Path) -> None:
    """Whoever has it open keeps it."""
    path = tmp_path / "file"
    make_file(path)
    prior, inode = paths.take(path), path.stat().st_ino
    paths.put_back(path, prior)
    assert path.stat().st_ino == inode


def test_the_folder_of_a_file_may_be_gone(tmp_path: Path) -> None:
    """It is made again."""
    path = tmp_path / "sub" / "file"
    path.parent.mkdir()
    make_file(path)
    prior = paths.take(path)
    remove(path.parent)
    paths.put_back(path, prior)
    assert path.read_bytes() == b"\x00\xffbefore"


def test_nothing_in_place_of_the_folder_of_an_absent_path_is_touched(tmp_path: Path) -> None:
    """A path below a file is absent, and stays so."""
    file = tmp_path / "file"
    file.write_text("x")
    assert paths.take(file / "below") == {"type": "absent"}
    paths.put_back(file / "below", {"type": "absent"})
    assert file.read_text() == "x"


def test_a_roll_back_that_was_cut_is_done_by_the_next(tmp_path: Path) -> None:
    """Half restored, with a piece of the first try beside."""
    path = tmp_path / "folder"
    make_folder(path)
    before, prior = picture(path), paths.take(path)
    remove(path / "sub")
    (path / ".makegood-0123").write_text("half")
    paths.put_back(path, prior)
    assert picture(path) == before


MIB = 1024 * 1024


def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    """One sentence that says what to do; up to the limit it is kept."""
    for name, size in (("fits", MIB), ("large", MIB + 1)):
        (tmp_path / name).write_bytes(b"x" * size)
    assert paths.take(tmp_path / "fits")["type"] == "file"
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(3):
        (folder / str(number)).write_bytes(b"x" * 400_000)
    crowd = tmp_path / "crowd"
    crowd.mkdir()
    for number in range(10_000):
        (crowd / str(number)).touch()
    for path in (tmp_path / "large", folder, crowd):
        with pytest.raises(DeclarationError, match=r"more than 1 MiB.*@resource") as caught:
            paths.take(path)
        assert str(caught.value).endswith(".")


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    """A socket, and a name that is no text."""
    with socket.socket(socket.AF_UNIX) as server:
        place = Path.cwd()
        os.chdir(tmp_path)  # a socket's whole path may be too long
        try:
            server.bind("socket")
        finally:
            os.chdir(place)
    with pytest.raises(DeclarationError, match="neither a file"):
        paths.take(tmp_path / "socket")
    with pytest.raises(DeclarationError, match="neither a file"):
        paths.take(tmp_path)
    (tmp_path / "names").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "names") + b"/\xff")).touch()
    with pytest.raises(DeclarationError, match="no UTF-8"):
        paths.take(tmp_path / "names")


@pytest.mark.parametrize(
    ("id", "says"),
    [
        ("relative/file", "not absolute"),
        ("../file", "not absolute"),
        ("~/file", "not absolute"),
        ("", "not absolute"),
        ("/a\0b", "not absolute"),
        ("/", "is the root"),
        ("//", "is the root"),
        ("/.", "is the root"),
        ("/srv/new/../shared", "goes up with '..'"),
        ("/..", "goes up with '..'"),
    ],
)
def test_a_path_must_be_findable_by_another_process(id: str, says: str) -> None:  # noqa: A002
    """Absolute, not the root, and the same whatever becomes of the folders in it."""
    with pytest.raises(DeclarationError, match=says) as caught:
        paths.checked_path(id)
    assert str(caught.value).endswith(".")
    assert paths.checked_path("/srv/..data/a..b") == Path("/srv/..data/a..b")


@pytest.mark.parametrize("make", BEFORE)
def test_each_change_is_asked_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Whoever may not act any more changes nothing, however far it has come; the next one finishes it."""
    path = tmp_path / "declared"
    make(path)
    before, prior = picture(path), paths.take(path)
    replace_by_folder(path)
    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked > limit:
            raise TimeoutError

    for limit in range(50):
        asked, seen = 0, picture(path)
        try:
            paths.put_back(path, prior, check)
        except TimeoutError:
            assert limit > 0 or picture(path) == seen
            continue
        break
    assert limit > 0
    assert picture(path) == before
