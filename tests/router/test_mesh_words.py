"""What a mesh file says of itself and of its services is shown where a person looks for it."""

import json
from pathlib import Path

from kit.commands import retinue, started

TASK = Path(__file__).parents[2] / "services" / "task" / "main.py"


def test_the_name_begins_the_run_and_a_service_is_listed_with_its_description(tmp_path: Path) -> None:
    said = "Keeps what is due this week."
    services = (
        f'[services.task]\nrun = "python {TASK}"\ndescription = "{said}"\n[services.more]\nrun = "python {TASK}"\n'
    )
    (tmp_path / "mesh.toml").write_text(f'[mesh]\nname = "week"\n{services}')
    with started(tmp_path, "run") as command:
        command.wait_for("ready:")
        assert command.lines[0] == "mesh: week"
        listed = json.loads(retinue(tmp_path, "service", "list", "--json").stdout)
    assert {each["name"]: each["description"] for each in listed} == {"task": said, "more": "Keeps the task list."}
