"""The offline rules as the router's model: they read what the router's own prompt says of the agents."""

from __future__ import annotations

import pytest

from retinue.agent.model.offline import Offline
from retinue.router.classify import classify
from retinue.router.match import Candidate

AGENTS = (
    Candidate("comms-mgr", ("notify",), "Sends messages to people."),
    Candidate("project-mgr", ("project",), "Keeps projects: creates them; leaves each task to task-mgr."),
    Candidate("task-mgr", ("task",), "Keeps the task list: adds tasks and ticks tasks off."),
)


@pytest.mark.parametrize(
    ("message", "agent"),
    [
        ("add a task called buy milk for ada", "task-mgr"),
        ("what tasks does ada have?", "task-mgr"),
        ("start a project called apollo", "project-mgr"),
        ("tell ada that the milk is bought", "comms-mgr"),
        ("mark buy milk as done", "task-mgr"),
        ("add milk", ""),
        ("how is the weather?", ""),
    ],
)
async def test_a_message_goes_verbatim_to_the_agent_that_its_words_fit(message: str, agent: str) -> None:
    verdict = await classify(Offline(), message, candidates=AGENTS, recent=())
    assert [(errand.agent, errand.message) for errand in verdict.errands] == ([(agent, message)] if agent else [])
