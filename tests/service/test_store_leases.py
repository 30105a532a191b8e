"""What every store promises about leases: the fence, the line of those who wait, and who goes first after an end."""

from __future__ import annotations

import asyncio
import time

import pytest
from kit.stores import passed, until

from retinue.service.store import Conflict, Fenced, Lease, Line, Place, Store, open_store

LOG = "agent/{clerk/s~planner.2}/history"
PLAN = "agent/{clerk/s~planner.2}/plan"
LEASE = "agent/{clerk/s~planner.2}/lease"


async def taken(store: Store, owner: str, *, ttl: float = 60, claim: str = "") -> Lease:
    """The lease, which must be to be had."""
    lease = await store.acquire(LEASE, owner, ttl=ttl, claim=claim)
    assert isinstance(lease, Lease)
    return lease


async def queued(store: Store, *owners: str, claim: str = "") -> None:
    """Puts the owners in line, which somebody must hold up."""
    for owner in owners:
        assert isinstance(await store.acquire(LEASE, owner, ttl=60, claim=claim), Place)


async def lapse(store: Store, lease: Lease) -> None:
    """Returns once the lease has run out of time."""
    assert await store.renew(lease, ttl=0.01)
    await until(lambda: is_free(store))


async def is_free(store: Store) -> bool:
    return not (await store.line(LEASE)).holder


# Leases and the fence


async def test_a_lease_is_for_one_owner_until_it_is_given_up(store: Store) -> None:
    lease = await taken(store, "node-a")
    assert (lease.key, lease.owner, lease.lapsed) == (LEASE, "node-a", False)
    assert await store.acquire(LEASE, "node-b", ttl=60, join=False) is None
    await store.release(LEASE, "node-a")
    assert not await store.renew(lease, ttl=60)
    assert not (await taken(store, "node-b")).lapsed


async def test_the_present_owner_extends_its_lease_and_keeps_the_token(store: Store) -> None:
    await lapse(store, await taken(store, "node-z"))
    first = await taken(store, "node-a", ttl=0.1)
    again = await taken(store, "node-a")
    assert (first.token, first.lapsed) == (again.token, again.lapsed) == (first.token, True)
    await passed(store, 0.2)
    assert (await store.line(LEASE)).holder == "node-a"


async def test_a_lease_ends_when_its_time_is_over_and_not_before(store: Store) -> None:
    begin = time.monotonic()
    await taken(store, "node-a", ttl=0.2)
    await until(lambda: is_free(store))
    assert time.monotonic() - begin >= 0.19
    await taken(store, "node-b")


async def test_renewing_extends_a_lease(store: Store) -> None:
    lease = await taken(store, "node-a", ttl=1)
    assert await store.renew(lease, ttl=60)
    await passed(store, 1.1)
    assert (await store.line(LEASE)).holder == "node-a"


async def test_tokens_grow_after_a_release_an_end_and_a_delete(store: Store) -> None:
    tokens = []
    for owner in ("node-a", "node-b", "node-a"):
        tokens.append((await taken(store, owner)).token)
        await store.release(LEASE, owner)
    last = await taken(store, "node-c")
    await lapse(store, last)
    tokens += [last.token, (await taken(store, "node-d")).token]
    await store.delete(LEASE)
    tokens.append((await taken(store, "node-d")).token)
    assert tokens == sorted(set(tokens))


async def test_an_owner_that_comes_back_after_the_end_gets_a_new_token(store: Store) -> None:
    first = await taken(store, "node-a")
    await lapse(store, first)
    assert not await store.renew(first, ttl=60)
    second = await taken(store, "node-a")
    assert second.token > first.token and second.lapsed
    with pytest.raises(Fenced):
        await store.append(LOG, [b"late"], lease=first)


