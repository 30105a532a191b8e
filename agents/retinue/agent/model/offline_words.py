"""The words and patterns by which the offline rules read a message: data, so that the rules stay few.

English only. Texts are compared by their words, in lower case and without a plural s, each as the first of its group.
"""

from __future__ import annotations

import re

_GROUPS = (
    "create add make new begin",
    "list show what which who display view get find all have has",
    "complete completed finish finished done tick mark",
    "delete remove drop erase forget",
    "send sent notify tell message inform remind write notification",
    "overdue late",
    "task todo job",
)
CANONICAL = {word: group.split()[0] for group in _GROUPS for word in group.split()}
# Words that say what to do, and not with what; a tool is not chosen for `list` alone.
VERBS = {"create", "list", "complete", "delete"}
_IDLE = (
    "a an and any are as at be been by can could do does each for from i if in is it its me my no not of on or our out "
    "please so than that the their them then there they this to too up was we were will with would you your agent "
    "tool service return one every everyone mgr"
)
_NOBODY = (
    "everyone everybody anyone anybody all me us you them it nobody the a an my our that today we i to who what there"
)
IDLE = frozenset(_IDLE.split())
NOBODY = frozenset(_NOBODY.split())
BUILT_IN = {"plan", "delegate", "check_task", "wait_task"}
ANY = re.IGNORECASE

# What a message is about ends where its content begins: "add a task | called list all projects".
CONTENT = re.compile(r"\b(?:called|named|titled|that|saying)\b|[:\"“«]", ANY)
TO_DO = re.compile(r"\bto do\b|\b(?:should|must|can)\s+\S+\s+do\b", ANY)
QUOTED = re.compile(r"[\"“«]([^\"”»]+)[\"”»]")
NAMED = re.compile(r"\b(?:called|named|titled)\s+(.+)", ANY)
SAID = re.compile(r"(?:\b(?:that|saying)\b|:)\s*(.+)", ANY)
DATE = re.compile(r"[\s,]*(?:\bdue\s+)?(?:\b(?:by|on|until)\s+)?\b(\d{4}-\d\d-\d\d)\b", ANY)
NUMBER = re.compile(r"(?<![\w-])(-?\d+)(?![\w-])")
IDENTIFIER = re.compile(
    r"(?:\bid\s+|#)([\w-]+)|\b([a-z]{1,3}-[0-9a-f]{4,})\b|(?<![\w-])(?!\d{4}-\d\d-\d\d\b)((?=[\w-]*\d)[a-z0-9][\w-]*)",
    ANY,
)
_PERSON_ENDS = r"(?=[\s,.?!]*$|[,:]|\s+(?:due|by|on|in|and|to|with|which|including|called|named|titled|that|saying)\b)"
OWNER = (
    re.compile(r"\s*\bto\s+([\w.-]+)['’]s\s+(?:tasks?|list|todos?)\b", ANY),
    re.compile(r"\s*\b(?:for|assigned to|owned by)\s+([A-Za-z][\w.-]*?)" + _PERSON_ENDS, ANY),
)
# Only where no title can hold such words.
ASKED_OWNER = (
    *OWNER,
    re.compile(
        r"\b(?:does|do|did|should|can|must|has|is)\s+([A-Za-z][\w.-]*)\s+(?:have|do|need|late|behind|done)\b", ANY
    ),
    re.compile(r"\b([A-Za-z][\w.-]*)['’]s\b", ANY),
    re.compile(r"\b(?:of|by|to)\s+([A-Za-z][\w.-]*)", ANY),
    re.compile(r"\b([A-Za-z][\w.-]*)\s+has\b", ANY),
)
RECIPIENT = (
    re.compile(r"\b(?:notify|tell|message|remind|inform|send|write)\s+(?:to\s+)?(?!an?\b|the\b)([A-Za-z][\w.-]*)", ANY),
    re.compile(r"\bto\s+([A-Za-z][\w.-]*)", ANY),
)
PROJECT = (
    re.compile(r"\s*\b(?:in|of|on|for|to)\s+(?:the\s+)?project\s+([\w-]+)", ANY),
    re.compile(r"\s*\b(?:in|of|on|for|to)\s+the\s+([\w-]+)\s+project\b", ANY),
)
GOAL = (re.compile(r"[\s,]*\b(?:with (?:the )?goal(?: to| of)?|whose goal is(?: to)?|in order to|to)\s+(.+)", ANY),)
PLACE = (re.compile(r"\b(?:in|at|of|for|from|with|about)\s+([\w-]+)", ANY),)
# What is left of "add a task to call the bank", "add buy milk" when the parts with a place of their own are gone.
REST = (
    re.compile(r"^.*?\b(?:to|tasks?|todo|projects?|message|note)\b:?\s+(?!to\b)(.+)", ANY),
    re.compile(r"^\s*(?:please\s+)?(?:add|create|make|send|write|notify|tell|remind)?\b\s*(?:an?\s+|the\s+)?(.+)", ANY),
)

