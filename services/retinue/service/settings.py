"""Settings from the environment, read once and passed down; nothing else reads RETINUE_* variables of this floor.

Bare `local:` and `sqlite:` mean files in `.retinue/`, which is looked for upward from the working folder, as git does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from retinue.service.errors import Invalid

HOME = ".retinue"
LOOPBACK = "127.0.0.1:0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the mesh is, and where a server of this process listens. Empty `advertise`: the bound address.

    `description` is what the mesh file says of a service, in place of the service's own words.
    """

    registry: str
    store: str
    listen: str = LOOPBACK
    advertise: str = ""
    name: str = ""
    description: str = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, *, make_home: bool = False) -> Settings:
        """The settings of this process.

        `make_home` makes `.retinue/` in the working folder when none is found; without it a bare `local:` or
        `sqlite:` raises Invalid that says where was looked.
        """
        environ = os.environ if environ is None else environ
        registry = environ.get("RETINUE_REGISTRY") or "local:"
        store = environ.get("RETINUE_STORE") or "sqlite:"
        if registry == "local:":
            registry = f"local://{home(make=make_home) / 'registry.db'}"
        if store == "sqlite:":
            store = f"sqlite://{home(make=make_home) / 'store.db'}"
        return cls(
            registry=registry,
            store=store,
            listen=environ.get("RETINUE_LISTEN") or LOOPBACK,
            advertise=environ.get("RETINUE_ADVERTISE", ""),
            name=environ.get("RETINUE_NAME", ""),
            description=environ.get("RETINUE_DESCRIPTION", ""),
        )


def find_home(start: Path | None = None) -> Path | None:
    """The nearest `.retinue/` at or above `start` (the working folder), or None."""
    start = (start or Path.cwd()).absolute()
    return next((found for folder in (start, *start.parents) if (found := folder / HOME).is_dir()), None)


def home(*, make: bool = False) -> Path:
    """The folder of embedded data; Invalid, saying where was looked, when there is none and `make` is false."""
    if found := find_home():
        return found
    if not make:
        raise Invalid(f"no mesh here: no {HOME}/ in {Path.cwd()} or above it; start one with `retinue run`")
    made = Path.cwd() / HOME
    made.mkdir(mode=0o700, exist_ok=True)
    (made / ".gitignore").write_text("*\n")
    return made


def path_of(url: str, *, field: str) -> Path:
    """The file that scheme:///absolute/path names, whatever characters are in it; Invalid when it is not absolute."""
    _, _, path = url.partition("://")
    if not path.startswith("/"):
        raise Invalid(
            f"{field} {url!r}: the path is absolute, as in {url.partition(':')[0]}:///path/to/file.db", field=field
        )
    return Path(path)


def masked(url: str) -> str:
    """`url` without its password or the `token` of its query, for messages; of one that is no URL, only the scheme."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{url.partition(':')[0]}:***"
    query = re.sub(r"(^|&)token=[^&]*", r"\1token=***", parts.query)
    if parts.password is None and query == parts.query:
        return url
    netloc = parts.netloc.replace(f":{parts.password}@", ":***@")
    return urlunsplit(parts._replace(netloc=netloc, query=query))


def host_and_port(text: str, *, field: str) -> tuple[str, int]:
    """The two halves of host:port; Invalid, naming `field`, when it is not that."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise Invalid(f"{field} {text!r}: use host:port, such as 127.0.0.1:9090", field=field)
    return host.strip("[]"), int(port)
