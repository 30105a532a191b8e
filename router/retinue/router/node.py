"""One node of a mesh in this very process: an agent, the router, or a service, which takes the process over.

It is what each child of `retinue run`, and each container, runs. It starts no other process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from retinue.router.meshfile import AgentSpec, MeshFile, ServiceSpec, servers_of
from retinue.service.errors import Invalid
from retinue.service.settings import LOOPBACK, Settings


def settings_of(file: MeshFile, environ: Mapping[str, str], *, listen: str = "", advertise: str = "") -> Settings:
    """The settings of a process of this mesh: what is given, then the environment, then the mesh file."""
    given = {
        "RETINUE_REGISTRY": environ.get("RETINUE_REGISTRY") or file.registry,
        "RETINUE_STORE": environ.get("RETINUE_STORE") or file.store,
        "RETINUE_LISTEN": listen or environ.get("RETINUE_LISTEN", ""),
        "RETINUE_ADVERTISE": advertise or environ.get("RETINUE_ADVERTISE", ""),
    }
    return Settings.from_environment({**environ, **given}, make_home=True)


def environment_of(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that belongs to the same mesh, whatever its working folder is."""
    return {**environ, "RETINUE_REGISTRY": settings.registry, "RETINUE_STORE": settings.store}


def model_of(file: MeshFile, spec: AgentSpec | None, environ: Mapping[str, str]) -> str | None:
    """The model that an agent (None: the router) names, or else the mesh, where the environment names none."""
    if spec is not None and spec.model:
        return spec.model
    return None if environ.get("RETINUE_MODEL") or environ.get("RETINUE_AI_PROVIDER") else file.model or None


def _invoked(file: MeshFile, spec: AgentSpec) -> Mapping[str, str] | None:
    """The agents that an agent may call, by the file's spelling of their names."""
    return None if spec.can_invoke is None else {file.spelt.get(name, name): name for name in spec.can_invoke}


def become_service(spec: ServiceSpec, file: MeshFile, settings: Settings) -> NoReturn:
    """Replaces this process by the service's own. Invalid when that cannot be run."""
    environ = environment_of(settings, os.environ) | {
        "RETINUE_NAME": spec.name,
        "RETINUE_DESCRIPTION": spec.description,
        "RETINUE_LISTEN": settings.listen,
        "RETINUE_ADVERTISE": settings.advertise,
    }
    program = sys.executable if spec.run[0] == "python" else spec.run[0]
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(file.path.parent)
    try:
        os.execvpe(program, [program, *spec.run[1:]], environ)
    except OSError as error:
        place = f"{file.path.name}: [services.{spec.name}]: run"
        raise Invalid(f"{place}: {program}: {error.strerror}") from None


async def serve(spec: AgentSpec | None, file: MeshFile, settings: Settings) -> None:
    """Serves an agent, or the router (None), until SIGTERM or SIGINT, and drains then."""
    from retinue.service.mesh import Mesh

    if spec is not None and settings.listen == LOOPBACK and spec.listen:
        settings = replace(settings, listen=spec.listen)
    async with Mesh.connect(settings=settings) as mesh:
        if spec is None:
            from retinue.router.router import Router

            await mesh.run(Router(model=model_of(file, None, os.environ), entry=file.entry))
        else:
            from retinue.agent import Agent, Hooks, Limits

            agent = Agent(
                spec.name,
                spec.prompt,
                services=spec.services,
                tools=servers_of(file, spec),
                tools_mode=spec.tools_mode,
                can_invoke=_invoked(file, spec),
                model=model_of(file, spec, os.environ),
                history_limit=spec.history_limit,
                description=spec.description,
                hooks=Hooks(approvals=spec.approvals),
                limits=Limits(**spec.limits),
                sequential=spec.sequential,
            )
            await mesh.run(agent)
