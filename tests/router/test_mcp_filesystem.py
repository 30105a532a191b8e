"""The server `filesystem` as an MCP client meets it: one process for all tests, each in a folder of its own."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.commands import retinue
from kit.jsonrpc import Speaker, speaking


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Speaker]:
    """The server of the folders `allowed` and `other`."""
    (home / "allowed").mkdir()
    (home / "other").mkdir()
    (home / "secret.txt").write_text("a secret")
    with speaking(home, "mcp", "run", "filesystem", "allowed", "other") as speaker:
        yield speaker


@pytest.fixture
def place(home: Path, server: Speaker, request: pytest.FixtureRequest) -> Path:
    """A folder within the first allowed one, named as the test."""
    folder = home / "allowed" / str(request.node.originalname)
    folder.mkdir()
    return folder


def inside(place: Path, name: str = "") -> str:
    """The path of something in `place` as the model would write it: relative to the first allowed folder."""
    return f"{place.name}/{name}" if name else place.name


def test_files_are_written_read_listed_moved_and_found(server: Speaker, place: Path) -> None:
    server.call("create_directory", path=inside(place, "a/b"))
    server.call("write_file", path=inside(place, "a/b/one.txt"), content="1\n2\n3\n")
    server.call("write_file", path=str(place / "two.md"), content="two")
    assert (place / "a/b/one.txt").read_text() == "1\n2\n3\n"
    assert server.call("read_text_file", path=inside(place, "a/b/one.txt")) == "1\n2\n3\n"
    assert server.call("read_text_file", path=inside(place, "a/b/one.txt"), head=1) == "1"
    assert server.call("read_text_file", path=inside(place, "a/b/one.txt"), tail=2) == "2\n3"
    assert server.call("list_directory", path=inside(place)) == "[DIR] a\n[FILE] two.md"
    assert "1 files with 3 bytes, 1 folders" in server.call("list_directory_with_sizes", path=inside(place))
    assert json.loads(server.call("directory_tree", path=inside(place)))[0] == {
        "name": "a",
        "type": "directory",
        "children": [
            {"name": "b", "type": "directory", "children": [{"name": "one.txt", "type": "file"}]},
        ],
    }
    assert server.call("search_files", path=inside(place), pattern="*.txt") == inside(place, "a/b/one.txt")
    assert server.call("search_files", path=inside(place), pattern="a/**/*.txt") == inside(place, "a/b/one.txt")
    assert server.call("search_files", path=inside(place), pattern="*.txt", exclude_patterns=["b"]) == "nothing matches"
    server.call("move_file", source=inside(place, "two.md"), destination=inside(place, "a/three.md"))
    assert (place / "a/three.md").read_text() == "two" and not (place / "two.md").exists()
    info = json.loads(server.call("get_file_info", path=inside(place, "a/three.md")))
    assert (info["type"], info["size"]) == ("file", 3)
    both = server.call("read_multiple_files", paths=[inside(place, "a/three.md"), "gone.txt"])
    assert "three.md:\ntwo" in both and "not read: gone.txt: there is no such file" in both


def test_the_second_folder_is_reached_by_its_absolute_path(server: Speaker, home: Path) -> None:
    server.call("write_file", path=str(home / "other" / "x.txt"), content="x")
    assert server.call("read_file", path=str(home / "other" / "x.txt")) == "x"
    assert json.loads(server.call("list_allowed_directories")) == [str(home / "allowed"), str(home / "other")]


def test_a_path_that_leads_out_is_refused_for_reading_and_writing(server: Speaker, place: Path, home: Path) -> None:
    paths = ("../secret.txt", f"{place.name}/../../secret.txt", f"{home}/secret.txt", "/etc/passwd")
    for path in (*paths, f"{home}/allowed/../secret.txt", f"{home}/allowed-not/x"):
        more: dict[str, str]
        for tool, more in (("read_text_file", {}), ("write_file", {"content": "gone"}), ("get_file_info", {})):
            said = server.refused(tool, path=path, **more)
            assert "leads out of the folders that may be used" in said and str(home / "allowed") in said
        assert "leads out" in server.refused("move_file", source=path, destination=inside(place, "x"))
    assert (home / "secret.txt").read_text() == "a secret"
    assert "write it without .." in server.refused("create_directory", path=inside(place, "a/../../../b"))
    assert os.listdir(place) == []


def test_links_are_followed_within_and_refused_when_they_lead_out(server: Speaker, place: Path, home: Path) -> None:
    (place / "real").mkdir()
    (place / "real" / "note.txt").write_text("a note")
    (place / "near").symlink_to("real")
    (place / "absolute").symlink_to(place / "real" / "note.txt")
    (place / "out").symlink_to("../../secret.txt")
    (place / "folder").symlink_to(home)
    (place / "circle").symlink_to("circle")
    assert server.call("read_text_file", path=inside(place, "near/note.txt")) == "a note"
    assert server.call("read_text_file", path=inside(place, "absolute")) == "a note"
    for path in ("out", "folder/secret.txt", "folder/allowed/../secret.txt", "near/../../../secret.txt"):
        assert "leads out" in server.refused("read_text_file", path=inside(place, path))
        assert "leads out" in server.refused("write_file", path=inside(place, path), content="gone")
    assert "links lead in a circle" in server.refused("read_text_file", path=inside(place, "circle"))
    assert "secret" not in server.call("directory_tree", path=inside(place))
    assert (home / "secret.txt").read_text() == "a secret"
    # A link is moved as a link, and what it leads to stays.
    server.call("move_file", source=inside(place, "out"), destination=inside(place, "moved"))
    assert (place / "moved").is_symlink()


def test_a_link_that_is_swapped_in_while_a_path_is_walked_is_never_followed(
    server: Speaker, place: Path, home: Path
) -> None:
    (place / "real").mkdir()
    (place / "real" / "secret.txt").write_text("no secret")
    (place / "trap").symlink_to(home)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            (place / "real").rename(place / "now")
            (place / "now").rename(place / "real")
            (place / "trap").rename(place / "now")
            (place / "now").rename(place / "trap")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        calls = [server.start("read_text_file", path=inside(place, "now/secret.txt")) for _ in range(150)]
        said = {server.ended(call)[0] for call in calls}
    finally:
        over.set()
        swapper.join()
    assert "a secret" not in said


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("a\0b", "the path has a NUL in it"),
        ("", 'the path is empty: "." is the folder itself'),
        ("gone/x.txt", "gone/x.txt: there is no such file or folder"),
        (".", ". is a folder"),
    ],
)
def test_what_is_no_path_of_a_file_is_said(server: Speaker, path: str, says: str) -> None:
    assert says in server.refused("read_text_file", path=path)
    assert server.refused("write_file", path=path, content="")


def test_a_device_or_a_pipe_is_not_read(server: Speaker, place: Path) -> None:
    os.mkfifo(place / "pipe")
    assert "is no regular file" in server.refused("read_text_file", path=inside(place, "pipe"))
    assert "is no regular file" in server.refused("write_file", path=inside(place, "pipe"), content="x")


def test_a_large_file_is_read_in_part_only(server: Speaker, place: Path) -> None:
    with (place / "large.txt").open("w") as file:
        for number in range(200_000):
            file.write(f"line {number}\n")
    said = server.refused("read_text_file", path=inside(place, "large.txt"))
    assert "over the limit of 1048576: read a part of it" in said
    assert server.call("read_text_file", path=inside(place, "large.txt"), tail=1) == "line 199999"
    assert server.call("read_text_file", path=inside(place, "large.txt"), head=2) == "line 0\nline 1"
    (place / "binary").write_bytes(b"\xff\xfe")
    assert "is no UTF-8 text" in server.refused("read_text_file", path=inside(place, "binary"))


def test_a_write_keeps_permissions_and_leaves_nothing_beside_the_file(server: Speaker, place: Path) -> None:
    (place / "run.sh").write_text("old")
    (place / "run.sh").chmod(0o750)
    server.call("write_file", path=inside(place, "run.sh"), content="new")
    assert stat.S_IMODE((place / "run.sh").stat().st_mode) == 0o750
    assert os.listdir(place) == ["run.sh"]


def test_nothing_is_replaced_by_a_move(server: Speaker, place: Path) -> None:
    for name in ("one", "two"):
        (place / name).write_text(name)
    said = server.refused("move_file", source=inside(place, "one"), destination=inside(place, "two"))
    assert "is there already, and was left as it is" in said
    assert "there is no such file" in server.refused("move_file", source="gone", destination=inside(place, "x"))
    assert (place / "two").read_text() == "two"


def test_a_passage_is_replaced_once_or_not_at_all(server: Speaker, place: Path) -> None:
    (place / "t.txt").write_text("red\nred\nblue\n")
    twice = [{"old_text": "blue", "new_text": "green"}, {"old_text": "red", "new_text": "x"}]
    assert "edit 2: its old_text is 2 times" in server.refused("edit_file", path=inside(place, "t.txt"), edits=twice)
    assert (place / "t.txt").read_text() == "red\nred\nblue\n"
    diff = server.call("edit_file", path=inside(place, "t.txt"), edits=twice[:1], dry_run=True)
    assert "-blue\n+green" in diff and (place / "t.txt").read_text() == "red\nred\nblue\n"
    server.call("edit_file", path=inside(place, "t.txt"), edits=twice[:1])
    assert (place / "t.txt").read_text() == "red\nred\ngreen\n"


def test_an_image_is_an_image(server: Speaker, place: Path) -> None:
    (place / "dot.png").write_bytes(b"\x89PNG")
    result = server.request("tools/call", {"name": "read_media_file", "arguments": {"path": inside(place, "dot.png")}})
    assert result["content"][0] == {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}


def test_what_is_said_of_the_tools_is_true_and_wrong_calls_are_explained(server: Speaker) -> None:
    hints = {name: tool["annotations"] for name, tool in server.tools().items()}
    reading = {name for name, said in hints.items() if said["readOnlyHint"]}
    assert set(hints) - reading == {"write_file", "edit_file", "create_directory", "move_file"}
    assert hints["write_file"]["destructiveHint"] and hints["write_file"]["idempotentHint"]
    assert not hints["create_directory"]["destructiveHint"] and not hints["edit_file"]["idempotentHint"]
    assert "'path' is a required property" in server.refused("write_file", content="x")
    assert "did you mean write_file" in server.refused("writefile", path="x")


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = retinue(tmp_path, "mcp", "run", "filesystem", "gone")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"retinue: {tmp_path / 'gone'}: No such file or directory\n"
    assert retinue(tmp_path, "mcp", "run", "filesystems").returncode == 2