# Which rule reads a field, by the field's name.
KINDS: dict[str, str] = {
    name: kind
    for kind, names in {
        "owner": "owner assignee person user who",
        "recipient": "to recipient receiver",
        "date": "due date day deadline",
        "project": "project",
        "goal": "goal purpose",
        "id": "id",
        "title": "title name subject task text message content body query question",
    }.items()
    for name in names.split()
}

_PLEASE = r"^\s*(?:please\s+|can you\s+|could you\s+|let's\s+)*"
PLAN = re.compile(_PLEASE + r"(?:(?:make|write) a plan(?:\s+(?:to|for))?|plan)\b:?\s*(.+)", ANY | re.DOTALL)
STEPS = re.compile(r"\s*(?:;|,|\n|\band then\b|\bthen\b)\s*", ANY)
STEP_EDGE = re.compile(r"^(?:first|and|finally|\d+[.)]|-)\s+|[.\s]+$", ANY)
_WHOM = r"(?:the\s+)?(?P<to>(?!an?\b|me\b|us\b|it\b|all\b)[\w-]+)"
DELEGATE = (
    re.compile(_PLEASE + r"delegate\s+to\s+" + _WHOM + r"[:,]?\s+(?:to\s+)?(?P<task>.+)", ANY | re.DOTALL),
    re.compile(_PLEASE + r"delegate:?\s+(?P<task>.+?)\s+to\s+" + _WHOM + r"[.!]?\s*$", ANY | re.DOTALL),
    re.compile(_PLEASE + r"delegate:?\s+(?P<task>.+)(?P<to>)", ANY | re.DOTALL),
    re.compile(_PLEASE + r"(?:ask|have|let|get)\s+" + _WHOM + r"\s+to\s+(?P<task>.+)", ANY | re.DOTALL),
)
TELL = re.compile(_PLEASE + r"tell\s+" + _WHOM + r"\s+to\s+(?P<task>.+)", ANY | re.DOTALL)
MENTION = re.compile(r"^\s*@[a-z0-9-]+[:,]?\s*", ANY)
PEER = re.compile(r"^\s*[-*]\s+`?([a-z0-9][a-z0-9-]{0,62})`?(?::|\s|$)(.*)$", re.MULTILINE)

PAST = {"create": "Created", "complete": "Completed", "delete": "Deleted", "send": "Sent", "update": "Updated"}
LABELS = ("title", "name", "message", "subject", "task", "text", "label", "id")


def words(text: str) -> list[str]:
    """The telling words of `text` in order: camelCase and snake_case apart, each as the first of its group."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text).replace("’", "'").lower()
    found = (word.removesuffix("'s") for word in re.findall(r"[a-z0-9']+", spaced))
    return [canonical(word) for word in found if word not in IDLE]


def canonical(word: str) -> str:
    """The first word of the word's group, or the word without a plural s."""
    single = word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
    return CANONICAL.get(word) or CANONICAL.get(single, single)


def subject(message: str) -> list[str]:
    """The telling words of what a message is about, without its content."""
    head = CONTENT.split(QUOTED.sub(" ", message), maxsplit=1)[0]
    return words(head) + (["task"] if TO_DO.search(head) else [])
