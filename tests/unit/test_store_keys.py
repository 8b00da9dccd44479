"""Names of keys and run ids."""

from __future__ import annotations

import pytest

from makegood.store import keys


@pytest.mark.contract("D1")
def test_run_ids_are_unique_sortable_and_carry_their_shard() -> None:
    """Ten thousand of them; 29 characters; those of one shard sort by time."""
    ids = [keys.new_run_id(shard=5) for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    assert {len(each) for each in ids} == {29}
    assert all(keys.is_run_id(each) and keys.prefix_of(each) == "mg:{05}:" for each in ids)
    assert [each[:13] for each in ids] == sorted(each[:13] for each in ids)
    assert {keys.new_run_id()[:2] for _ in range(2000)} == {f"{shard:02d}" for shard in range(keys.SHARDS)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5-x",
        "16-" + "0" * 26,
        "05-" + "0" * 25,
        "05-" + "0" * 27,
        "05_" + "0" * 26,
        "05-" + "I" * 26,
        "5a-" + "0" * 26,
    ],
)
def test_what_is_no_run_id_is_seen(text: str) -> None:
    """Another length, another alphabet, a shard that does not exist."""
    assert not keys.is_run_id(text)


def test_all_keys_of_a_run_carry_the_tag_of_its_shard() -> None:
    """One slot of a cluster holds everything that one script touches."""
    run_id = keys.new_run_id(shard=11)
    named = (keys.run_key, keys.journal_key, keys.steps_key, keys.events_key)
    for name in (*(each(run_id) for each in named), keys.blob_key(run_id, "d")):
        assert name.startswith("mg:{11}:")
    assert keys.state_index(keys.prefix(11), "a", "queued") == "mg:{11}:st:a:queued"
    assert len(set(keys.all_prefixes())) == keys.SHARDS


def test_equal_texts_share_a_shard_and_different_ones_spread() -> None:
    """Sessions and keys choose the shard."""
    assert keys.shard_for("s-1") == keys.shard_for("s-1")
    assert {keys.shard_for(f"s-{number}") for number in range(500)} == set(range(keys.SHARDS))


def test_a_key_is_unique_per_agent_and_session() -> None:
    """No two of these are taken for one another."""
    triples = [
        ("a", None, "k"),
        ("a", "s", "k"),
        ("b", None, "k"),
        ("a", None, "k2"),
        ("a", "k", "s"),
        ("a", "s\0k", ""),
    ]
    assert len({keys.dedupe_digest(*triple) for triple in triples}) == len(triples)
