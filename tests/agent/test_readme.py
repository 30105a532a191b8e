"""The program on the README's first screen, run as a reader runs it: in an empty folder, with no key."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from kit.commands import environment

README = Path(__file__).parents[2] / "README.md"


def test_the_program_of_the_first_screen_answers_through_both_agents(tmp_path: Path) -> None:
    program = re.search(r"```python\n(import asyncio.*?)```", README.read_text(), re.DOTALL)
    assert program
    (tmp_path / "program.py").write_text(program[1])
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("ada has: file the tax form, call the bank.\n", "", 0)
