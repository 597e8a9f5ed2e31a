import itertools

from cachelib.order import seeds


def test_keys_are_part_of_the_format():
    assert (
        seeds.derive("shuffle", 7).hex()
        == "459532b6def907938dde900b726787c41aec477bdcf2dfac8dc7286b434fa10a"
    )
    assert seeds.of_epoch(7, 1) == 16057044361155821108


def test_epoch_zero_keeps_the_seed():
    assert seeds.of_epoch(-3, 0) == -3


def test_no_two_of_seed_epoch_and_label_share_a_key():
    names = range(-20, 20)
    keys = {seeds.derive("a", seeds.of_epoch(s, e)) for s, e in itertools.product(names, range(20))}
    keys |= {seeds.derive("b", s) for s in names}
    keys |= {seeds.derive("a", s, 0) for s in names} | {seeds.derive("a", str(s)) for s in names}
    assert len(keys) == 40 * 20 + 40 * 3