async def test_a_lease_that_was_lost_can_neither_be_renewed_nor_given_up(store: Store) -> None:
    lost = await taken(store, "node-a")
    await lapse(store, lost)
    held = await taken(store, "node-b")
    assert not await store.renew(lost, ttl=60)
    await store.release(LEASE, "node-a")
    assert (await store.line(LEASE)).holder == "node-b"
    assert await store.renew(held, ttl=60)


async def test_the_holder_of_a_lease_may_append_and_put(store: Store) -> None:
    await lapse(store, await taken(store, "node-z"))
    lease = await taken(store, "node-a")
    for same in (lease, Lease(LEASE, "node-a", lease.token)):
        await store.append(LOG, [b"a"], at=0, lease=same)
        await store.put(PLAN, b"1", lease=same, ttl=60)
    assert await store.get(PLAN) == b"1"
    with pytest.raises(Conflict) as caught:
        await store.append(LOG, [b"b"], at=0, lease=lease)
    assert not isinstance(caught.value, Fenced)


async def test_a_stale_writer_is_fenced_also_when_it_repeats_itself(store: Store) -> None:
    stale = await taken(store, "node-a")
    await store.append(LOG, [b"a"], at=0, lease=stale)
    await store.put(PLAN, b"a", lease=stale)
    await lapse(store, stale)
    for _ in range(2):
        for entry in (b"a", b"b"):
            with pytest.raises(Fenced):
                await store.append(LOG, [entry], at=0, lease=stale)
            with pytest.raises(Fenced):
                await store.put(PLAN, entry, lease=stale)
        await store.acquire(LEASE, "node-b", ttl=60)
    assert (await store.read(LOG)).entries == (b"a",)
    assert await store.get(PLAN) == b"a"


async def test_a_writer_whose_lease_nobody_holds_is_fenced(store: Store) -> None:
    lease = await taken(store, "node-a")
    await store.release(LEASE, "node-a")
    with pytest.raises(Fenced):
        await store.append(LOG, [b"a"], lease=lease)
    with pytest.raises(Fenced):
        await store.put(PLAN, b"a", lease=lease)
    assert await store.get(PLAN) is None


async def test_a_record_can_be_fenced_and_expected_at_once(store: Store) -> None:
    lease = await taken(store, "node-a")
    await store.put(PLAN, b"a", expect=None, lease=lease)
    await store.put(PLAN, b"b", expect=b"a", lease=lease)
    for expect in (None, b"a"):
        with pytest.raises(Conflict) as caught:
            await store.put(PLAN, b"c", expect=expect, lease=lease)
        assert not isinstance(caught.value, Fenced)
    assert await store.get(PLAN) == b"b"


# The line


async def test_those_who_wait_get_the_lease_in_the_order_in_which_they_came(store: Store) -> None:
    owners = [f'attempt {number} ü"\\' for number in range(20)]
    lease = await taken(store, "first")
    for before, owner in enumerate(owners):
        assert await store.acquire(LEASE, owner, ttl=60) == Place(before)
    for before, owner in reversed(list(enumerate(owners))):  # asking again changes no order
        assert await store.acquire(LEASE, owner, ttl=60, join=False) == Place(before)
    assert await store.line(LEASE) == Line("first", tuple(owners))
    await store.release(LEASE, "first")
    for turn, owner in enumerate(owners):
        assert await store.line(LEASE) == Line("", tuple(owners[turn:]))
        for later, waiter in reversed(list(enumerate(owners[turn + 1 :], 1))):
            assert await store.acquire(LEASE, waiter, ttl=60) == Place(later)
        mine = await taken(store, owner)
        assert mine.token > lease.token and not mine.lapsed
        assert await store.line(LEASE) == Line(owner, tuple(owners[turn + 1 :]))
        lease = mine
        await store.release(LEASE, owner)
    assert await store.line(LEASE) == Line("", ())


async def test_a_newcomer_does_not_overtake_those_who_wait(store: Store) -> None:
    await taken(store, "a")
    await queued(store, "b")
    await store.release(LEASE, "a")
    assert await store.acquire(LEASE, "new", ttl=60, join=False) is None
    assert await store.acquire(LEASE, "new", ttl=60) == Place(1)
    await taken(store, "b")


