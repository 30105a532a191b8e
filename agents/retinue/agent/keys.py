"""The keys under which agents keep things in the store.

The literal braces are hash tags of Redis Cluster: everything of one session lies in one slot, and so does a run.
"""

from __future__ import annotations

# Runs, their events and the sessions of delegates are kept this long; a person's session is kept.
RUN_TTL_S = 7 * 24 * 3600.0


def history_key(agent: str, session: str) -> str:
    """The log of a session's messages; "" is the default session."""
    return f"{_session(agent, session)}/history"


def plan_key(agent: str, session: str) -> str:
    """The record of a session's plan."""
    return f"{_session(agent, session)}/plan"


def lease_key(agent: str, session: str) -> str:
    """The lease of a session, with the line of those who wait for it: whoever holds it writes."""
    return f"{_session(agent, session)}/lease"


def request_key(agent: str, session: str, request_id: str) -> str:
    """The record of which run a request id stands for."""
    return f"{_session(agent, session)}/request/{request_id}"


def steers_key(agent: str, session: str) -> str:
    """The table of messages that are to go into the session's running turn, by the run of each."""
    return f"{_session(agent, session)}/steers"


def tasks_key(agent: str, session: str) -> str:
    """The table of tasks that the session has given away without waiting, by run."""
    return f"{_session(agent, session)}/tasks"


def cancels_key(agent: str) -> str:
    """The table of runs that an agent's nodes are to end."""
    return f"agent/{{{agent}}}/cancels"


def run_key(run_id: str) -> str:
    """The record of a run: its agent, session and state."""
    return f"run/{{{run_id}}}"


def events_key(agent: str, session: str, run_id: str) -> str:
    """The log of a run's events, its end excepted: beside the session's lease, which fences it."""
    return f"{_session(agent, session)}/events/{run_id}"


def answers_key(run_id: str) -> str:
    """The table of what was said to a run's pending calls, by pending id."""
    return f"{run_key(run_id)}/answers"


def errand_key(agent: str, run_id: str) -> str:
    """The lease of a sub-agent's run that nobody waits for."""
    return f"{_session(agent, '')}/errand/{run_id}"


def spent_key(root: str, what: str) -> str:
    """The counter of what the tree under a root run has spent: calls or tokens."""
    return f"{run_key(root)}/{what}"


def tree_key(root: str) -> str:
    """The table of all runs of the tree under a root run but the root, by run id: each with its agent."""
    return f"{run_key(root)}/tree"


def cancelled_key(root: str) -> str:
    """The record that says that the whole tree under a root run is cancelled."""
    return f"{run_key(root)}/cancelled"


def result_key(run_id: str, call_id: str) -> str:
    """The record of a tool's whole result, where the model was shown a part of it."""
    return f"{run_key(run_id)}/result/{call_id}"


def session_ttl(session: str) -> float | None:
    """How long a session is kept from its last turn on, in seconds: a delegate's for a while, a person's for good."""
    return RUN_TTL_S if "~" in session else None


def _session(agent: str, session: str) -> str:
    return f"agent/{{{agent}/{session}}}" if session else f"agent/{{{agent}}}"
