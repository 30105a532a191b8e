"""Any page of a history may be asked for: one that lies beyond the end is empty, and what is no token is refused."""

import asyncio

import pytest

from retinue.agent import Agent
from retinue.agent.model.scripted import Scripted
from retinue.router.router import Router
from retinue.service.errors import Invalid
from retinue.service.testing import LocalMesh


@pytest.mark.parametrize("token", ["4", "99", "9" * 18])
@pytest.mark.parametrize("name", ["clerk", "router"])
async def test_a_page_beyond_the_end_is_empty_and_the_last(name: str, token: str) -> None:
    parts = (Agent("clerk", model=Scripted(then="done")), Router(model=Scripted()))
    async with asyncio.timeout(20), LocalMesh() as mesh, mesh.serve(*parts):
        await mesh.ask(name, "hello")
        assert 2 <= len((await mesh.peer(name).history()).messages) < 4
        page = await mesh.peer(name).history(page_token=token)
        assert (page.messages, page.next_page_token) == ((), "")


@pytest.mark.parametrize(
    "token", ["-1", "x", "\N{DIGIT TWO}\N{SUPERSCRIPT TWO}", "\N{FULLWIDTH DIGIT ONE}", "9" * 19, "9" * 5000]
)
async def test_what_is_no_page_token_is_refused(token: str) -> None:
    async with asyncio.timeout(20), LocalMesh() as mesh, mesh.serve(Agent("clerk", model=Scripted())):
        with pytest.raises(Invalid, match="page_token"):
            await mesh.peer("clerk").history(page_token=token)
