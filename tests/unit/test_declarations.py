"""What a kernel's author may say, and what is refused when it is said; kernels as methods; inputs that are others."""

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes import ScriptedClock

import tunesmith
from tunesmith import Config, Problem, Rows, Sample, Space, Tiles, TunedKernel, autotune, fingerprint
from tunesmith.errors import BadInput, FingerprintError, ProblemError, SpaceError
from tunesmith.measure.inputs import Snapshot

X = np.ones(128, np.float32)


def by_c() -> ScriptedClock:
    return ScriptedClock(lambda config: 1.0 + config["c"])  # type: ignore[operator]


def body(x, n, *, c):
    return c


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"budget_s": -1.0}, "budget_s=-1.0; good values"),
        ({"budget_s": float("nan")}, "budget_s=nan; good values"),
        ({"strategy": "foo"}, "unknown strategy 'foo'.*auto, descent, evolution, exhaustive, random"),
        ({"default": {"c": 1}}, r"default=\{'c': 1\} is no Config"),
        ({"space": {"c": [1, 2]}}, "is no Space"),
        ({"default": Config(c=9)}, "'c' cannot be 9; good values: 1, 2"),
        ({"policy": "always"}, "known: default, lookup, search"),
        (
            {"model": Rows(columns="c")},
            r"Rows reads a knob 'ROWS', and the space has c: .*Rows\(rows='c'\).*Rows\(rows=1\)",
        ),
        ({"model": Tiles(n=1, k=1)}, r"Tiles reads a knob 'BLOCK_M', and the space has c"),
    ],
)
def test_what_makes_no_sense_is_refused_at_decoration(options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        autotune(**{"space": Space(c=[1, 2]), **options})(body)


def test_what_functions_of_the_author_make_is_checked() -> None:
    with pytest.raises(BadInput, match="expected a Space"):
        autotune(space=lambda problem, device: {"c": [1]}, knobs=["c"])(body)(X, 3)  # type: ignore[arg-type,return-value]
    f = autotune(space=Space(c=[1, 2]), default=lambda problem, device: {"c": 1}, policy="default")(body)  # type: ignore[arg-type,return-value]
    with pytest.raises(BadInput, match="expected a Config"):
        f(X, 3)
    with pytest.raises(BadInput, match="42 is no table"):
        f.use_table(42)  # type: ignore[arg-type]


def test_generators_and_coroutines_do_no_work_in_a_call() -> None:
    def generator(x, *, c):
        yield c

    async def coroutine(x, *, c):
        return c

    for kernel in (generator, coroutine):
        with pytest.raises(BadInput, match="generator or a coroutine"):
            autotune(space=Space(c=[1, 2]))(kernel)


def test_a_method_is_bound_to_its_object() -> None:
    class Layer:
        scale = 3

        @autotune(space=Space(c=[1, 2]), key=["n"], clock=by_c(), version="1")
        def forward(self, x, n, *, c):
            return self.scale * n + c

    assert Layer().forward(X, 5) == 16
    assert isinstance(Layer.forward, TunedKernel)


def test_a_built_kernel_never_serves_another_size_of_its_bucket() -> None:
    def build(problem, *, c):
        n = problem["n"]
        return lambda x, n_: float(x[:n].sum())

    kernel = tunesmith.built(build, signature_from=["x", "n"])
    f = autotune(space=Space(c=[1, 2]), key=["n"], buckets={"n": "pow2"}, clock=by_c())(kernel)

    assert [f(X, n) for n in (65, 100, 65, 128)] == [65.0, 100.0, 65.0, 128.0]


def test_another_way_of_bucketing_is_another_key() -> None:
    def digest(**options: Any) -> str:
        return autotune(space=Space(c=[1, 2]), version="1", **options)(body).explanation(X, 150)[0].digest

    hundreds = digest(key=["n"], buckets={"n": lambda n: n // 100})
    assert hundreds == digest(key=["n"], buckets={"n": lambda n: n // 100})
    assert hundreds != digest(key=["n"], buckets={"n": lambda n: 1 + n // 1000})
    assert digest(key=["n"], buckets={"n": "pow2"}) != digest(key=["n"], buckets={"n": [256]})
    assert digest(key=lambda n: {"n": 1}) != digest(key=lambda n: {"n": n // 150})


def test_inputs_for_another_problem_are_refused() -> None:
    def kernel(make_inputs: Any) -> TunedKernel:
        return autotune(space=Space(c=[1, 2]), key=["n"], make_inputs=make_inputs)(body)

    with pytest.raises(BadInput, match="n=3 was asked for, and make_inputs made n=4"):
        kernel(lambda problem: {"x": X, "n": problem["n"] + 1}).inputs("n=3")
    with pytest.raises(BadInput, match=r"missing (a|1) required"):
        kernel(lambda problem: {"x": X}).inputs("n=3")
    with pytest.raises(BadInput, match="unknown argument 'm'"):
        kernel(lambda problem: {"x": X, "n": 3, "m": 3}).inputs("n=3")


def test_absurd_numbers_and_constraints_that_fail_are_named() -> None:
    with pytest.raises(ProblemError, match="5000 digits"):
        Problem.parse("n=" + "9" * 5000)
    with pytest.raises(ProblemError, match="more than 100 digits"):
        Problem({"n": 10**5000})
    with pytest.raises(SpaceError, match=r"constraint 'quotient' fails for Config\(c=0\): ZeroDivisionError"):
        list(Space(c=[1, 0]).where(lambda c: 4 // c > 1, "quotient"))
    with pytest.raises(SpaceError, match="'a' fails for"):
        Space.of([{"A": 1}, {"B": 2}]).where(lambda A: A > 0, "a")
    with pytest.raises(SpaceError, match="needs integers"):
        tunesmith.integers(1.5, 3)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="surrogate"):
        Config(c="\ud800")
    assert Space(c=range(10**6)).cardinality == 10**6


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.float32(3), "read-only|not an array"),
        (np.broadcast_to(np.float32(1), (3,)), "read-only"),
        (3.5, "float, not an array"),
    ],
)
def test_an_array_that_cannot_be_put_back_is_named_before_anything_runs(array: Any, says: str) -> None:
    with pytest.raises(BadInput, match=f"argument 'x' .*({says})"):
        Snapshot({"x": array}, ["x"], [])


def test_a_parameter_of_torch_is_put_back_and_an_expanded_tensor_too() -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.ones(3, requires_grad=True)
    snapshot = Snapshot({"x": parameter}, ["x"], [])
    with torch.no_grad():
        parameter.add_(5)
    snapshot.put_back()

    assert parameter.tolist() == [1, 1, 1]
    one = torch.ones(1)
    snapshot = Snapshot({"x": one.expand(4)}, ["x"], [])
    one.fill_(5)
    snapshot.put_back()
    assert one.item() == 1


# --- what a fingerprint sees ------------------------------------------------------------------------------


def test_the_body_of_a_wrapper_counts() -> None:
    def wrapped(factor: str) -> str:
        scope: dict[str, Any] = {"functools": functools}
        source = f"""
def deco(fn):
    @functools.wraps(fn)
    def w(x, *, c):
        return fn(x, c=c * {factor})
    return w

@deco
def kern(x, *, c):
    return x
"""
        exec(compile(source, f"<{factor}>", "exec"), scope)
        return fingerprint.of_function(scope["kern"])

    assert wrapped("2") != wrapped("300")


def module(folder: Path, name: str, text: str) -> Any:
    (folder / f"{name}.py").write_text(text)
    sys.modules.pop(name, None)
    return __import__(name)


def test_modules_imported_inside_a_function_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "pk_for_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "kern.py").write_text(
        "def a(x):\n    from pk_for_test import inner\n    return inner.f(x)\n\n"
        "def b(x):\n    from .inner import f\n    return f(x)\n"
    )
    (package / "inner.py").write_text("def f(x):\n    return x\n")
    from pk_for_test import kern  # type: ignore[import-not-found]

    before = [fingerprint.of_function(kern.a), fingerprint.of_function(kern.b)]
    (package / "inner.py").write_text("def f(x):\n    return 2 * x\n")
    after = [fingerprint.of_function(kern.a), fingerprint.of_function(kern.b)]

    assert all(x != y for x, y in zip(before, after, strict=True))
    orphan: dict[str, Any] = {}
    exec("def c(x):\n    from .nowhere import f\n    return f(x)", orphan)
    with pytest.raises(FingerprintError, match="nowhere"):
        fingerprint.of_function(orphan["c"])


def test_a_file_edited_after_its_import_is_not_taken_for_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = module(tmp_path, "edited_for_test", "def f(x):\n    return x * 1\n")
    (tmp_path / "edited_for_test.py").write_text("def f(x):\n    return x * 2222\n")
    old = fingerprint.of_function(loaded.f)
    import importlib
    import linecache

    linecache.clearcache()
    importlib.invalidate_caches()
    new = module(tmp_path, "edited_for_test", "def f(x):\n    return x * 2222\n")

    assert old != fingerprint.of_function(new.f)


# --- nothing that was measured is lost --------------------------------------------------------------------


def test_a_process_that_dies_in_mid_race_keeps_what_was_timed(tmp_path: Path) -> None:
    from tests.fakes import fresh_process

    script = """
    import os
    launches = 0
    def body(x, *, c):
        global launches
        launches += 1
        if launches == 13:
            os._exit(7)
    clock = ScriptedClock(lambda config: 1.0 + config["c"] / 100)
    f = autotune(configs=[Config(c=i) for i in range(5)], clock=clock, version="dies")(body)
    print(len(f.explanation([1.0])[2]), flush=True)  # it will not end as processes do
    f([1.0])
    """
    first, second = (fresh_process(script, tmp_path) for _ in range(2))

    assert (first.returncode, first.stdout.strip()) == (7, "0"), first.stderr
    assert second.stdout.strip() == "5"


def test_failures_of_the_machine_are_tried_again() -> None:
    short = {2}

    def kernel(x, *, c):
        if c in short:
            raise MemoryError
        return c

    def tuned() -> TunedKernel:
        clock = ScriptedClock(lambda config: 9.0 - config["c"])  # type: ignore[operator]
        return autotune(configs=[Config(c=1), Config(c=2)], clock=clock, version="machine")(kernel)

    assert tuned()(X) == 1
    short.clear()
    assert tuned().tune(X).choice.config == Config(c=2)  # type: ignore[union-attr]


def test_a_sample_of_no_time_is_refused_not_believed() -> None:
    with pytest.raises(BadInput):
        Sample(0.0)
    with pytest.raises(SpaceError):
        Space(c=[])
