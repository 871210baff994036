"""What one rank does with what is committed, in one process with a store of its own: refusals, tracks, scopes."""

from __future__ import annotations

import json
import threading
import time
import warnings
from typing import Any

import pytest
from tests.fakes import ScriptedClock

import tunesmith
from tunesmith import Config, Space, TunedKernel, autotune, plan, ranks
from tunesmith.core.outcome import Choice, choice_to_data
from tunesmith.errors import BadInput, NoAgreement, NoWorkingConfig
from tunesmith.ranks import agreement, board

torch = pytest.importorskip("torch", reason="ranks are those of torch.distributed")


class Loud:
    """A store that tells of every value, so that a test can look at it and put something in its way."""

    def __init__(self) -> None:
        self.inner = torch.distributed.HashStore()
        self.instead: str | None = None

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.instead is not None and key.endswith("choice"):
            desired, self.instead = self.instead, None
        return self.inner.compare_set(key, expected, desired)

    def check(self, keys: list[str]) -> bool:
        return self.inner.check(keys)

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def set(self, key: str, value: str) -> None:
        self.inner.set(key, value)

    def add(self, key: str, amount: int) -> int:
        return self.inner.add(key, amount)


def rank(*order: int, space: Space | None = None, body: Any = None, version: str = "1") -> TunedKernel:
    """A rank's own kernel, which finds the Configs in this order: the first is the fastest."""

    def times(config: Config) -> float:
        return 1.0 + order.index(config["c"])  # type: ignore[arg-type]

    def f(x, n, *, c):
        return c

    return autotune(space=space or Space(c=[1, 2, 3]), key=["n"], clock=ScriptedClock(times), version=version)(
        body or f
    )


@pytest.fixture
def separate(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Makes what follows work with another store of results, as a rank on another machine does."""
    from tunesmith.options import options

    def work_in(name: str) -> None:
        monkeypatch.setenv("TUNESMITH_CACHE_DIR", str(tmp_path / name))
        options.cache_clear()

    return work_in


def test_the_first_committed_choice_is_every_ranks_and_goes_to_its_store(separate: Any) -> None:
    store = torch.distributed.HashStore()
    separate("one")
    with ranks.agree("tp", store=store):
        assert rank(2, 1, 3)([1.0], 5) == 2
    separate("two")
    f = rank(3, 1, 2)
    f.tune([1.0], 5)
    assert f.lookup([1.0], 5).config == Config(c=3)  # type: ignore[union-attr]
    with ranks.agree("tp", store=store):
        assert f([1.0], 5) == 2
        assert f.explanation([1.0], 5)[1].source.endswith("of group tp")
    assert f.lookup([1.0], 5).config == Config(c=2)  # type: ignore[union-attr]
    separate("three")
    with ranks.agree("dp", store=store):  # another group agrees on its own
        assert rank(3, 1, 2)([1.0], 5) == 3


def test_a_scope_opened_again_finds_its_calls_warm_and_asks_no_store() -> None:
    store, f = torch.distributed.HashStore(), rank(2, 1, 3)
    for _ in range(2):
        with ranks.agree("tp", store=store):
            f([1.0], 5)
    keys = store.num_keys()
    with ranks.agree("tp", store=store):
        f([1.0], 5)
    assert f._dispatcher.warm_entries == 1
    assert store.num_keys() == keys


def test_a_config_of_another_space_is_refused_by_name(separate: Any) -> None:
    store = torch.distributed.HashStore()
    with ranks.agree("tp", store=store):
        rank(3, 2, 1)([1.0], 5)
    separate("two")
    smaller = rank(1, 2, space=Space(c=[1, 2]))
    with ranks.agree("tp", store=store), pytest.raises(NoAgreement, match=r"'tp' use Config\(c=3\).*Space refuses"):
        smaller([1.0], 5)


@pytest.mark.parametrize("text", ["garbage", "[]", "{}", '{"by": "rank 1", "choice": {"config": {"c": 1}}}'])
def test_what_is_no_choice_is_an_error_and_is_not_executed(text: str) -> None:
    store = Loud()
    store.instead = text
    with ranks.agree("tp", store=store), pytest.raises(NoAgreement, match="is not a Choice"):
        rank(1, 2, 3)([1.0], 5)


def test_when_nothing_works_on_the_searching_rank_all_are_told(separate: Any) -> None:
    def f(x, n, *, c):
        raise RuntimeError("no such luck")

    store = torch.distributed.HashStore()
    with ranks.agree("tp", store=store), pytest.raises(NoWorkingConfig, match="none of 3"):
        rank(1, 2, 3, body=f)([1.0], 5)
    separate("two")
    with (
        ranks.agree("tp", store=store),
        pytest.raises(NoWorkingConfig, match=r"(?s)searched for group 'tp'.*none of 3"),
    ):
        rank(1, 2, 3)([1.0], 5)


def test_a_lookups_default_does_not_settle_what_a_search_finds() -> None:
    store, f = torch.distributed.HashStore(), rank(3, 2, 1)
    with ranks.agree("tp", store=store):
        with tunesmith.policy("lookup"):
            assert f([1.0], 5) == 1
        assert f([1.0], 5) == 3
        with tunesmith.policy("lookup"):
            assert f([1.0], 5) == 1  # committed: no rank changes its Config in the middle of a job
        with tunesmith.policy("default"):
            assert f([1.0], 5) == 1


def test_a_kernel_that_calls_a_kernel_waits_for_nobody_while_it_is_measured() -> None:
    store = torch.distributed.HashStore()
    inner = rank(2, 1, 3, version="inner")

    def body(x, n, *, c):
        return inner(x, n), c

    with ranks.agree("tp", store=store):
        assert rank(3, 2, 1, body=body)([1.0], 5) == (2, 3)


def test_the_same_group_twice_does_not_wait_for_itself() -> None:
    store, kernel = Loud(), rank(2, 1, 3)
    with (
        ranks.agree("tp", store=store, timeout_s=10),
        ranks.agree("tp", store=store, timeout_s=10, strict=True),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")  # of a default that serves, as nobody answered
        assert kernel.choice(0.0, 1).config == Config(c=2)


class SettledMeanwhile(Loud):
    """A rank that finds the searcher's result in a store that they share commits it before the searcher does."""

    def set(self, key: str, value: str) -> None:
        super().set(key, value)
        if key.endswith("proposal/0"):
            found = choice_to_data(Choice(Config(c=3), "search", "search"))
            text = json.dumps({"by": "another", "choice": found})
            self.inner.compare_set(key.replace("proposal/0", "choice"), "", text)


def test_who_searches_waits_for_no_answer_when_a_choice_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "TRY_S", 600.0)
    store, kernel = SettledMeanwhile(), rank(2, 1, 3)
    store.add(f"tunesmith/1/tp/search/{kernel.key(0.0, 1).digest}/waiting", 1)  # one who will not answer any more
    with ranks.agree("tp", store=store):
        assert kernel.choice(0.0, 1).config == Config(c=3)


