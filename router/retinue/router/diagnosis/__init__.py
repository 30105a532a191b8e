"""What `retinue doctor` looks at: each thing that a mesh needs, and whether it is there and right, in a line of words.

It asks and changes nothing: no `.retinue/`, no store and no mesh is made, and no model is asked to answer.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Mapping
from importlib import metadata
from pathlib import Path

from retinue.router.diagnosis.finding import ERROR, OK, WARNING, Finding, worst
from retinue.router.diagnosis.registry import check_registry
from retinue.router.diagnosis.store import check_store
from retinue.router.meshfile import FILES, MeshFile, load
from retinue.service.errors import Invalid, MeshError
from retinue.service.registry import open_registry
from retinue.service.settings import LOOPBACK, Settings, path_of

__all__ = ["ERROR", "OK", "WARNING", "Finding", "examine", "worst"]

CHECK_S = 10.0
_PACKAGES = ("grpcio", "protobuf", "redis", "py-consul")
_AT_LEAST = re.compile(r"([A-Za-z0-9-]+)(?:\[[^]]*\])?>=([0-9.]+)")


async def examine(where: Path | None, environ: Mapping[str, str]) -> list[Finding]:
    """All findings, for the mesh file at `where` (None: that of the working folder, if there is one)."""
    findings = versions()
    file, found = read_file(where)
    findings += found
    registry, found = _setting("RETINUE_REGISTRY", file.registry if file else "", environ)
    findings += found
    store, found = _setting("RETINUE_STORE", file.store if file else "", environ)
    findings += found
    if registry:
        findings += await _within("registry", check_registry(registry))
    if store:
        findings += await _within("store", check_store(store))
    findings += await _within("model", models(file, environ))
    return findings + await _within("ports", ports(file, registry, environ))


def versions() -> list[Finding]:
    """Python, this package, and the packages that its wire, store and registry stand on."""
    python = ".".join(map(str, sys.version_info[:3]))
    enough = sys.version_info >= (3, 11)
    found = [Finding("python", OK if enough else ERROR, python if enough else f"{python}: use Python 3.11 or later")]
    try:
        found.append(Finding("retinue", OK, metadata.version("retinue")))
        required = filter(None, map(_AT_LEAST.match, metadata.requires("retinue") or ()))
        wanted = {pair[1]: pair[2] for pair in required}
    except metadata.PackageNotFoundError:
        found.append(Finding("retinue", WARNING, "it is not installed, so that no version is known: pip install -e ."))
        wanted = {}
    return found + [_version(name, wanted.get(name, "")) for name in _PACKAGES]


def _version(name: str, least: str) -> Finding:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, ERROR, f"it is not installed: pip install {name}")
    if least and _numbers(version) < _numbers(least):
        return Finding(name, ERROR, f"{version} is too old: pip install '{name}>={least}'")
    return Finding(name, OK, version)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def read_file(where: Path | None) -> tuple[MeshFile | None, list[Finding]]:
    """The mesh file, and what is to be said of it."""
    if where is None:
        if not any(Path(name).is_file() for name in FILES):
            return None, [
                Finding("mesh file", OK, "none here: name one to have it checked, as in `retinue doctor MESH`")
            ]
        where = Path()
    try:
        file = load(where)
    except MeshError as error:
        return None, [Finding("mesh file", ERROR, error.message)]
    called = f"{file.name}: " if file.name else ""
    return file, [Finding("mesh file", OK, f"{called}{', '.join(file.names)} ({file.path})")]


def _setting(key: str, in_file: str, environ: Mapping[str, str]) -> tuple[str, list[Finding]]:
    """The URL of registry or store as `retinue run` has it, but that no folder is made; "" where one is missing."""
    other = {"RETINUE_REGISTRY": "RETINUE_STORE", "RETINUE_STORE": "RETINUE_REGISTRY"}[key]
    try:
        settings = Settings.from_environment({**environ, key: environ.get(key) or in_file, other: "memory:"})
    except Invalid as error:
        # Before its first run a mesh has no folder.
        return "", [Finding(key.removeprefix("RETINUE_").lower(), WARNING, error.message)]
    return (settings.registry if key == "RETINUE_REGISTRY" else settings.store), []


async def _within(check: str, found: AsyncIterator[Finding]) -> list[Finding]:
    """The findings of one check, which has a limited time, and whose own failure is a finding too."""
    findings: list[Finding] = []
    try:
        async with asyncio.timeout(CHECK_S):
            async for each in found:
                findings.append(each)
    except MeshError as error:
        findings.append(Finding(check, ERROR, error.message))
    except TimeoutError:
        findings.append(Finding(check, ERROR, f"no answer within {CHECK_S:g} s: see whether it runs and is overloaded"))
    return findings


async def models(file: MeshFile | None, environ: Mapping[str, str]) -> AsyncIterator[Finding]:
    """Which models would answer, and whether their servers know them."""
    from retinue.router.node import model_of

    shared = None if file is None else model_of(file, None, environ)
    wanted: dict[str | None, str] = {shared: "the mesh"}
    for spec in file.agents if file is not None else ():
        if spec.model:
            wanted.setdefault(spec.model, f"agent {spec.name}")
    for model, whose in wanted.items():
        try:
            yield await _model(model, whose, environ)
        except MeshError as error:
            yield Finding("model", ERROR, f"{whose}: {error.message}")


async def _model(model: str | None, whose: str, environ: Mapping[str, str]) -> Finding:
    from retinue.agent.model.catalogue import PROVIDERS
    from retinue.agent.model.choice import choose, names_at

    chosen = await choose(model, environ=environ)
    provider, _, name = chosen.model.name.partition("/")
    found = PROVIDERS.get(provider)
    if provider == "offline" or found is None:
        named = model or environ.get("RETINUE_MODEL") or environ.get("RETINUE_AI_PROVIDER")
        return Finding("model", OK if named else WARNING, f"{whose}: {chosen.why}")
    names = await names_at(found, environ)
    if names and name not in names and f"{name}:latest" not in names:
        return Finding(
            "model", WARNING, f"{whose}: {chosen.why}; its server does not list {name}: see `retinue models`"
        )
    return Finding("model", OK, f"{whose}: {chosen.why}")


async def ports(file: MeshFile | None, registry: str, environ: Mapping[str, str]) -> AsyncIterator[Finding]:
    """Whether a server could listen where it is told to, and be reached there."""
    from retinue.service.server import address

    wanted = [("", environ.get("RETINUE_LISTEN") or LOOPBACK, environ.get("RETINUE_ADVERTISE", ""))]
    wanted += [(spec.name, spec.listen, "") for spec in (file.agents if file else ()) if spec.listen]
    serving = await _serving(registry)
    for name, at, advertise in wanted:
        begin = f"{name}: " if name else ""
        try:
            address.check_advertise(at, advertise)
            owner = serving.get(at, "")
            if not owner or (name and owner != name):
                await address.check_free(at)
        except MeshError as error:
            yield Finding("ports", ERROR, begin + error.message)
        else:
            yield Finding("ports", OK, f"{begin}{owner} serves at {at}" if owner else f"{begin}{at} can be listened on")


async def _serving(registry: str) -> dict[str, str]:
    """The addresses of all nodes, with their names; none where the registry does not say, which is told elsewhere."""
    if not registry.startswith(("consul:", "local:")):
        return {}
    try:
        if registry.startswith("local:") and not path_of(registry, field="RETINUE_REGISTRY").exists():
            return {}
        async with open_registry(registry) as opened:
            return {node.address: name for name in await opened.names() for node in await opened.find(name)}
    except MeshError:
        return {}
