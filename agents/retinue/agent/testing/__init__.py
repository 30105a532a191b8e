"""What tests of agents need: a scripted model server over real HTTP, and any recorded answer of a server, decoded.

    async with ModelServer(["hello", call("task_Task_List", owner="ada")]) as server:
        model = OpenAI("any", base_url=server.base_url)  # or Anthropic, Gemini, Ollama: base_url=server.url

As a process: `python -m retinue.agent.testing --port 8099 --script rules.json` (or `--echo`); it prints its base URL
and serves until SIGTERM. The model that needs no HTTP is `Scripted`.
"""

from retinue.agent.model.scripted import Scripted, call
from retinue.agent.testing.decoding import decode
from retinue.agent.testing.rules import Rules
from retinue.agent.testing.server import Answer, ModelServer, Received, echo

__all__ = ["Answer", "ModelServer", "Received", "Rules", "Scripted", "call", "decode", "echo"]