def test_a_plan_has_the_groups_choices_and_a_replay_goes_before_them(separate: Any) -> None:
    store = torch.distributed.HashStore()
    with ranks.agree("tp", store=store):
        rank(2, 1, 3)([1.0], 5)
    separate("two")
    f = rank(3, 2, 1)
    with ranks.agree("tp", store=store), plan.record() as noted:
        f([1.0], 5)
    with plan.record() as outside, ranks.agree("tp", store=store):
        f([1.0], 5)
    assert [*noted.plan.choices.values(), *outside.plan.choices.values()] == [Config(c=2)] * 2
    other = plan.Plan(dict.fromkeys(noted.plan.choices, Config(c=1)))
    with ranks.agree("tp", store=torch.distributed.HashStore()), plan.replay(other):
        assert f([1.0], 5) == 1


def test_threads_of_a_rank_share_one_search_and_a_failed_search_frees_the_others() -> None:
    store, raised = torch.distributed.HashStore(), threading.Event()

    def times(config: Config) -> float:
        if not raised.is_set():
            raised.set()
            raise KeyboardInterrupt
        return 1.0 + config["c"]  # type: ignore[operator]

    clock = ScriptedClock(times)
    f = autotune(space=Space(c=[1, 2, 3]), key=["n"], clock=clock, version="1")(lambda x, n, *, c: c)
    results: list[Any] = []

    def work() -> None:
        with ranks.agree("tp", store=store):
            try:
                results.append(f([1.0], 5))
            except KeyboardInterrupt:
                results.append("interrupted")

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results, key=str) == [1, 1, 1, "interrupted"]
    assert time.monotonic() - start < board.LEASE_S  # given back, not expired


def test_without_a_process_group_the_error_says_what_to_call() -> None:
    f = rank(1, 2, 3)
    with ranks.agree("tp"), pytest.raises(NoAgreement, match="call init_process_group before"):
        f([1.0], 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert f([1.0], 5) == 1


def test_bad_arguments_are_refused() -> None:
    for bad, why in (
        ({"group": ""}, "needs a name"), ({"timeout_s": -1.0}, "good values: seconds"), ({"store": {}}, "has no"),
        ({"store": 5}, "has no compare_set"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=why), ranks.agree(**bad):  # type: ignore[arg-type]
            pass


def test_t22_where_noise_decides_who_is_first_all_ranks_use_one_that_is_as_good(separate: Any) -> None:
    def takes(c: int) -> float:
        return 1 + 3e-4 * c if c < 28 else 1.1 + 1e-3 * c  # 28 of 920 are within the noise of the best

    def of_rank(seed: int) -> TunedKernel:
        def f(x, n, *, c):
            return c

        clock = ScriptedClock(lambda config: takes(config["c"]), noise=0.01, seed=seed)  # type: ignore[arg-type]
        space = Space(c=[(400 * i) % 919 if i < 919 else 919 for i in range(920)])  # the best are not the first
        return autotune(space=space, key=["n"], clock=clock, version="1", strategy="exhaustive", pick="fastest")(f)

    alone, used, store = list[int](), list[list[int]](), torch.distributed.HashStore()
    for seed in range(2):
        separate(f"alone{seed}")
        alone.append(of_rank(seed)([1.0], 1))
    for seed in range(4):
        separate(f"rank{seed}")
        with ranks.agree("tp", store=store):
            used.append([of_rank(seed)([1.0], n) for n in range(3)])

    assert len(set(alone)) > 1  # each on its own uses another
    assert used[1:] == [used[0]] * 3
    assert all(takes(c) < 1.01 * takes(0) for c in used[0])
