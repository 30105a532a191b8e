"""An image that the model makes reaches the caller, the history and the run's record, and goes back where it can."""

from __future__ import annotations

import base64

from kit.dialects import check_all
from kit.replicas import replica

from retinue.agent import Agent
from retinue.agent.model import ModelEnd, ModelMessage, Stop
from retinue.agent.model.gemini_request import gemini_body
from retinue.agent.model.openai_request import openai_body
from retinue.agent.model.scripted import Scripted
from retinue.service.chat import Blob, Call, Part
from retinue.service.store import Store

DRAWN = Part(image=Blob("image/png", data=b"\x89PNG drawn"))


async def test_an_image_that_the_model_makes_is_in_the_reply_the_history_and_the_repeated_reply(
    shared_store: Store,
) -> None:
    model = Scripted(ModelEnd(stop=Stop.STOP, parts=(DRAWN,)), "bluer it is")
    async with replica(shared_store, Agent("painter", model=model)) as painter:
        drawn = await painter.ask("draw a cat", Call(session="s", request_id="r1"))
        assert drawn.parts == (DRAWN,)
        assert await painter.ask("draw a cat", Call(session="s", request_id="r1")) == drawn
        assert (await painter.history("s")).messages[-1].parts == (DRAWN,)
        assert (await painter.ask("bluer", Call(session="s"))).text == "bluer it is"
    check_all(model.requests[-1].messages)


async def test_an_answer_of_images_alone_stays_in_what_the_next_request_says(shared_store: Store) -> None:
    model = Scripted(ModelEnd(stop=Stop.STOP, parts=(DRAWN,)), "fine")
    async with replica(shared_store, Agent("painter", model=model)) as painter:
        await painter.ask("draw a cat")
        await painter.ask("bluer")
    request = model.requests[-1]
    answers: list[ModelMessage] = [each for each in request.messages if each.message.role == "assistant"]
    assert [each.message.parts for each in answers] == [(DRAWN,)]
    told = gemini_body(request, model="gemini-3", name="gemini/gemini-3")["contents"][1]
    data = base64.b64encode(b"\x89PNG drawn").decode()
    assert told == {"role": "model", "parts": [{"inlineData": {"mimeType": "image/png", "data": data}}]}
    said = openai_body(request, model="gpt", name="openai/gpt")["messages"]
    assert [each for each in said if each["role"] == "assistant"] == [
        {"role": "assistant", "content": "[made here: image/png]"}
    ]
