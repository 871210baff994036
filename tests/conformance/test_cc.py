"""The C backend: conformance, and what only C has: prototypes, flags, threads, memory safety, finding a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tunesmith import Config, Problem
from tunesmith.backends import c_compiler, cc, describe
from tunesmith.backends.call import CallExecutable
from tunesmith.conformance import KernelConformance, ready
from tunesmith.errors import BadInput, CompileFailed, MissingEngine, SpaceError, TunesmithWarning
from tunesmith.kernel import Kernel, Run, bound
from tunesmith.measure.clock import WallClock
from tunesmith.options import options

np = pytest.importorskip("numpy")

SOURCE = """
#include <stdint.h>
#ifndef STEP
#define STEP 4
#endif
#ifndef FUSED
#define FUSED 1
#endif
_Static_assert(STEP <= 16, "STEP must be at most 16");

void saxpy(const float *x, float *restrict y, float a, int64_t n, int64_t begin, int64_t end) {
    for (int64_t i = begin * STEP; i < end * STEP && i < n; i++) y[i] = FUSED ? a * x[i] + 1 : 1 + a * x[i];
}
"""


def saxpy(source: str = SOURCE) -> cc.CKernel:
    return cc.kernel(source, work=lambda n, STEP: -(-n // STEP), shapes={"x": ("n",), "y": ("n",)})


class TestCC(KernelConformance):
    def kernel(self) -> cc.CKernel:
        return saxpy()

    def changed(self) -> Kernel:
        return saxpy(SOURCE.replace("+ 1 :", "+ 2 :"))

    def commented(self) -> Kernel:
        return saxpy(SOURCE.replace("void saxpy", "/* one\n\n two */ // three\n\n   void saxpy"))

    def configs(self) -> list[Config]:
        levels = [Config(STEP=s, FUSED=f, threads=t) for s in (1, 8) for f in (True, False) for t in (1, 3)]
        return [*levels, Config(opt_level="O0", march="generic", unroll=True, fast_math=True, FUSED="0x1")]

    def bad_configs(self) -> list[tuple[Config, str]]:
        return [
            (Config(opt_level="O9"), "'O0', 'O1', 'O2', 'O3'"),
            (Config(march="-x c++"), "'native', 'generic'"),
            (Config(unroll=1), "True, False"),
            (Config(fast_math="yes"), "True, False"),
            (Config(threads=0), "integers from 1"),
            (Config(threads=True), "integers from 1"),
            (Config(STEP="4;system()"), "a C name or number"),
            (Config(STEP=None), "a C name or number"),
            (Config(STEP=(1, 2)), "a C name or number"),
        ]

    def failing(self) -> tuple[Kernel, Config, str]:
        return saxpy(), Config(STEP=32), "STEP must be at most 16"

    def args(self) -> list[Any]:
        return [np.arange(1001, dtype=np.float32), np.empty(1001, np.float32), 2.0, 1001]

    def check(self, args: list[Any], result: Any) -> None:
        assert result is None
        np.testing.assert_array_equal(args[1], 2 * args[0] + 1)


def launched(kernel: cc.CKernel, *args: Any, **knobs: object) -> None:
    ready(kernel, Config(knobs), []).launch(*args)


# --- prototypes ---


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("float **x", r"the C source:1: parameter `float \*\*x` of f is not supported; supported: pointers .* float"),
        ("float x[4]", r"`float x\[4\]`"),
        ("struct s *x", "`struct s"),
        ("unsigned n", "`unsigned n`.* scalars int, long"),
        ("int *x", "`int"),
        ("int n, ...", r"`\.\.\.`"),
        ("const float *x,\n  int64_t n,\n\n  half *y", "the C source:4: parameter `half"),
        ("int begin, int end", "takes `int begin`; good values: int64_t begin"),
        ("int64_t begin, int64_t end, int n", "begin elsewhere than at its end"),
        ("float *x, float *x", "two parameters of one name"),
    ],
)
def test_a_prototype_that_cannot_be_called_is_refused_with_its_line(parameters: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        cc.kernel(f"void f({parameters}) {{}}")


def test_the_entry_is_the_only_public_void_function() -> None:
    two = "void f(int n) {} static void g(int n) {} int h(void) { return 1; } void k(double a) { if (a) { } }"
    with pytest.raises(BadInput, match="defines f, k: say which with entry="):
        cc.kernel(two)
    assert str(cc.kernel(two, entry="k").prototype) == "void k(double a)"
    with pytest.raises(BadInput, match="unknown entry 'kk': did you mean 'k'"):
        cc.kernel(two, entry="kk")
    with pytest.raises(BadInput, match="h is of type int"):
        cc.kernel(two, entry="h")
    with pytest.raises(BadInput, match="g is static"):
        cc.kernel(two, entry="g")
    with pytest.raises(BadInput, match="defines no"):
        cc.kernel("int x;")


def test_comments_strings_macros_and_attributes_do_not_hide_a_prototype() -> None:
    source = r"""
    // void wrong(int n) {
    #define OPEN {  \
        void wrong(int n) {
    static const char *text = "void wrong(int n) {"; static char brace = '{';
    __attribute__((noinline))
    void right(float const *const a /* in, (M, K) */, const float *restrict b, // void c
               uint8_t *__restrict__ mask, _Bool *flag, size_t n, long m) { (void)text; }
    """
    assert str(cc.kernel(source).prototype) == (
        "void right(const float *a, const float *b, uint8_t *mask, _Bool *flag, size_t n, long m)"
    )


def test_a_declaration_that_names_what_is_not_there_is_refused() -> None:
    sliced = "#include <stdint.h>\nvoid f(float *x, int64_t n, int64_t begin, int64_t end) {}"
    with pytest.raises(BadInput, match="takes begin and end: say of what in work="):
        cc.kernel(sliced)
    with pytest.raises(BadInput, match=r"unknown name in a size 'm'.* known: n,"):
        cc.kernel(sliced, work="m")
    with pytest.raises(BadInput, match="unknown name in a size 'q'"):
        cc.kernel(sliced, work=lambda n, q: n // q)
    with pytest.raises(BadInput, match="unknown array argument 'y': known: x"):
        cc.kernel(sliced, work="n", shapes={"y": ("n",)})
    with pytest.raises(BadInput, match="work= needs a kernel that ends in"):
        cc.kernel("void f(int n) {}", work="n")
    with pytest.raises(BadInput, match=r"absent\.c can't be read"):
        cc.kernel(Path("absent.c"))


# --- arguments never reach memory that is not theirs ---


def test_a_wrong_argument_is_refused_by_name() -> None:
    x, y, n = np.ones(64, np.float32), np.ones(64, np.float32), 64
    launch = ready(saxpy(), Config(), []).launch
    frozen = y.copy()
    frozen.flags.writeable = False
    unaligned = np.zeros(64 * 4 + 1, np.uint8)[1:].view(np.float32)
    for args, message in [
        ((x, None, 2.0, n), r"'y' is None; expected a numpy array or torch CPU tensor of float32"),
        ((x, [1.0] * 64, 2.0, n), "'y' is of type list"),
        ((x, frozen, 2.0, n), "'y' is read-only"),
        ((x, unaligned, 2.0, n), "'y' lies at an address"),
        ((x, np.ones(128, np.float32)[::2], 2.0, n), "'y' of shape .* has strides .* expected C-contiguous"),
        ((x.astype(np.float64), y, 2.0, n), "'x' has dtype float64; expected float32"),
        ((x.astype(">f4"), y, 2.0, n), "'x' has dtype >f4; expected float32"),
        ((x[:63], y, 2.0, n), r"'x' has shape \(63,\); expected \(64,\), that is \(n\)"),
        ((x.reshape(8, 8), y, 2.0, n), r"'x' has shape \(8, 8\)"),
        ((x, y, 2.0, -1), "expected"),
        ((x, y, 2.0, 2**63), "'n' is 9223372036854775808; good values"),
        ((x, y, 2.0, 64.0), "'n' is of type float; expected an integer"),
        ((x, y, "2", n), "'a' is of type str; expected a number"),
        ((x, y, 10**400, n), "'a' is too large"),
        ((x, y, 2.0), r"takes 4 arguments \(x, y, a, n\), got 3"),
    ]:
        for _ in range(2):  # what passed once is known again by identity: neither time may it get past
            with pytest.raises(BadInput, match=message):
                launch(*args)
            launch(x, y, 2.0, n)
    launch(np.frombuffer(x.tobytes(), np.float32), y, np.float32(2), np.int32(n))  # read-only is fine for const
    assert (y == 3).all()


def test_narrow_integers_are_not_cut() -> None:
    kernel = cc.kernel(
        "#include <stdint.h>\n#include <stddef.h>\nvoid f(int32_t *y, int32_t a, size_t b) { y[0] = a; y[1] = b; }"
    )
    y = np.zeros(2, np.int32)
    launched(kernel, y, -5, 7)
    assert y.tolist() == [-5, 7]
    with pytest.raises(BadInput, match="'a' is 2147483648; good values: -2147483648 to 2147483647"):
        launched(kernel, y, 2**31, 7)
    with pytest.raises(BadInput, match="'b' is -1; good values: 0 to"):
        launched(kernel, y, 1, -1)


def test_empty_arrays_and_no_work_are_fine() -> None:
    empty = np.empty(0, np.float32)
    launched(saxpy(), empty, empty, 1.0, 0, threads=4)


def test_shapes_of_functions_and_knobs() -> None:
    kernel = cc.kernel(
        "#include <stdint.h>\n#ifndef NR\n#define NR 2\n#endif\nvoid f(double *x, int64_t n, int64_t k) { x[0] = NR; }",
        shapes={"x": (lambda n, k: n - k + 1, "NR", 3)},
    )
    x = np.zeros((3, 2, 3))
    launched(kernel, x, 5, 3)
    assert x[0, 0, 0] == 2
    with pytest.raises(BadInput, match=r"shape \(3, 2, 3\); expected \(3, 4, 3\), that is \(…, NR, 3\)"):
        launched(kernel, x, 5, 3, NR=4)


def test_work_must_be_a_count() -> None:
    source = "#include <stdint.h>\nvoid f(int64_t n, int64_t begin, int64_t end) {}"
    with pytest.raises(BadInput, match="work=n gave -3 units"):
        launched(cc.kernel(source, work="n"), -3)
    with pytest.raises(BadInput, match=r"gave 1\.5 units"):
        launched(cc.kernel(source, work=lambda n: n / 2), 3)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    x, y = torch.arange(64.0), torch.empty(64)
    launch = ready(saxpy(), Config(), [x, y]).launch
    launch(x, y, 2.0, 64)
    assert torch.equal(y, 2 * x + 1)
    for wrong, message in [
        (torch.empty(128)[::2], "has strides"),
        (torch.empty(64, dtype=torch.bfloat16), "has dtype bfloat16; expected float32"),
        (torch.empty(64, device="meta"), "is on meta"),
        (torch.empty(32), r"has shape \(32,\)"),
        (torch.frombuffer(bytearray(257), dtype=torch.uint8)[1:].view(torch.uint8), "has dtype uint8"),
        (torch.zeros(64, dtype=torch.complex64).conj().imag, "has strides|lazily negated"),
    ]:
        with pytest.raises(BadInput, match=f"'y'.*{message}"):
            launch(x, wrong, 2.0, 64)
    with pytest.raises(BadInput, match="x on cpu, y on meta"):
        saxpy().device([x, torch.empty(64, device="meta"), 2.0, 64])


# --- threads ---


def test_threads_split_the_work_without_gap_or_overlap() -> None:
    source = """
    #include <stdint.h>
    void f(int64_t *y, int64_t n, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) y[i]++;
    }
    """
    kernel = cc.kernel(source, work="n", shapes={"y": ("n",)})
    for n in (0, 1, 2, 7, 1000):
        for threads in (1, 2, 3, 16):
            y = np.zeros(n, np.int64)
            launched(kernel, y, n, threads=threads)
            assert (y == 1).all()


def test_threads_need_a_kernel_that_takes_a_slice() -> None:
    kernel = cc.kernel("void f(int n) {}")
    assert "threads" not in kernel.knobs
    with pytest.raises(SpaceError, match="f has no knob 'threads': its prototype does not end in"):
        kernel.check(Config(threads=2))


def test_configs_that_differ_in_threads_share_an_artifact() -> None:
    kernel = saxpy()
    jobs = {kernel.compile_job(Config(STEP=8, threads=t), Problem({}), kernel.device([])).output for t in (1, 2)}
    assert len(jobs) == 1
    assert kernel.load(Config(STEP=8, threads=2), Problem({}), None).resources.threads == 2


def test_threads_work_after_a_fork() -> None:
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    executable = ready(saxpy(), Config(threads=3), [])
    executable.launch(x, y, 1.0, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # later Pythons warn of forking with threads
        pid = os.fork()
    if pid == 0:
        executable.launch(x, y, 2.0, 64)
        os._exit(0 if (y == 3).all() else 1)
    assert os.waitpid(pid, 0)[1] == 0


# --- compiling ---


def test_a_failure_shows_all_the_compiler_said(tmp_path: Path) -> None:
    path = tmp_path / "bad.c"
    path.write_text("void f(int n) {\n    undeclared = n;\n    also = n;\n}\n")
    with pytest.raises(CompileFailed) as caught:
        cc.kernel(path).load(Config(), Problem({}), None)
    said = str(caught.value)
    assert said.startswith("error: ")
    assert f"{path}:2" in said  # the user's file, and the line in it
    assert "undeclared = n;" in said
    assert "also" in said


def test_headers_beside_the_source_are_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "inner.h").write_text("#ifndef WIDTH\n#define WIDTH 3\n#endif\n")
    (tmp_path / "outer.h").write_text('#pragma once\n#include "inner.h"\n')
    source = '#include "outer.h"\nvoid f(double *y) { y[0] = WIDTH; }'
    (tmp_path / "k.c").write_text(source)
    kernel, y = cc.kernel(tmp_path / "k.c"), np.zeros(1)
    assert "WIDTH" in kernel.knobs
    launched(kernel, y)
    assert y[0] == 3
    launched(cc.kernel(source, headers=[tmp_path / "outer.h"]), y, WIDTH=5)
    assert y[0] == 5
    (tmp_path / "inner.h").write_text("#ifndef WIDTH\n#define WIDTH 4 // more\n#endif\n")
    changed = cc.kernel(tmp_path / "k.c")
    assert changed.fingerprint() != kernel.fingerprint()
    launched(changed, y)
    assert y[0] == 4
    with pytest.raises(BadInput, match=r'includes "outer\.h", which is not beside it; name its path in headers='):
        cc.kernel(source)


def test_a_knob_without_default_must_be_given() -> None:
    kernel = cc.kernel('#ifndef NR\n#error "say NR"\n#endif\nvoid f(double *y) { y[0] = NR; }')
    with pytest.raises(SpaceError, match="knob 'NR' is missing"):
        kernel.check(Config())
    y = np.zeros(1)
    launched(kernel, y, NR=2.5)
    assert y[0] == 2.5


def test_the_fingerprint_holds_shapes_work_and_flags() -> None:
    source = "#include <stdint.h>\nvoid f(float *x, int64_t n, int64_t m, int64_t begin, int64_t end) {}"
    prints = {
        cc.kernel(source, work="n").fingerprint(),
        cc.kernel(source, work="m").fingerprint(),
        cc.kernel(source, work=lambda n: n // 2).fingerprint(),
        cc.kernel(source, work=lambda n: n // 3).fingerprint(),
        cc.kernel(source, work="n", shapes={"x": ("n",)}).fingerprint(),
        cc.kernel(source, work="n", flags=["-DX"]).fingerprint(),
    }
    assert len(prints) == 6


def test_a_broken_artifact_is_made_anew() -> None:
    kernel, args = saxpy(), TestCC().args()
    path = kernel.compile_job(Config(), Problem({}), kernel.device([])).output
    path.write_bytes(b"\x7fELF cut short")
    ready(kernel, Config(), []).launch(*args)
    TestCC().check(args, None)


def test_an_entry_that_a_macro_switches_off() -> None:
    kernel = cc.kernel("#ifndef ON\n#define ON 1\n#endif\nint unused;\n#if ON\nvoid f(int n) {}\n#endif")
    with pytest.raises(CompileFailed, match="has no function 'f'"):
        kernel.load(Config(ON=0), Problem({}), None)


def test_fast_math_leaves_the_process_its_denormals() -> None:
    launched(saxpy(), *TestCC().args(), fast_math=True)
    assert np.float32(1e-38) * np.float32(0.5) > 0


def test_a_cache_that_takes_nothing_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TUNESMITH_CACHE_DIR", str(tmp_path / "file"))
    options.cache_clear()
    args = TestCC().args()
    with pytest.warns(TunesmithWarning, match="compiled kernels can't be kept in"):
        ready(saxpy(), Config(), []).launch(*args)
    ready(saxpy(), Config(STEP=2), []).launch(*args)  # a second warning would be an error here
    TestCC().check(args, None)


def test_read_only_writes_nothing_and_uses_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = saxpy()
    kept = ready(kernel, Config(), []).path
    before = sorted(kept.parent.iterdir())
    monkeypatch.setenv("TUNESMITH_READ_ONLY", "1")
    options.cache_clear()
    assert kernel.load(Config(), Problem({}), None).path == kept
    other = kernel.load(Config(STEP=2), Problem({}), None).path
    assert other.parent != kept.parent
    assert sorted(kept.parent.iterdir()) == before


# --- finding a compiler ---


def test_ziglang_serves_where_the_system_has_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ziglang")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert c_compiler.compiler().family == "zig"
    args = TestCC().args()
    for config in (Config(threads=2), Config(march="generic", opt_level="O1", unroll=True, fast_math=True)):
        ready(saxpy(), config, []).launch(*args)
        TestCC().check(args, None)
    with pytest.raises(CompileFailed, match="STEP must be at most 16"):
        saxpy().load(Config(STEP=32), Problem({}), None)


def test_ziglang_works_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ziglang")
    for name in ("HOME", "XDG_CACHE_HOME", "ZIG_GLOBAL_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert c_compiler.compiler().version.startswith("zig ")
    job = saxpy().compile_job(Config(), Problem({}), saxpy().device([]))
    folder = Path(dict(job.environ)["ZIG_GLOBAL_CACHE_DIR"])
    assert folder.is_relative_to(options().cache_dir)


def test_no_compiler_at_all_ends_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(c_compiler, "find_spec", lambda name: None)
    with pytest.raises(MissingEngine) as caught:
        saxpy().load(Config(), Problem({}), None)
    assert str(caught.value).endswith("pip install 'tunesmith[cpu]'")
    [state] = [state for state in describe() if state.name == "cc"]
    assert not state.works
    assert state.command == "pip install 'tunesmith[cpu]'"


def test_a_compiler_that_was_named_and_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_CC", "no-such-compiler -m64")
    options.cache_clear()
    with pytest.raises(MissingEngine, match="TUNESMITH_CC=no-such-compiler -m64: no-such-compiler can't be started"):
        c_compiler.compiler()


@pytest.mark.parametrize("asked", [" ", "'cc", "zig-that-is-not-there cc"])
def test_a_compiler_that_makes_no_sense(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_CC", asked)
    options.cache_clear()
    with pytest.raises(MissingEngine, match="TUNESMITH_CC="):
        c_compiler.compiler()


def test_a_broken_cc_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ziglang")
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert c_compiler.compiler().family == "zig"


def test_import_needs_no_numpy() -> None:
    script = "import sys, tunesmith.backends.cc; assert not {'numpy', 'torch', 'triton'} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True
    )


def test_the_documentation_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "c-kernels.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    space: dict[str, Any] = {}
    for block in blocks:
        exec(block, space)
    assert len(blocks) >= 2


def test_headers_tell_kernels_apart_by_name_and_flags_bring_in_none(tmp_path: Path) -> None:
    source = tmp_path / "k.c"
    source.write_text(
        '#include <stdint.h>\n#include "a.h"\n#include "b.h"\nvoid f(float *x, int64_t n) { x[0] = A - B; }\n'
    )

    def print_of(a: int, b: int) -> str:
        (tmp_path / "a.h").write_text(f"#define A {a}\n")
        (tmp_path / "b.h").write_text(f"#define B {b}\n")
        return cc.kernel(source).fingerprint()

    assert print_of(1, 2) != print_of(2, 1)
    for flag in ("-I/tmp", "-include", "-isystem/x", "@file", "-iquote"):
        with pytest.raises(BadInput, match="name headers in headers="):
            cc.kernel(source, flags=[flag])
    with pytest.raises(BadInput, match="is one string"):
        cc.kernel(source, flags="-O3")


def test_a_parameter_named_like_a_word_of_pythons_is_refused_by_place() -> None:
    with pytest.raises(BadInput, match=r":1: parameter 'in' of f is a word of Python's.*in_"):
        cc.kernel("void f(const float *in, float *out, int n) { out[0] = in[0]; }")


def test_a_tensor_without_storage_is_refused() -> None:
    torch = pytest.importorskip("torch")
    kernel = cc.kernel("#include <stdint.h>\nvoid f(float *x, int64_t n) { x[0] = 1; }")
    launch = kernel.load(Config(), Problem({}), None).launch
    launch(torch.zeros(8), 8)
    freed = torch.zeros(8)
    freed.untyped_storage().resize_(0)

    with pytest.raises(BadInput, match="its storage was freed"):
        launch(freed, 8)


# --- bound -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
def test_a_bound_launch_does_what_a_launch_does_without_looking_at_its_arguments_again(threads: int) -> None:
    x, y = np.arange(1001, dtype=np.float32), np.empty(1001, np.float32)
    args = [x, y, 2.0, np.int64(1001)]
    again = bound(ready(saxpy(), Config(STEP=8, threads=threads), args).launch, args)
    for start in (0, 7):  # of what lies there when it is launched
        x += start
        y[:] = 0
        again()
        np.testing.assert_array_equal(y, 2 * x + 1)


def test_what_cannot_be_launched_cannot_be_bound() -> None:
    x, y = np.arange(1001, dtype=np.float32), np.empty(1001, np.float32)
    executable = ready(saxpy(), Config(STEP=8), [x, y, 2.0, 1001])
    for args, why in (([x, y, 2.0], "takes 4"), ([x, y.astype(float), 2.0, 1001], "dtype"), ([x, y, 2.0, 9], "shape")):
        with pytest.raises(BadInput, match=why):
            bound(executable.launch, args)


def test_a_kernel_of_half_a_microsecond_is_not_timed_with_the_checks_of_its_arguments() -> None:
    args = [np.ones(8, np.float32), np.empty(8, np.float32), 2.0, 8]
    executable = ready(saxpy(), Config(STEP=8), args)
    whole = CallExecutable(Config(), lambda *args: executable.launch(*args))  # it says nothing of being bound
    clock, kernel, whole = WallClock(), Run(executable, args), Run(whole, args)
    pairs = [(clock.sample(kernel).seconds, clock.sample(whole).seconds) for _ in range(9)]
    assert sorted(one / other for one, other in pairs)[4] < 0.6  # 0.15 to 0.25 where it was written
