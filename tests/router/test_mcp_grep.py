"""The server `grep` as an MCP client meets it, and what no pattern may do to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.commands import wait_until_gone
from kit.jsonrpc import Speaker, speaking


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("texts")
    (home / "src").mkdir()
    (home / ".git").mkdir()
    (home / "src" / "a.py").write_text("import os\nprint('ok')\n# the end\n")
    (home / "src" / "b.md").write_text("Import nothing\r\nlast line")
    (home / ".git" / "config").write_text("import = hidden\n")
    (home / "bytes.bin").write_bytes(b"import\0")
    (home / "many.txt").write_text("needle\n" * 3000)
    (home / "slow.txt").write_text("found aaaab\n" + "a" * 40 + "!\n")
    (home / "wide.txt").write_text("x" * 5000 + "\n")
    (home / "out").symlink_to("/etc")
    return home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Speaker]:
    with speaking(home, "mcp", "run", "grep", "--timeout", "1.5") as speaker:
        yield speaker
    wait_until_gone(home)


def test_matches_come_with_file_line_and_context(server: Speaker) -> None:
    assert server.call("grep", pattern="^import", path="src") == "src/a.py:1:import os"
    both = server.call("grep", pattern="IMPORT", path="src", ignore_case=True)
    assert both == "src/a.py:1:import os\nsrc/b.md:1:Import nothing"
    assert server.call("grep", pattern="import", path="src", glob="*.md", ignore_case=True).startswith("src/b.md:1:")
    assert server.call("grep", pattern="print", path="src/a.py", context=1).split("\n") == [
        "src/a.py-1-import os",
        "src/a.py:2:print('ok')",
        "src/a.py-3-# the end",
    ]
    assert server.call("grep", pattern="line$", path="src") == "src/b.md:2:last line"


def test_hidden_binary_and_linked_files_are_passed_over(server: Speaker) -> None:
    said = server.call("grep", pattern="import|root:")
    assert said == "src/a.py:1:import os\n(1 binary, large or unreadable files were passed over)"
    assert ".git/config:1:import = hidden" in server.call("grep", pattern="import", hidden=True)
    assert "nothing matches" in server.call("grep", pattern="nowhere to be seen", path="src")


def test_a_pattern_that_never_ends_is_stopped_and_the_next_search_goes_on(server: Speaker) -> None:
    said = server.refused("grep", pattern="(a|aa)+b", path="slow.txt")
    assert "stopped after 1.5 s, at slow.txt: narrow the path or simplify the pattern" in said
    assert "slow.txt:1:found aaaab" in said
    assert server.call("grep", pattern="os$", path="src") == "src/a.py:1:import os"


def test_a_search_is_cancelled_and_the_server_answers_others_meanwhile(server: Speaker) -> None:
    slow = server.start("grep", pattern="(a|aa)+b", path="slow.txt")
    assert server.call("grep", pattern="os$", path="src") == "src/a.py:1:import os"
    server.cancel(slow)
    assert server.call("grep", pattern="os$", path="src") == "src/a.py:1:import os"


def test_the_number_of_matches_and_the_width_of_lines_are_bounded(server: Speaker) -> None:
    lines = server.call("grep", pattern="needle", path="many.txt", max_matches=5).split("\n")
    assert len(lines) == 6 and lines[-1] == "(stopped at the limit of 5 matches)"
    assert len(server.call("grep", pattern="needle", path="many.txt", max_matches=10_000).split("\n")) == 1001
    assert len(server.call("grep", pattern="x", path="wide.txt")) < 600


def test_what_cannot_be_searched_is_explained(server: Speaker) -> None:
    said = server.refused("grep", pattern="a(b")
    assert "the pattern is no regular expression: missing ), unterminated subpattern at character 2" in said
    assert "gone: there is no such file or folder" in server.refused("grep", pattern="x", path="gone")
    for path in ("../x", "/etc/passwd", "out/passwd"):
        assert "leads out of the folders that may be used" in server.refused("grep", pattern="root", path=path)
    assert server.tools()["grep"]["annotations"]["readOnlyHint"]
