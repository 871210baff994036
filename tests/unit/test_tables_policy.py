"""Look-up rules, guards, versions of folders, and names of devices."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunesmith.errors import BadInput
from tunesmith.tables import devices, guards, versions
from tunesmith.tables.policy import RULES, Ladder, Rule, Step, never_read, rule

sizes = st.lists(st.integers(1, 9000), min_size=1, max_size=20, unique=True)


def key(ladder: Ladder, size: int) -> int | None:
    hit = ladder.find(size)
    return None if hit is None else hit.key


# --- each rule against its definition ---------------------------------------------------------------


@given(keys=sizes, size=st.integers(-5, 20_000))
def test_each_rule_is_its_definition(keys: list[int], size: int):
    below, above = [k for k in keys if k <= size], [k for k in keys if k >= size]
    assert key(Ladder(RULES["nearest-stock"], keys), size) == min(keys, key=lambda k: abs(k - size))
    assert key(Ladder(RULES["exact"], keys), size) == (size if size in keys else None)
    assert key(Ladder(RULES["floor"], keys), size) == max(below, default=None)
    assert key(Ladder(RULES["ceil"], keys), size) == min(above, default=None)
    within = [k for k in sorted(keys) if k == size or (size > 0 and max(k, size) <= 2 * min(k, size))]
    assert key(Ladder(RULES["nearest"], keys), size) == min(within, key=lambda k: abs(k - size), default=None)


@given(keys=sizes, upto=st.integers(1, 1000), name=st.sampled_from(sorted(RULES)))
def test_runs_are_the_look_up_of_every_size(keys: list[int], upto: int, name: str):
    ladder = Ladder(rule(name), keys)
    runs = list(ladder.runs(upto))
    assert [size for first, last, _ in runs for size in range(first, last + 1)] == list(range(1, upto + 1))
    assert all(key(ladder, size) == k for first, last, k in runs for size in range(first, last + 1))
    assert all(one[2] != other[2] for one, other in pairwise(runs))


@given(first=st.integers(1, 5000), count=st.integers(0, 5000), name=st.sampled_from(sorted(RULES)))
def test_padded_runs_are_the_padding_of_every_size(first: int, count: int, name: str):
    how = rule(name)
    if how.kind == "padded":
        found = [
            (size, key) for one, last, key in how.padded_runs(first, first + count) for size in range(one, last + 1)
        ]
        assert found == [(size, how.padded(size)) for size in range(first, first + count + 1)]


@pytest.mark.parametrize(
    ("size", "level", "wide", "padded"),
    [(17, 0, 1, 32), (257, 0, 1, 288), (1025, 0, 1, 1088), (4097, 0, 1, 4224), (9000, 1, 8192, 8192),
     (9000, 1, 4096, 16384), (8192, 1, 8192, 8192), (300, 1, 1, 512), (256, 0, 1, 256), (1, 0, 1, 16)],
)  # fmt: skip
def test_aiters_paddings(size: int, level: int, wide: int, padded: int):
    assert RULES["aiter-gemm"].padded(size, level, wide) == padded


@pytest.mark.parametrize(
    ("tokens", "padded"),
    [(1, 1), (5, 8), (32767, 32768), (32768, 32768), (131071, 32768), (131072, 131072), (10**6, 131072)],
)
def test_aiters_fmoe_pads_tokens_to_powers_of_two_and_two_tiers(tokens: int, padded: int):
    assert RULES["aiter-fmoe"].sought(tokens) == [padded]


@given(size=st.integers(1, 16384))
def test_tuned_buckets_are_the_ones_asked_for_and_hold_the_size(size: int):
    hybrid = RULES["flashinfer-hybrid"]
    buckets = sorted(
        {hybrid.padded(n) for n in (2**i for i in range(15))} | set(range(256, 2049, 256)) | set(range(2048, 4097, 512))
    )
    ladder = Ladder(hybrid, buckets)
    bucket = key(ladder, size)
    assert bucket is not None
    assert bucket >= size
    assert bucket == key(ladder, bucket), "what is tuned for a bucket is found for a call of it"


def test_a_bucket_is_never_below_the_size():
    ladder = Ladder(RULES["ceil"], [16, 32])
    assert [key(ladder, m) for m in (16, 17, 24, 32, 33)] == [16, 32, 32, 32, None]
    assert key(Ladder(RULES["pow2"], [2**i for i in range(14)]), 1537) == 2048


def test_a_table_without_small_sizes_says_how_far_its_row_is():
    keys = [96, 128, 256, 512, 1024]
    stock = Ladder(RULES["nearest-stock"], keys).explain(1)
    assert str(stock) == "M=1 → nearest-stock: key 96, distance 95, below the smallest key: extrapolated"
    ours = Ladder(RULES["nearest"], keys).explain(1)
    assert ours.hit is None
    assert "further than a factor of 2, below the smallest key (96…1024)" in str(ours)
    assert str(Ladder(RULES["aiter-gemm"], [512]).explain(300)) == (
        "M=300 → aiter-gemm: key 512, distance 212 (300 is padded to 512), below the smallest key: extrapolated"
    )
    assert "304 is padded" not in str(Ladder(RULES["aiter-gemm"], [64]).explain(300))
    assert "300 and 320 and 512 are not there" in str(Ladder(RULES["aiter-gemm"], [64]).explain(300))
    assert "without rows" in str(Ladder(RULES["nearest"], []).explain(3))


def test_the_order_of_a_file_decides_ties_for_the_stock_reader_alone():
    file = [3840, 1792, 3584, 512, 3072, 2048, 2816, 1280, 768, 4096, 3328, 2560, 1024, 2304, 1536, 256]
    stock, ours = Ladder(RULES["nearest-stock"], file), Ladder(RULES["nearest"], file)
    assert [key(stock, m) for m in (384, 1152, 1664, 2432)] == [512, 1280, 1792, 2560]
    assert [key(ours, m) for m in (384, 1152, 1664, 2432)] == [256, 1024, 1536, 2304]
    assert [key(Ladder(RULES["nearest-stock"], sorted(file)), m) for m in (384, 1152)] == [256, 1024]


def test_fmoe_rows_that_nothing_reads_and_sizes_that_find_none():
    ladder = Ladder(RULES["aiter-fmoe"], [32, 64, 96, 128, 192, 384])
    assert ladder.unread() == {96: 128, 192: 256, 384: 512}
    assert ladder.uncovered(600) == [(1, 16), (129, 600)]
    assert never_read(RULES["aiter-fmoe"], [96, 192, 256, 768]) == {96: 128, 192: 256, 768: 1024}


def test_gemm_rows_serve_their_padded_sizes():
    ladder = Ladder(RULES["aiter-gemm"], [1, 7, 16, 40, 48, 300, 320, 512], wide=4096)
    served = {k: [(a, b) for a, b, found in ladder.runs(600) if found == k] for k in ladder.keys}
    assert served == {
        1: [(1, 1)], 7: [(7, 7)], 16: [(2, 6), (8, 16)], 40: [(40, 40)], 48: [(33, 39), (41, 48)], 300: [(300, 300)],
        320: [(289, 299), (301, 320)], 512: [(257, 288), (321, 512)],
    }  # fmt: skip
    assert ladder.uncovered(600) == [(17, 32), (49, 256), (513, 600)]
    assert ladder.unread() == {}
    assert ladder.sizes_of(16, 600) == [2, 6, 8, 16], "a row must be right where it is read, not at its key alone"


def test_a_rule_is_data_that_users_can_make():
    mine = Rule("mine", "padded", ((Step(100, 10), Step(None, 1000, fixed=True)),), itself=False)
    assert [mine.sought(size) for size in (1, 95, 101)] == [[10], [100], [1000]]
    assert list(mine.padded_runs(85, 10**6)) == [(85, 90, 90), (91, 100, 100), (101, 10**6, 1000)]
    assert list(Ladder(mine, [100, 1000]).runs(2**40)) == [(1, 90, None), (91, 100, 100), (101, 2**40, 1000)]
    with pytest.raises(BadInput, match="nearest-stock"):
        rule("nearst")


# --- guards ----------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(ends=st.lists(st.integers(1, 300), min_size=1, max_size=12, unique=True), data=st.data())
def test_guards_make_the_nearest_key_decide_as_wanted_for_every_size(ends: list[int], data: st.DataObject):
    ends = sorted(ends)
    wanted = [
        (first, last, i % 3) for i, (first, last) in enumerate(zip([1, *[e + 1 for e in ends]], ends, strict=False))
    ]
    rows = guards.guarded(wanted, prefer=data.draw(st.lists(st.integers(1, 300), max_size=5)))
    assert list(rows) == sorted(rows)
    ladder = Ladder(RULES["nearest-stock"], rows)
    for first, last, decision in wanted:
        assert all(rows[key(ladder, size) or 0] == decision for size in range(first, last + 1))
    assert len(rows) <= 2 * len(wanted)


def test_guards_of_a_table_as_maintainers_write_it_by_hand():
    """Rows at 1, 63, 64, 65, 256, 257, … are ranges: the same ranges need fewer keys."""
    by_hand = {1: "a", 63: "a", 64: "b", 65: "c", 256: "c", 257: "d", 4096: "d", 8191: "d", 8192: "e", 16384: "e"}
    stock = Ladder(RULES["nearest-stock"], by_hand)
    wanted = guards.ranges(lambda m: by_hand[key(stock, m) or 0], 20_000)
    assert wanted == [(1, 63, "a"), (64, 64, "b"), (65, 256, "c"), (257, 8191, "d"), (8192, 20_000, "e")]
    rows = guards.guarded(wanted, prefer=by_hand)
    ours = Ladder(RULES["nearest-stock"], rows)
    assert all(rows[key(ours, m) or 0] == by_hand[key(stock, m) or 0] for m in range(1, 20_001))
    assert len(rows) < len(by_hand)


def test_tuned_sizes_do_not_pull_their_neighbours_along():
    tuned, default = {1: "A", 64: "B"}, "default"
    wanted = guards.ranges(lambda m: tuned.get(m, default), 8192)
    rows = guards.guarded(wanted, prefer=tuned)
    ladder = Ladder(RULES["nearest-stock"], rows)
    assert all(rows[key(ladder, m) or 0] == tuned.get(m, default) for m in range(1, 8193))


def test_a_gain_below_the_margin_keeps_the_default_in_its_row():
    rows = guards.admitted({256: "new", 512: "new"}, {256: 0.008, 512: 0.277}, lambda m: f"heuristic {m}", 0.01)
    assert rows == {256: "heuristic 256", 512: "new"}
    with pytest.raises(BadInput, match="follow each other"):
        guards.guarded([(1, 5, "a"), (7, 9, "b")])


# --- versions ---------------------------------------------------------------------------------------


def test_versions_are_compared_as_numbers_and_a_fallback_says_so():
    there = ["3.2.0", "3.10.0", "3.5.1"]
    assert versions.choose("3.5.1", there) == versions.Found("3.5.1")
    lower = versions.choose("3.6.0", there)
    assert lower.version == "3.5.1"
    assert "made for Triton 3.5.1, running 3.6.0" in lower.note
    assert versions.choose("3.6.0+git12", ["3.6.0"]) == versions.Found("3.6.0")
    assert versions.choose("3.1.0", there).version is None
    assert "there are: 3.2.0, 3.5.1, 3.10.0" in versions.choose("3.1.0", there).note


def test_an_older_table_is_used_with_a_note_and_not_at_all_where_asked():
    assert versions.choose("3.2.0", ["3.1.0"]).version == "3.1.0"
    assert "stale" in versions.choose("3.2.0", ["3.1.0"]).note
    assert versions.choose("3.2.0", ["3.1.0"], "strict").version is None


def test_what_other_readers_fall_back_to():
    there = ["3.3.1", "3.5.1", "3.10.0"]
    assert versions.choose("3.8.0", there, "newest").version == "3.10.0"
    assert versions.choose("3.8.0", there, "text").version == "3.5.1"


@pytest.mark.parametrize("version", ["3.7.0rc1", "3.6.0+git1234", "3.6", "x"])
def test_no_folder_is_named_that_ends_a_reader(version: str):
    assert versions.folder("3.10.0") == "triton_3_10_0"
    with pytest.raises(BadInput, match="three numbers"):
        versions.folder(version)


# --- devices ----------------------------------------------------------------------------------------

SHIPPED = ["NVIDIA_H200", "NVIDIA_H20", "NVIDIA_H20-3e", "NVIDIA_H100_80GB_HBM3", "NVIDIA_H100_PCIe",
           "NVIDIA_GH200_480GB", "NVIDIA_B200", "NVIDIA_GB200"]  # fmt: skip


@pytest.mark.parametrize(
    ("reported", "vllm", "sglang"),
    [("NVIDIA H200", "NVIDIA_H200", "NVIDIA_H200"), ("NVIDIA H200 NVL", "NVIDIA_H200", "NVIDIA_H200_NVL"),
     ("NVIDIA H20", "NVIDIA_H20", "NVIDIA_H20"), ("NVIDIA H20-3e", "NVIDIA_H20-3e", "NVIDIA_H20-3e"),
     ("NVIDIA GH200 480GB", "NVIDIA_GH200_480GB", "NVIDIA_GH200_480GB"),
     ("AMD Radeon / Pro", "AMD_Radeon_Pro", "AMD_Radeon_/_Pro")],
)  # fmt: skip
def test_each_engines_own_spelling(reported: str, vllm: str, sglang: str):
    assert devices.vllm_moe(reported) == vllm
    assert devices.sglang(reported) == sglang
    assert devices.vllm_lora("NVIDIA H20-3e") == "NVIDIA_H20_3e"
    assert devices.helion("NVIDIA H100 80GB HBM3") == "nvidia_h100"


@pytest.mark.parametrize("name", SHIPPED)
def test_an_exact_name_always_wins(name: str):
    assert devices.match(name.replace("_", " "), SHIPPED) == devices.Match(name)


@pytest.mark.parametrize(
    ("reported", "name", "said"),
    [
        ("NVIDIA H200 NVL", "NVIDIA_H200", "no table of its own"), ("nvidia h200", "NVIDIA_H200", "spelled"),
        ("NVIDIA H200 MIG 1g.18gb", None, "slice"), ("NVIDIA H100 NVL", None, "no table for"),
        ("NVIDIA H100", None, "NVIDIA_H100_80GB_HBM3 or NVIDIA_H100_PCIe: not guessed"),
        ("NVIDIA H2000", None, "no table for"), ("Tesla T4", None, "no table for 'Tesla T4' (there are: NVIDIA_H200"),
    ],
)  # fmt: skip
def test_other_names_fall_to_the_same_chip_with_a_note_or_to_none(reported: str, name: str | None, said: str):
    found = devices.match(reported, SHIPPED)
    assert found.name == name
    assert said in found.note


def test_two_chips_never_share_a_table():
    for device in SHIPPED:
        others = [name for name in SHIPPED if name != device]
        assert devices.match(device.replace("_", " "), others).name is None
    assert devices.match("NVIDIA H200", ["NVIDIA_H200_NVL"]).name is None
    assert devices.match("AMD Instinct MI350X", ["AMD_Instinct_MI350_OAM"]).name == "AMD_Instinct_MI350_OAM"
    assert devices.match("AMD Instinct MI355X", ["AMD_Instinct_MI350_OAM"]).name is None
