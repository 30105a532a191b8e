"""What every store promises, asked of each: memory, SQLite and a real Redis."""

from __future__ import annotations

import asyncio

import pytest
from kit.stores import is_absent, passed, until

from retinue.service.errors import Invalid
from retinue.service.store import ANYTHING, Conflict, Fenced, Lease, Line, Span, Store, open_store

LOG = "agent/{clerk/s~planner.2}/history"
BINARY = [b"", b"\x00", b"\r\n$3\r\n", bytes(range(256)), "Grüße 🌍".encode(), b"1", b"nil"]


async def length_is_zero(store: Store, key: str) -> bool:
    return (await store.read(key)).length == 0


async def test_answers_a_ping_and_says_where_it_is(store: Store) -> None:
    await store.ping()
    assert store.url.startswith(("memory:", "sqlite:///", "redis://"))


# Logs


async def test_a_log_keeps_binary_entries_in_the_order_they_came(store: Store) -> None:
    assert await store.append(LOG, BINARY[:3]) == 3
    assert await store.append(LOG, BINARY[3:]) == len(BINARY)
    assert await store.read(LOG) == Span(tuple(BINARY), 0, len(BINARY))


async def test_a_log_that_is_not_there_reads_as_empty(store: Store) -> None:
    assert await store.read("nothing/{here}") == Span((), 0, 0)
    assert await store.append("nothing/{here}", []) == 0
    assert await store.delete("nothing/{here}") == 0


@pytest.mark.parametrize("start", [-9, -5, -2, -1, 0, 1, 4, 5, 9])
@pytest.mark.parametrize("stop", [None, -9, -2, 0, 3, 5, 9])
async def test_a_piece_of_a_log_is_what_a_slice_is(store: Store, start: int, stop: int | None) -> None:
    entries = tuple(str(number).encode() for number in range(5))
    await store.append(LOG, entries)
    span = await store.read(LOG, start, stop)
    assert span == Span(entries[start:stop], slice(start, stop).indices(5)[0], 5)


async def test_an_append_where_the_writer_expects_is_done(store: Store) -> None:
    assert await store.append(LOG, [b"a", b"b"], at=0) == 2
    assert await store.append(LOG, [b"c"], at=2) == 3


async def test_a_repeated_append_is_a_no_op_and_returns_the_length_that_is(store: Store) -> None:
    await store.append(LOG, [b"a", b"b"], at=0)
    await store.append(LOG, [b"c"], at=2)
    assert await store.append(LOG, [b"a", b"b"], at=0) == 3
    assert await store.append(LOG, [b"c"], at=2) == 3
    assert (await store.read(LOG)).entries == (b"a", b"b", b"c")


@pytest.mark.parametrize(
    ("at", "entries"),
    [(0, [b"x"]), (1, [b"b", b"c"]), (3, [b"c"]), (-1, [b"b"]), (9, []), (0, [b"a", b"B"]), (0, [b"a", b"b", b"c"])],
)
async def test_an_append_elsewhere_is_a_conflict_and_writes_nothing(
    store: Store, at: int, entries: list[bytes]
) -> None:
    await store.append(LOG, [b"a", b"b"])
    with pytest.raises(Conflict) as caught:
        await store.append(LOG, entries, at=at)
    assert not isinstance(caught.value, Fenced)
    assert (await store.read(LOG)).entries == (b"a", b"b")


async def test_an_append_of_thousands_of_entries_is_one_piece(store: Store) -> None:
    entries = [b"%d" % number for number in range(20_001)]
    assert await store.append(LOG, entries, at=0) == 20_001
    assert await store.append(LOG, entries, at=0) == 20_001
    assert (await store.read(LOG, -2)).entries == (b"19999", b"20000")


async def test_of_many_writers_who_expect_one_length_one_wins(store: Store) -> None:
    await store.append(LOG, [b"first"])
    done = await asyncio.gather(
        *(store.append(LOG, [b"%d" % writer], at=1) for writer in range(20)), return_exceptions=True
    )
    assert sorted(map(type, done), key=str) == sorted([int] + [Conflict] * 19, key=str)
    assert (await store.read(LOG)).length == 2


