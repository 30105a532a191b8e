"""The file that describes a mesh: mesh.toml, or a configuration of Eunice, which runs as it is.

It reads and checks; it starts nothing. Both formats become the same parts.
"""

from __future__ import annotations

from pathlib import Path

from retinue.router.meshfile.eunice import read_eunice
from retinue.router.meshfile.mesh import read_mesh
from retinue.router.meshfile.parts import ROUTER, AgentSpec, MeshFile, ServiceSpec, servers_of
from retinue.service.errors import Invalid

__all__ = ["FILES", "ROUTER", "AgentSpec", "MeshFile", "ServiceSpec", "load", "locate", "servers_of"]

FILES = ("mesh.toml", "eunice.toml", "eunice.json")


def load(where: Path) -> MeshFile:
    """The mesh that `where` (a file, or a folder with one) describes. Invalid names file, table and key."""
    path = locate(where)
    foreign = path.suffix == ".json" or path.name in FILES[1:]
    mesh = read_eunice(path) if foreign else read_mesh(path)
    names = [ROUTER, *(one.name for one in mesh.services), *(one.name for one in mesh.agents)]
    for name in names:
        if names.count(name) > 1:
            raise Invalid(f"{path}: {name!r} is the name of two parts; services, agents and the router share names")
    return mesh


def locate(where: Path) -> Path:
    """The mesh file at `where`; Invalid that says where was looked when there is none."""
    if where.is_file():
        return where
    for name in FILES:
        if (where / name).is_file():
            return where / name
    folder = where.absolute()
    looked = f"no {', '.join(FILES[:-1])} or {FILES[-1]} in {folder}" if where.is_dir() else f"{folder} does not exist"
    raise Invalid(f"no mesh file: {looked}; give its file or folder: retinue run MESH", field="MESH")
