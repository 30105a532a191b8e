"""The house rules that a machine can measure: where packages lie, how long things are, what is exported."""

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = {"proto": "v1", "services": "service", "agents": "agent", "router": "router"}
FOLDERS = (*FLOORS, "deploy", "scripts", "tests")
FORBIDDEN_NAMES = {"utils", "util", "helpers", "common", "base", "manager", "impl"}
# Spelt in halves, so that this file does not find itself.
FORBIDDEN_WORDS = tuple(half + rest for half, rest in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("HA", "CK")))


def modules(*folders: str) -> Iterator[Path]:
    """Our own Python files, generated code left out."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "_pb2" not in path.name:
                yield path


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("folder", FLOORS)
def test_a_folder_of_a_floor_is_no_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("folder", FLOORS)
def test_the_namespace_has_no_init_in_any_portion(folder: str) -> None:
    assert not (ROOT / folder / "retinue" / "__init__.py").exists()


def test_each_sub_package_lives_in_one_portion_only() -> None:
    portions = {
        folder: {path.name for path in (ROOT / folder / "retinue").iterdir() if path.name != "__pycache__"}
        for folder in FLOORS
    }
    assert portions == {folder: {package} for folder, package in FLOORS.items()}


@pytest.mark.parametrize(("folder", "package"), FLOORS.items())
def test_each_floor_ships_its_types(folder: str, package: str) -> None:
    assert (ROOT / folder / "retinue" / package / "py.typed").exists()


@pytest.mark.parametrize("package", FLOORS.values())
def test_a_floor_exports_at_most_fifteen_names_and_all_exist(package: str) -> None:
    floor = importlib.import_module(f"retinue.{package}")
    exported = getattr(floor, "__all__", [])
    assert len(exported) <= 15
    assert [name for name in exported if not hasattr(floor, name)] == []


def test_no_file_is_longer_than_400_lines() -> None:
    lengths = {shown(path): len(path.read_text().splitlines()) for path in modules(*FOLDERS)}
    assert {path: length for path, length in lengths.items() if length > 400} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    lengths = {
        f"{shown(path)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in modules(*FOLDERS)
        for node in functions(path)
    }
    assert {name: length for name, length in lengths.items() if length > 60} == {}


def test_files_are_named_after_what_they_hold() -> None:
    assert [shown(path) for path in modules(*FOLDERS) if path.stem in FORBIDDEN_NAMES] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [shown(path) for path in modules(*FOLDERS) if ast.get_docstring(ast.parse(path.read_text())) is None]
    # An empty `__init__` has nothing to say.
    assert [path for path in silent if (ROOT / path).read_text().strip()] == []


def test_test_files_have_names_of_their_own() -> None:
    names = Counter(path.name for path in modules("tests") if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_unfinished_business_is_written_in_files() -> None:
    texts = [
        path
        for folder in (*FOLDERS, "docs")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "_pb2" not in path.name
    ]
    top = [path for path in ROOT.iterdir() if path.is_file() and path.suffix != ".lock"]
    found = [
        f"{shown(path)}: {word}"
        for path in (*texts, *top)
        for word in FORBIDDEN_WORDS
        if word in path.read_text(errors="replace")
    ]
    assert found == []