async def test_no_more_wait_than_the_limit_and_the_holder_is_not_counted(store: Store) -> None:
    assert isinstance(await store.acquire(LEASE, "a", ttl=60, most=0), Lease)
    assert await store.acquire(LEASE, "b", ttl=60, most=0) is None
    assert await store.acquire(LEASE, "b", ttl=60, most=2) == Place(0)
    assert await store.acquire(LEASE, "c", ttl=0.05, most=2) == Place(1)
    assert await store.acquire(LEASE, "d", ttl=60, most=2) is None
    assert await store.acquire(LEASE, "b", ttl=60, most=0) == Place(0)  # it waits already
    await passed(store, 0.1)
    assert await store.acquire(LEASE, "d", ttl=60, most=2) == Place(1)  # the dead are not counted
    assert await store.line(LEASE) == Line("a", ("b", "d"))


async def test_a_place_that_was_not_kept_alive_is_lost(store: Store) -> None:
    await taken(store, "a")
    assert await store.acquire(LEASE, "lost", ttl=0.05) == Place(0)
    await store.acquire(LEASE, "kept", ttl=0.05)
    await store.acquire(LEASE, "kept", ttl=60)
    await passed(store, 0.1)
    assert await store.line(LEASE) == Line("a", ("kept",))
    assert await store.acquire(LEASE, "lost", ttl=60, join=False) is None
    await store.release(LEASE, "a")
    await taken(store, "kept")
    await store.release(LEASE, "kept")
    # Also when nobody is left before it: others may have had their turns meanwhile.
    assert await store.acquire(LEASE, "lost", ttl=60, join=False) is None
    await taken(store, "lost")


async def test_the_dead_hold_up_nobody(store: Store) -> None:
    await taken(store, "a")
    await store.acquire(LEASE, "dead", ttl=0.05)
    await store.release(LEASE, "a")
    await passed(store, 0.1)
    assert await store.line(LEASE) == Line("", ())
    await taken(store, "new")


async def test_a_place_can_be_given_up(store: Store) -> None:
    await taken(store, "a")
    await queued(store, "b", "c")
    await store.release(LEASE, "b")
    await store.release(LEASE, "nobody")
    assert await store.line(LEASE) == Line("a", ("c",))
    await store.release(LEASE, "a")
    await store.release(LEASE, "c")
    assert await store.line(LEASE) == Line("", ())
    await taken(store, "new")


async def test_a_delete_forgets_the_line_and_the_claim(store: Store) -> None:
    lease = await taken(store, "a", claim="run")
    await queued(store, "b")
    await lapse(store, lease)
    await queued(store, "c")
    assert await store.delete(LEASE) == 1
    assert not (await taken(store, "new")).lapsed


# Who goes first after an end


async def test_a_waiter_with_the_claim_of_a_holder_that_ran_out_goes_before_all_others(store: Store) -> None:
    lease = await taken(store, "a", claim="run")
    await queued(store, "b")
    await queued(store, "again", "and again", claim="run")
    await lapse(store, lease)
    assert await store.acquire(LEASE, "b", ttl=60) == Place(0)
    assert await store.acquire(LEASE, "new", ttl=60, claim="run", join=False) is None
    assert await store.acquire(LEASE, "and again", ttl=60, claim="run") == Place(2)
    assert (await taken(store, "again", claim="run")).lapsed
    assert await store.line(LEASE) == Line("again", ("b", "and again"))


async def test_who_asks_with_the_claim_goes_first_without_a_place(store: Store) -> None:
    lease = await taken(store, "a", claim="run")
    await queued(store, "b", "c")
    await lapse(store, lease)
    assert (await taken(store, "again", claim="run")).lapsed
    assert await store.line(LEASE) == Line("again", ("b", "c"))


