import json

from cachelib.order.fingerprint import differences, fingerprint

CHAIN = {
    "kind": "shuffle",
    "seed": 7,
    "of": {"kind": "shuffle", "seed": 8, "of": {"kind": "cache", "rows": 9, "elements": {"a": 1}}},
}


def test_parts_are_named_after_their_link():
    parts = fingerprint(CHAIN)
    assert list(parts) == ["shuffle.seed", "shuffle2.seed", "cache.rows", "cache.elements"]
    assert parts["shuffle.seed"] == 7
    assert parts["cache.elements"].startswith("#")


def test_long_facts_become_digests():
    a, b = (fingerprint({"kind": "mix", "weights": [w] * 1000})["mix.weights"] for w in (1, 2))
    assert a != b
    assert len(a) == len(b) == 17


def test_stays_small_whatever_is_described():
    description = {"kind": "cache", "rows": 5}
    for seed in range(100):
        description = {"kind": "shuffle", "seed": seed, "of": description}
    assert len(json.dumps(fingerprint(description))) < 640


PARTS = {"web": CHAIN, "code": {"kind": "cache", "rows": 5}}
MIX = {"kind": "mix", "seed": 7, "parts": PARTS}


def test_each_of_several_parts_is_a_digest_of_its_own():
    parts = fingerprint({"kind": "shuffle", "seed": 1, "of": MIX})
    assert list(parts) == ["shuffle.seed", "mix.seed", "mix[web]", "mix[code]"]
    other = fingerprint({**MIX, "parts": {**PARTS, "web": {**CHAIN, "seed": 8}}})
    (difference,) = differences(fingerprint(MIX), other)
    assert difference.startswith("mix[web] is '#")


def test_many_parts_share_one_digest():
    def described(seed):
        return {**MIX, "parts": {f"part {i}": {"kind": "cache", "rows": seed} for i in range(99)}}

    parts = fingerprint(described(1))
    assert list(parts) == ["mix.seed", "mix.parts"]
    assert parts != fingerprint(described(2))


def test_differences_name_part_and_values():
    assert differences(fingerprint(CHAIN), fingerprint(CHAIN)) == []
    other = fingerprint({**CHAIN, "seed": 9, "extra": 1})
    assert differences(fingerprint(CHAIN), other) == [
        "shuffle.seed is 7 in the state, but 9 here",
        "shuffle.extra is missing in the state, but 1 here",
    ]
    assert differences({"gone.fact": 3}, {}) == ["gone.fact is 3 in the state, but missing here"]


def test_survives_json():
    assert differences(json.loads(json.dumps(fingerprint(CHAIN))), fingerprint(CHAIN)) == []
