"""The server `edit` as an MCP client meets it: lines with hashes, and edits that are refused when these are old."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.jsonrpc import Speaker, speaking


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Speaker]:
    with speaking(home, "mcp", "run", "edit") as speaker:
        yield speaker


@pytest.fixture
def file(home: Path) -> Path:
    """Five lines, two of them alike."""
    path = home / "file.txt"
    path.write_text("one\ntwo\nsame\nsame\nfive\n")
    return path


def marks(server: Speaker, path: str = "file.txt") -> list[str]:
    """NUMBER:HASH of each line, the first at index 1."""
    return ["", *(line.partition("|")[0] for line in server.call("read_lines", path=path).split("\n"))]


def edit(at: str, action: str, text: str = "", to: str = "") -> dict[str, str]:
    return {"at": at, "action": action, "text": text, "to": to}


def test_a_read_shows_each_line_with_its_number_and_hash(server: Speaker, file: Path) -> None:
    lines = server.call("read_lines", path="file.txt", first=2, last=3).split("\n")
    assert re.fullmatch(r"2:[0-9a-f]{6}\|two", lines[0]) and re.fullmatch(r"3:[0-9a-f]{6}\|same", lines[1])
    assert lines[2] == "(lines 2 to 3 of 5)"
    assert "file.txt has 5 lines" in server.refused("read_lines", path="file.txt", first=6)


def test_several_edits_are_made_at_once_and_the_answer_has_the_new_hashes(server: Speaker, file: Path) -> None:
    at = marks(server)
    edits = [
        edit(at[5], "insert_after", "six\nseven"),
        edit(at[2], "replace", "2"),
        edit(at[3], "delete", to=at[4]),
        edit(at[1], "insert_before", "zero"),
    ]
    said = server.call("edit_lines", path="file.txt", edits=edits)
    assert file.read_text() == "zero\none\n2\nfive\nsix\nseven\n"
    assert said.startswith("file.txt has 6 lines now")
    new = marks(server)
    assert all(mark in said for mark in new[1:])
    server.call("edit_lines", path="file.txt", edits=[edit(new[6], "delete")])
    assert file.read_text() == "zero\none\n2\nfive\nsix\n"


def test_an_edit_with_a_hash_of_another_state_is_refused_and_nothing_is_done(server: Speaker, file: Path) -> None:
    at = marks(server)
    # Line 3 is what it was, and yet another line than the one that was read.
    file.write_text("one\nsame\nsame\nsame\nfive\n")
    said = server.refused("edit_lines", path="file.txt", edits=[edit(at[3], "replace", "x")])
    assert f"file.txt has changed since {at[3]} was read" in said and "read it again" in said
    assert file.read_text() == "one\nsame\nsame\nsame\nfive\n"
    new = marks(server)
    server.refused("edit_lines", path="file.txt", edits=[edit(new[1], "replace", "x"), edit(at[2], "replace", "y")])
    assert file.read_text() == "one\nsame\nsame\nsame\nfive\n"


def test_of_two_edits_made_from_one_read_the_second_is_refused(server: Speaker, file: Path) -> None:
    at = marks(server)
    calls = [
        server.start("edit_lines", path="file.txt", edits=[edit(at[number], "replace", f"by {number}")])
        for number in (1, 5)
    ]
    assert sorted(server.ended(call)[1] for call in calls) == [False, True]
    assert file.read_text().count("by") == 1


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ([("3", "replace", "x")], "'3' is no line with its hash"),
        ([("9:aaaaaa", "replace", "x")], "has changed since 9:aaaaaa was read, or never had it"),
        ([(1, "replace", "x"), (1, "delete", "")], "two edits are about line 1"),
        ([(1, "replace", "x", 3), (2, "delete", "")], "two edits are about line 2"),
        ([(3, "delete", "", 1)], "are no lines in order"),
        ([(1, "delete", "x")], "delete takes no text"),
        ([(1, "insert_after", "x", 2)], "insert_after is at one line"),
        ([], "give at least one edit"),
    ],
)
def test_edits_that_mean_nothing_are_explained(
    server: Speaker, file: Path, edits: list[tuple[object, ...]], says: str
) -> None:
    at = marks(server)

    def mark(given: object) -> str:
        return at[given] if isinstance(given, int) else str(given)

    made = [edit(mark(place), str(action), str(text), *map(mark, to)) for place, action, text, *to in edits]
    assert says in server.refused("edit_lines", path="file.txt", edits=made)
    assert file.read_text() == "one\ntwo\nsame\nsame\nfive\n"


def test_line_ends_stay_as_they_are(server: Speaker, home: Path) -> None:
    (home / "dos.txt").write_bytes(b"a\r\nb\xe2\x80\xa8c")
    at = marks(server, "dos.txt")
    assert len(at) == 3
    server.call("edit_lines", path="dos.txt", edits=[edit(at[1], "replace", "A\nB")])
    assert (home / "dos.txt").read_bytes() == b"A\r\nB\r\nb\xe2\x80\xa8c"


def test_a_new_file_is_made_and_an_old_one_left(server: Speaker, home: Path) -> None:
    server.call("create", path="new.txt", content="")
    at = server.call("read_lines", path="new.txt").partition("|")[0]
    server.call("edit_lines", path="new.txt", edits=[edit(at, "insert_after", "first")])
    assert (home / "new.txt").read_text() == "first\n"
    assert "is there already, and was left as it is" in server.refused("create", path="new.txt", content="x")
    assert sorted(path.name for path in home.iterdir() if path.suffix == ".tmp") == []
    assert "leads out" in server.refused("create", path="../x.txt", content="x")
    assert "leads out" in server.refused("read_lines", path="/etc/passwd")


def test_what_is_said_of_the_tools_is_true(server: Speaker) -> None:
    hints = {name: tool["annotations"] for name, tool in server.tools().items()}
    assert hints["read_lines"]["readOnlyHint"]
    assert hints["edit_lines"]["destructiveHint"] and not hints["edit_lines"]["idempotentHint"]
    assert not hints["create"]["readOnlyHint"] and not hints["create"]["destructiveHint"]
