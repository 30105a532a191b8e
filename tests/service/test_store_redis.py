"""What the Redis store promises beyond the contract: one connection for all, and a Redis that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
import redis
from kit.redis import RedisServer

from retinue.service.errors import StoreUnavailable
from retinue.service.store import Lease, Line, open_store
from retinue.service.store.redis import RedisStore


def connections(server: RedisServer) -> int:
    """How many clients the server has, this question's own left out."""
    with server.client() as client:
        return len(client.client_list()) - 1


async def test_everything_is_there_after_a_kill_of_redis(redis_server: RedisServer) -> None:
    async with asyncio.timeout(30), RedisStore(redis_server.url) as store:
        await store.append("log", [b"a", b"b"])
        await store.put("record", b"\x00")
        lease = await store.acquire("lease", "node-a", ttl=60)
    await redis_server.kill()
    await redis_server.start()
    async with asyncio.timeout(30), RedisStore(redis_server.url) as store:
        assert (await store.read("log")).entries == (b"a", b"b")
        assert await store.get("record") == b"\x00"
        assert isinstance(lease, Lease) and await store.renew(lease, ttl=60)


async def test_anyone_can_look_at_the_data_with_a_plain_client(redis_server: RedisServer) -> None:
    async with RedisStore(redis_server.url) as store:
        await store.append("log", [b"a"])
        await store.put("record", b"r")
        await store.put_row("table", "row", b"v")
        await store.take("counter", 3)
        lease = await store.acquire("lease", "node-a", ttl=60)
    with redis_server.client() as client:
        assert client.lrange("log", 0, -1) == [b"a"]
        assert client.get("record") == b"r"
        assert client.hgetall("table") == {b"row": b"v"}
        assert client.get("counter") == b"3"
        assert isinstance(lease, Lease)
        assert client.hmget("lease", "owner", "token") == [b"node-a", str(lease.token).encode()]


async def test_what_a_lease_leaves_behind_is_not_kept_for_ever(redis_server: RedisServer) -> None:
    async with RedisStore(redis_server.url) as store:
        await store.acquire("lease", "node-a", ttl=60)
        await store.acquire("lease", "node-b", ttl=0.05)
        await store.release("lease", "node-a")
        await store.release("lease", "node-b")
    with redis_server.client() as client:
        assert client.hkeys("lease") == [b"token"]
        assert 86_400 < client.ttl("lease") <= 86_460


async def test_calls_are_done_in_the_order_in_which_they_were_made_whichever_is_awaited(
    redis_server: RedisServer,
) -> None:
    async with asyncio.timeout(30), RedisStore(redis_server.url) as store:
        await store.put_row("table", "dropped", b"")
        await store.put("record", b"")
        lease = Lease("lease", "node-a", 0)
        early: list[Awaitable[object]] = [
            store.put_row("table", "plain", b"1"),
            store.put_row("table", "kept", b"2", ttl=60),
            store.drop_row("table", "dropped"),
            store.delete("record"),
            store.rows("table"),
            store.acquire("lease", "node-a", ttl=60),
            store.line("lease"),
            store.renew(lease, ttl=60),
            store.release("lease", "node-a"),
        ]
        last = store.append("log", [b"a"])
        await store.drop_row("table", "plain")
        with redis_server.client() as client:
            assert client.hgetall("table") == {b"kept": b"2"}
            assert client.llen("log") == 1
        *_, rows, held, line, renewed, released = await asyncio.gather(*early)
        assert rows == {"plain": b"1", "kept": b"2"}
        assert isinstance(held, Lease) and line == Line("node-a", ())
        assert (renewed, released, await store.line("lease"), await last) == (False, None, Line("", ()), 1)


async def test_all_callers_share_one_connection(redis_server: RedisServer) -> None:
    async with asyncio.timeout(30), RedisStore(redis_server.url) as store:
        before = connections(redis_server)
        sums = await asyncio.gather(*(store.take("counter", 1) for _ in range(500)))
        assert sorted(total or 0 for total in sums) == list(range(1, 501))
        assert connections(redis_server) == before == 1
    assert connections(redis_server) == 0


async def test_scripts_are_sent_again_when_redis_has_forgotten_them(redis_url: str) -> None:
    async with RedisStore(redis_url) as store:
        await store.append("log", [b"a"])
        with redis.Redis.from_url(redis_url) as client:
            client.script_flush()
        assert await store.append("log", [b"b"], at=1) == 2


async def test_a_cancelled_caller_disturbs_nobody(redis_server: RedisServer) -> None:
    async with asyncio.timeout(30), RedisStore(redis_server.url) as store:
        await store.append("log", [b"first"])
        redis_server.freeze()
        calls = [asyncio.create_task(store.take(f"counter {number}", number)) for number in range(20)]
        for _ in range(5):  # sent, and no reply
            await asyncio.sleep(0)
        later = [asyncio.create_task(store.append("log", [b"%d" % number])) for number in range(20)]
        await asyncio.sleep(0)  # behind those, and not sent
        for call in (*calls[::2], *later[::2]):
            call.cancel()
        await asyncio.sleep(0)
        redis_server.thaw()
        assert await asyncio.gather(*calls[1::2]) == list(range(1, 20, 2))
        await asyncio.gather(*later[1::2])
        entries = (await store.read("log")).entries
        assert entries == (b"first", *(b"%d" % number for number in range(1, 20, 2)))
        assert connections(redis_server) == 1