async def test_nobody_waits_for_a_claim_whose_waiter_died(store: Store) -> None:
    lease = await taken(store, "a", claim="run")
    await queued(store, "b")
    await store.acquire(LEASE, "again", ttl=0.05, claim="run")
    await lapse(store, lease)
    await passed(store, 0.1)
    assert (await taken(store, "b")).lapsed


async def test_a_release_forgets_the_claim(store: Store) -> None:
    await taken(store, "a", claim="run")
    await queued(store, "b")
    await queued(store, "again", claim="run")
    await store.release(LEASE, "a")
    assert await store.acquire(LEASE, "new", ttl=60, claim="run") == Place(2)
    assert await store.acquire(LEASE, "again", ttl=60, claim="run") == Place(1)
    assert not (await taken(store, "b")).lapsed


async def test_no_claim_puts_nobody_first(store: Store) -> None:
    lease = await taken(store, "a")
    await queued(store, "b", claim="run")
    await queued(store, "c")
    await lapse(store, lease)
    assert await store.acquire(LEASE, "new", ttl=60) == Place(2)
    assert await store.acquire(LEASE, "c", ttl=60) == Place(1)
    assert (await taken(store, "b", claim="run")).lapsed


async def test_once_somebody_has_taken_over_its_own_claim_counts(store: Store) -> None:
    await lapse(store, await taken(store, "a", claim="old"))
    second = await taken(store, "b", claim="new")
    await queued(store, "c")
    await queued(store, "old again", claim="old")
    await queued(store, "new again", claim="new")
    await lapse(store, second)
    assert await store.acquire(LEASE, "old again", ttl=60, claim="old") == Place(1)
    assert (await taken(store, "new again", claim="new")).lapsed
    await store.release(LEASE, "new again")
    assert not (await taken(store, "c")).lapsed


async def test_a_holder_that_ran_out_cannot_give_up_and_leaves_its_claim(store: Store) -> None:
    await lapse(store, await taken(store, "a", claim="run"))
    await store.release(LEASE, "a")
    assert (await taken(store, "again", claim="run")).lapsed


async def test_twenty_owners_in_two_processes_append_in_the_order_of_acceptance(store_url: str, store: Store) -> None:
    async with open_store(store_url) as other:
        # Two memory stores have nothing in common.
        stores = (store, store if store_url == "memory:" else other)
        await taken(store, "first")
        owners = [f"{number}" for number in range(20)]

        async def take_a_turn(number: int, owner: str) -> None:
            mine = stores[number % 2]
            got = await mine.acquire(LEASE, owner, ttl=60)
            while not isinstance(got, Lease):
                await asyncio.sleep(0.002)
                got = await mine.acquire(LEASE, owner, ttl=60, join=False)
            await mine.append(LOG, [owner.encode()], lease=got)
            await mine.release(LEASE, owner)

        async def all_wait() -> bool:
            return len((await store.line(LEASE)).waiting) == len(owners)

        async with asyncio.TaskGroup() as group:
            for number, owner in enumerate(owners):
                group.create_task(take_a_turn(number, owner))
            await until(all_wait)
            accepted = (await store.line(LEASE)).waiting
            await store.release(LEASE, "first")
        assert sorted(accepted) == sorted(owners)
        assert [entry.decode() for entry in (await store.read(LOG)).entries] == list(accepted)
        assert await store.line(LEASE) == Line("", ())


async def test_a_delete_is_refused_when_the_lease_is_over(store: Store) -> None:
    lease = await taken(store, "a")
    await store.put(LEASE + "/plan", b"1")
    await lapse(store, lease)
    holder = await taken(store, "b")
    with pytest.raises(Fenced):
        await store.delete(LEASE + "/plan", lease=lease)
    assert await store.get(LEASE + "/plan") == b"1"
    assert await store.delete(LEASE + "/plan", LEASE + "/none", lease=holder) == 1
