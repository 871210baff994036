"""A fingerprint changes with what a function does and reads, and with nothing else."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.core.pycode import normalised
from tunesmith.errors import BadInput, FingerprintError
from tunesmith.fingerprint import of_function, versions

Load = Callable[..., ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Makes a module of a text; the same name again makes it anew, as another process would see it."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(text: str, name: str = "kernels_of_mine") -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        linecache.clearcache()
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        source = path.read_text()
        exec(compile(source, str(path), "exec"), module.__dict__)  # not the cached bytecode of the text before
        return module

    return make


BASE = """
    import helpers
    from dataclasses import dataclass

    SCALE = 2
    TABLE = {"a": [1, 2.5], "b": {3, 4}}

    @dataclass(frozen=True)
    class Tile:
        m: int
        n: int = 8

        def area(self):
            return self.m * self.n * SCALE

    TILE = Tile(4)

    def outer(x, bias=1, *, unroll=4):
        return helper(x) + bias + TABLE["a"][0] + TILE.area() + helpers.scale(x)

    def helper(x):
        return inner(x) * SCALE

    def inner(x):
        return outer if x < 0 else x
"""
HELPERS = """
    FACTOR = 3
    UNUSED = 1

    def scale(x):
        return x * FACTOR

    def unused(x):
        return x