async def test_a_redis_that_is_not_there_is_unavailable_on_entering(redis_server: RedisServer) -> None:
    await redis_server.stop()
    with pytest.raises(StoreUnavailable, match="does not answer") as caught:
        async with asyncio.timeout(10), open_store(redis_server.url):
            pytest.fail("entered")
    assert f"redis://:***@127.0.0.1:{redis_server.port}/0" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("login", ["", ":wrong@"])
async def test_a_wrong_password_is_unavailable_and_said(redis_server: RedisServer, login: str) -> None:
    with pytest.raises(StoreUnavailable, match="refuses the login") as caught:
        async with asyncio.timeout(10), RedisStore(f"redis://{login}127.0.0.1:{redis_server.port}/0"):
            pytest.fail("entered")
    assert "wrong@" not in str(caught.value)


async def test_a_redis_that_dies_is_unavailable_and_heals_without_a_restart(redis_server: RedisServer) -> None:
    async with asyncio.timeout(30), RedisStore(redis_server.url) as store:
        await store.append("log", [b"a"])
        for end in (redis_server.kill, redis_server.stop):
            await end()
            for call in (store.append("log", [b"lost"]), store.get("record"), store.ping()):
                with pytest.raises(StoreUnavailable) as caught:
                    await call
                assert ":***@" in str(caught.value)
                assert "s3cret" not in str(caught.value)
            await redis_server.start()
            await store.ping()
        assert await store.append("log", [b"b"], at=1) == 2


async def test_a_redis_restarted_between_two_commands_is_not_noticed(redis_server: RedisServer) -> None:
    async with asyncio.timeout(30), RedisStore(redis_server.url) as store:
        await store.append("log", [b"a"])
        await redis_server.kill()
        await redis_server.start()
        assert await store.append("log", [b"b"]) == 2


async def test_a_write_whose_reply_was_lost_is_never_sent_again(redis_server: RedisServer) -> None:
    async with asyncio.timeout(30), RedisStore(redis_server.url) as store:
        await store.append("log", [b"first"])
        redis_server.freeze()
        calls = [asyncio.create_task(store.append("log", [b"%d" % number])) for number in range(5)]
        for _ in range(5):
            await asyncio.sleep(0)
        await redis_server.kill()  # before it read what was sent
        lost = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in lost] == [StoreUnavailable] * 5
        await redis_server.start()
        assert (await store.read("log")).entries == (b"first",)


async def test_a_frozen_redis_is_unavailable_and_not_a_hang(redis_server: RedisServer) -> None:
    async with asyncio.timeout(30), RedisStore(redis_server.url, connect_timeout=0.2, reply_timeout=0.2) as store:
        redis_server.freeze()
        with pytest.raises(StoreUnavailable, match=r"went away: silent for 0\.2 s; it is unknown"):
            await store.append("log", [b"a"])
        with pytest.raises(StoreUnavailable, match=r"does not answer: silent for 0\.2 s"):
            await store.append("log", [b"a"])
        redis_server.thaw()
        with redis_server.client() as client:
            client.ping()
        await store.ping()


async def test_a_redis_that_is_full_is_unavailable_and_others_go_on(redis_server: RedisServer) -> None:
    async with asyncio.timeout(30), RedisStore(redis_server.url) as store:
        await store.append("log", [b"a"])
        with redis_server.client() as client:
            client.config_set("maxmemory", 1)
            write, read = await asyncio.gather(store.append("log", [b"b"]), store.read("log"), return_exceptions=True)
            client.config_set("maxmemory", 0)
        assert isinstance(write, StoreUnavailable)
        assert not isinstance(read, BaseException) and read.entries == (b"a",)
        assert await store.append("log", [b"b"], at=1) == 2


async def test_leaving_a_store_fails_those_who_still_wait(redis_server: RedisServer) -> None:
    async with asyncio.timeout(30):
        async with RedisStore(redis_server.url) as store:
            redis_server.freeze()
            sent = asyncio.create_task(store.append("log", [b"a"]))
            for _ in range(5):
                await asyncio.sleep(0)
            queued = asyncio.create_task(store.append("log", [b"b"]))
            await asyncio.sleep(0)
        redis_server.thaw()
        ends = await asyncio.gather(sent, queued, store.ping(), return_exceptions=True)
        assert [type(error) for error in ends] == [StoreUnavailable] * 3


async def test_what_the_body_raises_leaves_the_store_as_it_is(redis_url: str) -> None:
    with pytest.raises(KeyError):
        async with RedisStore(redis_url):
            raise KeyError("mine")
