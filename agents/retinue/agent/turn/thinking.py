"""The model calls of one run: what is sent, what is shown as it comes, and what to do when it does not fit.

It runs no tool and stores nothing but what a call has cost.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace

from retinue.agent.host import Host
from retinue.agent.model import (
    ModelEnd,
    ModelMessage,
    ModelNote,
    ModelRequest,
    ModelText,
    ModelThinking,
    ModelToolInput,
)
from retinue.agent.prompt import system_prompt
from retinue.agent.runs.course import Course
from retinue.agent.runs.events import Events
from retinue.agent.session.conversation import Conversation
from retinue.agent.session.history import last_groups, to_model, valid
from retinue.agent.session.shorten import shorter
from retinue.agent.tools import Tool
from retinue.agent.turn.budget import Purse
from retinue.agent.turn.window import FULL, NEAR, never_fits, size_of, tokens_of
from retinue.service.chat import StatusNote, TextDelta, ThinkingDelta, ToolInput
from retinue.service.errors import ModelContext, ModelUnavailable
from retinue.service.text import Joiner, sane
from retinue.service.usage import Usage

log = logging.getLogger("retinue.agent")

TOO_LONG = "the conversation is longer than the model's window: its older part is shortened for this turn"
TOO_LARGE = "this turn alone is longer than the model's window: send less at once"


class Thinking:
    """The model calls of one run; `helper`: it is a sub-agent's, which knows of no peers."""

    def __init__(
        self, host: Host, talk: Conversation, course: Course, *, purse: Purse, events: Events, helper: bool
    ) -> None:
        self._host = host
        self._talk = talk
        self._course = course
        self._purse = purse
        self._events = events
        self._helper = helper
        # How often the conversation had to be made shorter for the model.
        self.cuts = 0
        self._begun = self._told = False

    async def think(self, tools: Mapping[str, Tool]) -> ModelEnd:
        """One model call. Its text goes out as it comes. ModelContext when not even the present turn fits."""
        if not self._begun:
            self._begun, self.cuts = True, self._cuts_before()
        messages = await self._messages()
        for _ in range(self.cuts):
            if fewer := shorter(messages):
                messages = fewer
                self._tell(TOO_LONG)
        messages = self._fitted(messages)
        while True:
            try:
                return await self._ask(messages, tools)
            except ModelContext as error:
                fewer = shorter(messages)
                if fewer is None:
                    too_long = ModelContext(f"{error.message}; {TOO_LARGE}")
                    too_long.facts, too_long.usage = error.facts, error.usage
                    raise too_long from error
                log.warning("%s: %s", self._host.name, error)
                self._tell(TOO_LONG)
                messages, self.cuts = fewer, self.cuts + 1

    def _cuts_before(self) -> int:
        """How often the conversation was made shorter for this model's last answer in it."""
        answers = [entry for entry in self._talk.entries if entry.tokens or entry.cuts]
        return answers[-1].cuts if answers and answers[-1].model == self._host.model.name else 0

    def _fitted(self, messages: tuple[ModelMessage, ...]) -> tuple[ModelMessage, ...]:
        """The messages, shorter where they would not fit: some servers cut without a word what is too long for them."""
        window = self._host.window
        if window is None:
            return messages
        tokens = tokens_of(messages)
        while (tokens > FULL * window or never_fits(messages, window)) and (fewer := shorter(messages)):
            tokens -= size_of(messages) - size_of(fewer)
            messages, self.cuts = fewer, self.cuts + 1
            self._tell(TOO_LONG)
        if never_fits(messages, window):
            raise ModelContext(f"{self._host.model.name} takes {window} tokens; {TOO_LARGE}")
        if tokens > NEAR * window:
            self._tell(
                f"the conversation fills about {tokens * 100 // window} % of the model's window of {window} tokens"
            )
        return messages

    def _tell(self, text: str) -> None:
        """Says once in a run that the conversation is long."""
        if not self._told:
            self._told = True
            log.warning("%s: %s", self._host.name, text)
            self._events.emit(StatusNote(text))

    async def _messages(self) -> tuple[ModelMessage, ...]:
        host = self._host
        messages = to_model(last_groups(valid(self._talk.entries), host.history_limit), model=host.model.name)
        for hook in (host.hooks.prepare_context, host.hooks.format_messages):
            if hook is not None:
                messages = await hook(messages)
        return messages

    async def _ask(self, messages: tuple[ModelMessage, ...], tools: Mapping[str, Tool]) -> ModelEnd:
        host = self._host
        peers = () if self._helper else host.peers.lines()
        request = ModelRequest(
            system=system_prompt(host.prompt, self._talk.plan, peers, away=host.troubles()),
            messages=messages,
            tools=tuple(tool.spec for tool in tools.values()),
        )
        self._course.usage += Usage(model_calls=1)
        text, thinking = Joiner(), Joiner()
        async with aclosing(host.model.stream(request)) as events:
            async for event in events:
                match event:
                    case ModelText(piece):
                        self._events.say(TextDelta, text.feed(piece))
                    case ModelThinking(piece):
                        self._events.say(ThinkingDelta, thinking.feed(piece))
                    case ModelNote(note):
                        self._events.emit(StatusNote(note))
                    case ModelToolInput(index, _, delta):
                        self._events.emit(ToolInput(str(index), sane(delta)))
                    case ModelEnd():
                        self._events.say(TextDelta, text.close())
                        self._course.usage += replace(event.usage, model_calls=0)
                        await self._purse.count(event.usage)
                        return event
        raise ModelUnavailable(f"{host.model.name} broke off in the middle of its answer")