"""


def fingerprint(load: Load, base: str = BASE, helpers: str = HELPERS) -> str:
    load(helpers, "helpers")
    return of_function(load(base).outer)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("+ bias +", "- bias +"),  # its own source
        ("bias=1", "bias=2"),  # a default
        ("unroll=4", "unroll=5"),  # a keyword's default
        ("SCALE = 2", "SCALE = 2.0"),  # a global that a helper reads
        ("return inner(x) *", "return inner(x) +"),  # a helper
        ("x < 0", "x <= 0"),  # a helper's helper, in a cycle
        ("[1, 2.5]", "[1, 2.25]"),  # deep in a global
        ("{3, 4}", "{3, 5}"),
        ("Tile(4)", "Tile(5)"),  # a dataclass's value
        ("n: int = 8", "n: int = 9"),
        ("self.m * self.n", "self.m + self.n"),  # a method
    ],
)
def test_what_a_kernel_does_or_reads_changes_it(load: Load, old: str, new: str) -> None:
    assert old in BASE
    assert fingerprint(load) != fingerprint(load, BASE.replace(old, new))


def test_a_function_and_a_constant_of_a_module_of_ours_change_it(load: Load) -> None:
    before = fingerprint(load)
    assert fingerprint(load, helpers=HELPERS.replace("FACTOR = 3", "FACTOR = 4")) != before
    assert fingerprint(load, helpers=HELPERS.replace("x * FACTOR", "FACTOR * x")) != before


def test_what_it_does_not_read_changes_nothing(load: Load) -> None:
    before = fingerprint(load)
    moved = BASE.replace("SCALE = 2", "# moved\n\n    OTHER = 7\n    SCALE = 2  # why").replace(
        "return helper(x) + bias", "# more\n\n        return helper(x) + bias"
    )
    commented = moved.replace("def helper(x):", 'def helper(x):\n        """Doc."""\n')
    assert fingerprint(load, commented) == before
    assert (
        fingerprint(load, helpers=HELPERS.replace("UNUSED = 1", "UNUSED = 2").replace("return x\n", "return 0\n"))
        == before
    )
    assert of_function(load(BASE, "elsewhere").outer) == before


def test_decorators_are_cut_for_they_hold_the_space(load: Load) -> None:
    text = """
        def tuned(**space):
            return lambda fn: fn
        @tuned(BLOCK=[{blocks}],
               key=lambda n: n)
        def f(x):
            return x
    """
    a, b = (of_function(load(text.format(blocks=blocks)).f) for blocks in ("64", "64, 128"))
    assert a == b


def test_each_size_that_a_factory_closes_over_is_another_kernel() -> None:
    def make(M: int) -> Callable[[int], int]:
        def kernel(x: int) -> int:
            return x * M

        return kernel

    assert of_function(make(64)) != of_function(make(4096))
    assert of_function(make(64)) == of_function(make(64))


def test_a_nested_functions_own_variables_are_not_read_from_outside() -> None:
    def outer(x: int) -> int:
        hidden = x

        def inner() -> int:
            class Local:
                value = hidden

            return Local.value

        return inner()

    hidden = object()  # of the same name, and never read
    assert hidden is not None
    assert of_function(outer)


def test_a_lambda_goes_by_its_expression(load: Load) -> None:
    a = load("f = dict(\n    work=lambda n, m: -(-n  //  m),  # units\n    m=lambda q: q)")
    b = load("\n\nf = dict(work=(lambda n, m:\n    # units\n    -(-n // m)))")
    c = load("f = dict(work=lambda n, m: n // m)")
    assert of_function(a.f["work"]) == of_function(b.f["work"]) != of_function(c.f["work"])


def test_lambdas_that_look_alike_and_functions_without_source_go_by_their_code() -> None:
    a, b = (lambda x: x + 1), (lambda x: x + 2)
    assert of_function(a) != of_function(b)
    made: list[Any] = []
    for constant in (1, 1, 2):
        space: dict[str, Any] = {"K": constant}
        exec("def f(x):\n    return x in {'a', 'b', 'c'} and (lambda y: y + K)(x)", space)
        made.append(of_function(space["f"]))
    assert made[0] == made[1] != made[2]


def test_it_is_the_same_in_another_process(load: Load, tmp_path: Path) -> None:
    before = fingerprint(load)
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import kernels_of_mine
from tunesmith.fingerprint import of_function
print(of_function(kernels_of_mine.outer))
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {before}


class Stateful:
    def __init__(self) -> None:
        self.calls = 0


STATE = Stateful()
SPACE = {"inner": [1, STATE]}


def reads_state(x: int) -> int:
    return x + STATE.calls


def reads_deep_state(x: int) -> Any:
    return SPACE["inner"]


def calls_state(x: int) -> int:
    return reads_state(x)


def reads_nothing_that_exists(x: int) -> int:
    return x + absent  # type: ignore[name-defined]  # noqa: F821


def test_what_cannot_be_identified_raises_and_says_what_to_do() -> None:
    for function, message in [
        (reads_state, r"kernel 'reads_state' reads 'STATE', which is of type test_fingerprint\.Stateful: .* version="),
        (calls_state, "kernel 'reads_state' reads 'STATE'"),
        (reads_deep_state, r"reads \"SPACE\['inner'\]\[1\]\""),
        (reads_nothing_that_exists, "reads 'absent', which is not defined"),
        (lambda x, state=STATE: x, r"'<lambda>' reads '__defaults__\[0\]'"),
        (STATE.__init__, r"'__init__' reads '__self__'"),
    ]:
        with pytest.raises(FingerprintError, match=message):
            of_function(function)
        assert of_function(function, version="1") != of_function(function, version="2")
    with pytest.raises(BadInput, match="version=''"):
        of_function(reads_state, version="")


def test_libraries_are_named_and_not_entered() -> None:
    np = pytest.importorskip("numpy")

    def sines(x: Any) -> Any:
        return math.sin(x) + np.linalg.norm(x) + textwrap.dedent("x").count("x")

    def cosines(x: Any) -> Any:
        return math.cos(x) + np.linalg.norm(x) + textwrap.dedent("x").count("x")

    cosines.__name__ = "sines"
    assert of_function(sines) != of_function(cosines)
    assert of_function(np.add) != of_function(np.subtract)
    assert of_function(math.sin) != of_function(math.cos)
    assert of_function(functools.partial(sines, 1)) != of_function(functools.partial(sines, 2))


def test_arrays_and_dtypes_go_by_content() -> None:
    np = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")

    def reading(value: Any) -> str:
        return of_function(lambda: value)

    for a, b in [
        (np.arange(4), np.arange(1, 5)),
        (np.arange(4), np.arange(4).reshape(2, 2)),
        (np.arange(4), np.arange(4.0)),
        (np.float32(1), np.float64(1)),
        (np.dtype("float32"), np.dtype("float64")),
        (np.float32, np.float64),
        (torch.float32, torch.bfloat16),
        (torch.device("cpu"), torch.device("meta")),
        (SimpleNamespace(a=1), SimpleNamespace(a=2)),
    ]:
        assert reading(a) != reading(b)
        assert reading(a) == reading(a)
    with pytest.raises(FingerprintError, match=r"reads 'value', which is of type torch\.Tensor"):
        reading(torch.zeros(3))


@pytest.mark.parametrize("module", ["os", "sys", "zipimport", "json"])
def test_an_import_of_pythons_own_inside_a_function_reads_no_file(load: Load, module: str) -> None:
    mine = load(f"def kernel(x):\n    import {module}\n    return {module}.__name__\n")
    assert of_function(mine.kernel) == of_function(mine.kernel)  # some of them are frozen: they have no file


def test_an_import_inside_a_function_is_followed_without_importing_it(load: Load, tmp_path: Path) -> None:
    text = "def f(x):\n    import {module}\n    return {module}.go(x)\n"

    def of(module: str, content: str) -> str:
        (tmp_path / f"{module}.py").write_text(content)
        return of_function(load(text.format(module=module)).f)

    first = of("mine_alone", "def go(x): return x\n")
    assert of("mine_alone", "def go(x): return x + 1\n") != first
    assert "mine_alone" not in sys.modules


def test_jitted_and_tuned_kernels_within_a_kernel_are_followed() -> None:
    class Jitted:
        def __init__(self, fn: Any) -> None:
            self.fn = fn

        def run(self) -> None: ...

    def make(helper: Any) -> Any:
        return lambda x: helper(x)

    a, b = (of_function(make(Jitted(fn))) for fn in (lambda x: x, lambda x: -x))
    assert a != b
    cached = [of_function(make(functools.lru_cache(fn))) for fn in (lambda x: x, lambda x: -x)]
    assert cached[0] != cached[1]


def test_a_container_that_holds_itself_ends() -> None:
    around: list[Any] = [1]
    around.append(around)
    assert of_function(lambda: around)


def test_versions() -> None:
    assert versions() == {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    assert versions(["pytest"])["pytest"] == pytest.__version__
    with pytest.raises(BadInput, match="'no-such-package', which is not installed"):
        versions(["no-such-package"])


# --- properties ---

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(VALUES, VALUES)
def test_two_values_share_a_fingerprint_exactly_when_they_are_spelled_alike(a: Any, b: Any) -> None:
    def reading(value: Any) -> str:
        return of_function(lambda: value)

    assert (reading(a) == reading(b)) == (repr(a) == repr(b))


LINES = [
    "def f(x):",
    "    text = '''a",
    "  # not a comment",
    "",
    "b'''",
    "    if x:",
    "        x = text  # why",
    "    return x",
]


@given(
    st.dictionaries(
        st.sampled_from([1, 5, 6, 7]), st.sampled_from(["", "  ", "# c", "            # c", "\t"]), max_size=4
    )
)
def test_comments_and_blank_lines_anywhere_between_statements_do_not_count(added: dict[int, str]) -> None:
    lines = [text for i, line in enumerate(LINES) for text in (*([added[i]] if i in added else []), line)]
    plain = normalised("\n".join(LINES) + "\n", "f")
    assert normalised("\n".join(lines) + "\n", "f") == plain
    assert plain is not None
    assert "# not a comment\n\nb'''" in plain


@given(st.integers(1, 3))
def test_how_deep_a_definition_lies_does_not_count(depth: int) -> None:
    text = "@decorated\ndef f(x):\n    # c\n    return x\n"
    assert normalised(textwrap.indent(text, "    " * depth), "f") == "def f(x):\n    return x"