async def test_a_log_with_a_ttl_ends_as_a_whole(store: Store) -> None:
    await store.append(LOG, [b"a"])
    await store.append(LOG, [b"b"], ttl=0.05)
    await until(lambda: length_is_zero(store, LOG))
    assert await store.append(LOG, [b"new"], at=0) == 1


async def test_a_later_ttl_counts_from_then_and_none_leaves_it(store: Store) -> None:
    await store.append(LOG, [b"a"], ttl=0.05)
    await store.append(LOG, [b"b"], ttl=60)
    await store.append("short", [b"a"], ttl=0.1)
    await store.append("short", [b"b"])
    await until(lambda: length_is_zero(store, "short"))
    assert (await store.read(LOG)).length == 2


# Records


@pytest.mark.parametrize("value", BINARY)
async def test_a_record_is_the_bytes_that_were_put(store: Store, value: bytes) -> None:
    await store.put("run/{r}", value)
    assert await store.get("run/{r}") == value
    await store.put("run/{r}", b"other", expect=value)
    assert await store.get("run/{r}") == b"other"


async def test_a_record_expected_to_be_absent_is_written_once(store: Store) -> None:
    done = await asyncio.gather(
        *(store.put("run/{r}", b"%d" % writer, expect=None) for writer in range(20)), return_exceptions=True
    )
    assert done.count(None) == 1
    assert all(isinstance(error, Conflict) for error in done if error is not None)


async def test_a_record_is_replaced_only_when_it_is_what_was_expected(store: Store) -> None:
    with pytest.raises(Conflict):
        await store.put("run/{r}", b"new", expect=b"")
    assert await store.get("run/{r}") is None
    await store.put("run/{r}", b"old", expect=ANYTHING)
    with pytest.raises(Conflict):
        await store.put("run/{r}", b"new", expect=b"older")
    assert await store.get("run/{r}") == b"old"


@pytest.mark.parametrize("expect", [ANYTHING, None, b"old"])
async def test_a_record_with_a_ttl_ends_and_is_then_absent(store: Store, expect: bytes | None) -> None:
    if expect == b"old":
        await store.put("run/{r}", b"old")
    await store.put("run/{r}", b"new", expect=expect, ttl=0.05)
    await until(lambda: is_absent(store, "run/{r}"))
    await store.put("run/{r}", b"next", expect=None)


@pytest.mark.parametrize("expect", [ANYTHING, b"old"])
async def test_a_record_put_again_without_a_ttl_stays(store: Store, expect: bytes) -> None:
    await store.put("run/{r}", b"old", ttl=0.3)
    await store.put("run/{r}", b"new", expect=expect)
    await passed(store, 0.4)
    assert await store.get("run/{r}") == b"new"


# Tables


async def test_a_table_has_the_rows_that_were_put(store: Store) -> None:
    rows = {f"row {number}/{{ü}}~": value for number, value in enumerate(BINARY)}
    for row, value in rows.items():
        await store.put_row("tasks", row, value)
    assert await store.rows("tasks") == rows
    assert await store.rows("{tasks}") == {}


async def test_a_row_is_written_only_when_it_is_what_was_expected(store: Store) -> None:
    await store.put_row("tasks", "1", b"a", expect=None)
    await store.put_row("tasks", "1", b"b", expect=b"a")
    for expect in (None, b"a", b""):
        with pytest.raises(Conflict):
            await store.put_row("tasks", "1", b"c", expect=expect)
    with pytest.raises(Conflict):
        await store.put_row("tasks", "2", b"c", expect=b"")
    await store.put_row("tasks", "1", b"d", expect=ANYTHING)
    assert await store.rows("tasks") == {"1": b"d"}


async def test_a_row_is_dropped_once(store: Store) -> None:
    await store.put_row("tasks", "1", b"")
    assert await store.drop_row("tasks", "1")
    assert not await store.drop_row("tasks", "1")
    assert await store.rows("tasks") == {}


async def has_no_rows(store: Store, key: str) -> bool:
    return await store.rows(key) == {}


async def test_a_table_with_a_ttl_ends_as_a_whole_and_starts_anew(store: Store) -> None:
    await store.put_row("tasks", "1", b"a")
    await store.put_row("tasks", "2", b"b", expect=None, ttl=0.05)
    await until(lambda: has_no_rows(store, "tasks"))
    assert not await store.drop_row("tasks", "1")
    await store.put_row("tasks", "1", b"new", expect=None)
    await passed(store, 0.1)
    assert await store.rows("tasks") == {"1": b"new"}


async def test_a_later_ttl_of_a_row_counts_for_the_table_and_none_leaves_it(store: Store) -> None:
    await store.put_row("tasks", "1", b"a", ttl=0.05)
    await store.put_row("tasks", "1", b"b", expect=b"a", ttl=60)
    await store.put_row("short", "1", b"a", ttl=0.1)
    await store.put_row("short", "2", b"b")
    await until(lambda: has_no_rows(store, "short"))
    assert await store.rows("tasks") == {"1": b"b"}


async def test_a_table_whose_last_row_is_dropped_takes_its_ttl_along(store: Store) -> None:
    await store.put_row("tasks", "1", b"a", ttl=0.3)
    await store.drop_row("tasks", "1")
    await store.put_row("tasks", "2", b"b")
    await passed(store, 0.4)
    assert await store.rows("tasks") == {"2": b"b"}


# Counters


async def test_a_counter_adds_up(store: Store) -> None:
    assert await store.take("spent/{r}", 3) == 3
    assert await store.take("spent/{r}", -1) == 2
    assert await store.take("spent/{r}", 0) == 2


async def test_takers_together_never_pass_the_limit(store: Store) -> None:
    sums = await asyncio.gather(*(store.take("spent/{r}", 2, limit=25) for _ in range(40)))
    assert sorted(total for total in sums if total is not None) == list(range(2, 25, 2))
    assert await store.take("spent/{r}", 1, limit=25) == 25
    assert await store.take("spent/{r}", 1, limit=25) is None
    assert await store.take("spent/{r}", 0) == 25


async def test_a_counter_with_a_ttl_ends(store: Store) -> None:
    await store.take("spent/{r}", 5, ttl=0.05)

    async def over() -> bool:
        return await store.take("spent/{r}", 0) == 0

    await until(over)


# Keys


async def test_delete_removes_everything_of_its_keys_and_counts_them(store: Store) -> None:
    keys = ["a/{x}/log", "a/{x/s~p.2}/record", "a/{x}~table", "a/{}/counter", "a//lease"]
    await store.append(keys[0], [b"1", b"2"])
    await store.put(keys[1], b"1")
    await store.put_row(keys[2], "1", b"")
    await store.take(keys[3], 0)
    await store.acquire(keys[4], "node-a", ttl=60)
    await store.acquire(keys[4], "node-b", ttl=60)
    await store.append("a/{x}/other", [b"stays"])
    assert await store.delete(*keys, "a/{x}/never") == 5
    assert await store.delete(*keys) == 0
    assert await store.delete() == 0
    assert (await store.read(keys[0])).length == 0
    assert await store.get(keys[1]) is None
    assert await store.rows(keys[2]) == {}
    assert await store.take(keys[3], 1) == 1
    assert await store.line(keys[4]) == Line("", ())
    assert isinstance(await store.acquire(keys[4], "node-c", ttl=60), Lease)
    assert (await store.read("a/{x}/other")).entries == (b"stays",)


async def test_keys_that_look_alike_are_different_things(store: Store) -> None:
    keys = ["a/{b}", "a/{b}/", "a/b", "A/{b}", "a/{b}~", "a/{b }", "a/{ü}", "a/{u\u0308}", "a/%", "a/_", "a/*"]
    await asyncio.gather(*(store.append(key, [key.encode()]) for key in keys))
    for key in keys:
        assert (await store.read(key)).entries == (key.encode(),)


def test_a_url_of_no_store_is_invalid() -> None:
    with pytest.raises(Invalid, match="redis://host:port/db"):
        open_store("postgres://db")
    with pytest.raises(Invalid) as caught:
        open_store("redis://:s3cret@host:port/0")
    assert "s3cret" not in str(caught.value)
