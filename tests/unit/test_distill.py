"""`distill`: the table serves every size within the bound and is found by its reader; so does the tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import ScriptedClock

from tunesmith import Config, Failed, Measured, Problem, Sample, Space, Tiles, Trial, autotune
from tunesmith.cli import main
from tunesmith.core.device import known_device
from tunesmith.core.key import Key
from tunesmith.core.model import Model
from tunesmith.core.outcome import Choice, Recording
from tunesmith.distill import (
    Collection,
    Tuned,
    expecting,
    groups_of,
    grow,
    held_back,
    of_store,
    table_of,
    together,
    tuned_of,
)  # fmt: skip
from tunesmith.distill.between import believed, good_somewhere
from tunesmith.distill.table import by_table, by_tree
from tunesmith.errors import BadInput
from tunesmith.heuristic import Heuristic
from tunesmith.recording import save
from tunesmith.search import Solved
from tunesmith.store import StoredChoice, default_store, rows
from tunesmith.tables import NativeTable, load
from tunesmith.tables.lines import Entry

H200 = known_device("NVIDIA H200")
A, B, C = (Config(BLOCK=size) for size in (16, 64, 128))


def tuned(losses: dict[int, dict[Config, float]], **fields: Any) -> list[Tuned]:
    return [Tuned(Problem({"M": m, **fields}), one, {c: 1e-3 * (1 + loss) for c, loss in one.items()})
            for m, one in losses.items()]  # fmt: skip


PROBLEMS = tuned({
    1: {A: 0.0, B: 0.3, C: 0.9}, 16: {A: 0.0, B: 0.02, C: 0.5}, 64: {A: 0.2, B: 0.0, C: 0.1},
    256: {A: 0.5, B: 0.02, C: 0.0}, 1024: {B: 0.4, C: 0.0},
}, N=4096)  # fmt: skip


@st.composite
def collections(draw: st.DrawFn) -> list[Tuned]:
    """Problems of up to two weights; of each at least one Config is the best."""
    found = list[Tuned]()
    for n in draw(st.sets(st.sampled_from([512, 4096]), min_size=1)):
        for m in draw(st.sets(st.integers(1, 300), min_size=1, max_size=12)):
            one = draw(st.dictionaries(st.sampled_from([A, B, C]), st.floats(0, 0.3)))
            one[draw(st.sampled_from([A, B, C]))] = 0.0
            found.append(Tuned(Problem({"M": m, "N": n}), one))
    return found


@pytest.mark.parametrize("by", ["ceil", "floor", "nearest-stock"])
@given(problems=collections())
@settings(max_examples=25, deadline=None)
def test_every_table_is_found_by_its_readers_rule(by: str, problems: list[Tuned], tmp_path_factory: Any) -> None:
    groups = groups_of(problems, "M")
    made = table_of(groups, "M", by, 0.03).native(Collection("gemm", H200.identity, tuple(problems)))
    path = tmp_path_factory.getbasetemp() / f"table-{by}.json"
    made.write(path)
    table = load(path, kernel="gemm", rule=by, size="M")
    for group in groups:
        for section in group.sections():
            for size in {section.first, (section.first + section.last) // 2, section.last}:
                problem = Problem({**group.fields, "M": size})
                row = table.lookup(Key("gemm", "f", problem, H200.identity, "p"), problem, H200)
                assert row is not None, size
                assert section.losses[row.config] <= 0.03


@given(problems=collections())
@settings(max_examples=50, deadline=None)
def test_no_tuned_problem_loses_more_with_the_tree(problems: list[Tuned]) -> None:
    heuristic = Heuristic("gemm", grow(problems, 0.06))
    assert all(one.loss(heuristic(one.problem)) <= 0.06 for one in problems)
    assert len(list(heuristic.leaves())) <= len(problems)


def test_a_tree_is_as_small_as_the_bound_lets_it_be_and_asks_what_tells_apart() -> None:
    assert grow(PROBLEMS[:2], 0.06) == A
    (_, end), (_, other), (conditions, last) = Heuristic("gemm", grow(PROBLEMS, 0.06)).leaves()
    assert [end, other, last] == [A, B, C]
    assert conditions[-1] in ("M > 256", "M > 64")
    by_dtype = tuned({64: {A: 0.0, B: 1.0}}, dtype="float16") + tuned({64: {A: 1.0, B: 0.0}}, dtype="float32")
    assert [c for c, _ in Heuristic("gemm", grow(by_dtype, 0.06)).leaves()] == [
        ("dtype == 'float16'",),
        ("dtype != 'float16'",),
    ]
    same = [Tuned(Problem({"M": 1}), {A: 0.0}), Tuned(Problem({"M": 1}), {B: 0.0})]
    with pytest.raises(BadInput, match="no field tells these problems apart"):
        grow(same, 0.06)


def test_a_tree_asks_nothing_that_changes_no_answer() -> None:
    """Sizes 1 and 2 end in B, by two questions: C seemed to be good for 1 and 3."""
    found = grow(tuned({1: {B: 0.0, C: 0.0}, 2: {B: 0.0}, 3: {A: 0.0, C: 0.0}, 4: {B: 0.0}}), 0.06)
    (first, one), (_, other), (_, last) = Heuristic("gemm", found).leaves()
    assert (first, one, last) == (("M <= 2",), B, B)
    assert other in (A, C)


def test_what_is_held_back_is_not_seen_and_the_unknown_is_counted() -> None:
    groups = groups_of(PROBLEMS, "M")
    table = held_back(groups, 5, by_table("M", "ceil", 0.03))
    by_size = {problem["M"]: loss for problem, loss in table.losses.items()}
    assert by_size == {1: 0.3, 16: 0.02, 64: 0.1, 256: 0.0, 1024: 0.4}
    assert table.worst == (0.4, PROBLEMS[-1].problem)
    assert table.p90() == pytest.approx(0.36)
    only = groups_of([*PROBLEMS[:3], Tuned(Problem({"M": 128, "N": 4096}), {C: 0.0})], "M")
    found = held_back(only, 4, by_tree(0.06))
    assert len(found.losses) == 4
    assert found.unknown == 1  # that of 128, of which C alone is known, and what serves it then is another


def test_a_table_that_there_is_is_not_refused_for_what_is_held_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By rule pow2, sizes 3 and 4 share row 4. Without 4, size 3's neighbour above is 64, whose Config 3 can't use."""
    problems = tuned({3: {A: 0.0, B: 0.02}, 4: {A: 0.02, B: 0.0}, 64: {B: 0.9, C: 0.0}})
    groups = groups_of(problems, "M")
    assert table_of(groups, "M", "pow2", 0.03).worst <= 0.03
    back = held_back(groups, 3, by_table("M", "pow2", 0.03))
    by_size = {problem["M"]: loss for problem, loss in back.losses.items()}
    assert by_size[4] == 0.0 or by_size[4] == 0.02
    assert len(by_size) == 3
    apart = tuned({3: {A: 0.0}, 4: {A: 0.0, C: 0.02}, 64: {C: 0.0}})
    assert table_of(groups_of(apart, "M"), "M", "pow2", 0.03).worst <= 0.03
    found = held_back(groups_of(apart, "M"), 3, by_table("M", "pow2", 0.03))
    assert found.losses[apart[1].problem] == float("inf")  # nothing is known that 3 and 64 could share a row with
    assert found.unknown >= 1
    rows = [str(tmp_path / f"{one.problem['M']}.json.gz") for one in apart]
    for path, one in zip(rows, apart, strict=True):
        trials = tuple(Trial(c, Measured((Sample(s),))) for c, s in one.seconds.items())
        save(Recording("gemm", "NVIDIA H200", one.problem, trials), Path(path))
    assert main(["distill", *rows, "--rule", "pow2"]) == 0
    assert "the loss is not known" in capsys.readouterr().out


def test_losses_are_of_pairs_where_there_are_rounds_and_failures_are_unknown() -> None:
    """The clock falls by half in the middle: medians of unpaired samples would say something else."""
    drift = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]

    def samples(factor: float, start: int = 0) -> Measured:
        return Measured(tuple(Sample(1e-3 * d * factor, i) for i, d in enumerate(drift) if i >= start))

    found = tuned_of(Problem({"M": 1}), [
        Trial(A, samples(1.0)), Trial(B, samples(1.1, start=3)), Trial(C, Failed("compile", "no")),
    ])  # fmt: skip
    assert found is not None
    assert found.losses == {A: 0.0, B: pytest.approx(0.1)}
    assert tuned_of(Problem({"M": 1}), [Trial(C, Failed("compile", "no"))]) is None


def test_a_store_is_distilled_in_its_last_state() -> None:
    clock = ScriptedClock(lambda config: 1e-3 * float(str(config["block"])))

    def scale(n: int, *, block: int) -> None: ...

    for version, blocks in (("1", [4, 8]), ("2", [1, 2, 4])):
        kernel = autotune(space=Space(block=blocks), key=["n"], clock=clock, name="scale", version=version)(scale)
        for n in (8, 64):
            kernel.tune(n=n)
    known = of_store(default_store(), "scale")
    assert {one.problem["n"] for one in known.tuned} == {8, 64}
    assert all(set(one.losses) == {Config(block=b) for b in (1, 2, 4)} for one in known.tuned)
    assert known.fingerprint == kernel.key(n=8).fingerprint
    with pytest.raises(BadInput, match="kernel 'shift'"):
        of_store(default_store(), "shift")


def test_what_was_found_under_other_versions_or_another_environment_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = default_store()

    def add(m: int, at: str, config: Config, compiler: str = "2", opt: str = "1") -> None:
        soft = {"compiler": compiler}
        key = Key("gemm", "f", Problem({"M": m}), H200.identity, "p", (("TRITON_OPT", opt),), soft=soft)
        trials = [Trial(config, Measured((Sample(1e-3),)), at=at, soft=soft)]
        older = Trial(B, Measured((Sample(1e-6),)), at="2025", soft={"compiler": "1"})
        store.add_trials(key, [older, *trials])
        choice = StoredChoice(Choice(config, "search", "search"), soft, at)
        store.write(lambda connection: rows.put_choice(connection, rows.put_key(connection, key, 1.0), choice))

    add(1, "2026-01-01", B, compiler="1")
    add(2, "2026-01-02", B, opt="0")
    add(3, "2026-01-03", A)
    add(4, "2026-01-04", A)
    known = of_store(store, "gemm")
    assert {one.problem["M"]: dict(one.losses) for one in known.tuned} == {3: {A: 0.0}, 4: {A: 0.0}}
    assert known.soft == {"compiler": "2"}
    assert set(known.left_out.split("; ")) == {"1 × $TRITON_OPT: 1, known: 0", "1 × compiler: 2, was 1"}
    assert main(["distill", "--kernel", "gemm", "--folds", "2"]) == 0
    assert "left out, as other problems were tuned later" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["3mm", "mm 3[a=1]", "café", "__"])
def test_the_tree_as_python_has_a_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, python = recorded(tmp_path, kernel=name), tmp_path / "tree.py"
    assert main(["distill", *files, "--tree", str(python)]) == 0
    space: dict[str, Any] = {}
    exec(compile(python.read_text(), "tree.py", "exec"), space)
    [made] = [value for given, value in space.items() if given.endswith("_default")]
    assert made(PROBLEMS[0].problem, H200) == A


def recorded(folder: Path, kernel: str = "gemm", device: str = "NVIDIA H200") -> list[str]:
    files = list[str]()
    for one in PROBLEMS:
        trials = tuple(
            Trial(config, Measured(tuple(Sample(1e-3 * (1 + loss), i) for i in range(6))))
            for config, loss in one.losses.items()
        )
        files.append(str(folder / f"{one.problem['M']}.json.gz"))
        save(Recording(kernel, device, one.problem, trials), Path(files[-1]))
    return files


def test_the_command_writes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = recorded(tmp_path)
    table, tree, python = (str(tmp_path / name) for name in ("t.json", "tree.json", "tree.py"))
    assert main(["distill", *files, "-o", table, "--tree", tree, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["format"] == "tunesmith-distill/1"
    assert [row["serves"] for row in said["rows"]] == ["M=1…16", "M=17…64", "M=65…1024"]
    assert said["table_worst_loss"] == 0.0
    assert [one["rows"] for one in said["curve"]] == [3, 3, 3, 3, 3, 3, 2]
    assert len(NativeTable.read(Path(table)).rows) == 3
    assert Heuristic.read(tree).kernel == "gemm"
    assert main(["distill", *files, "--rule", "nearest-stock", "--max-loss", "0.03", "--tree", python]) == 0
    printed = capsys.readouterr().out
    assert "rule nearest-stock: 3 rows, the fewest there can be\nno tuned problem loses more than 2.0%" in printed
    assert "held back, a fifth at a time:" in printed
    assert Path(python).read_text().startswith("from tunesmith import Config\n\n\ndef gemm_default(problem, device):\n")


def test_tables_are_distilled_by_the_best_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {Problem({"M": m}): Entry(config) for m, config in ((1, A), (8, A), (64, B), (512, B))}
    NativeTable("gemm", H200.identity, rows, "f", "p").write(tmp_path / "t.json")
    assert main(["distill", str(tmp_path / "t.json"), "-o", str(tmp_path / "small.json")]) == 0
    small = NativeTable.read(tmp_path / "small.json")
    assert ({p["M"]: e.config for p, e in small.rows.items()}, small.fingerprint) == ({8: A, 512: B}, "f")
    capsys.readouterr()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "nothing to distill: give recordings or tables, or --kernel NAME"),
        (["--kernel", "nothing"], "kernel 'nothing'"),
        (["FILES", "--max-loss", "-3%"], "--max-loss -3%: good values: 3%, or 0.03"),
        (["FILES", "--tree-loss", "much"], "--tree-loss much: good values"),
        (["FILES", "--rule", "best"], "look-up rule 'best'"),
        (["FILES", "--size", "tokens"], "has no size 'tokens' of at least 1; its sizes: M, N"),
        (["FILES", "--folds", "1"], "--folds 1: good values: integers from 2"),
        (["FILES", "--kernel", "gemm"], "are of the store"),
        (["FILES", "-o", "no/such/folder/t.json"], "cannot be written"),
        (["FILES", "OTHER"], "a table is of one kernel; these are of 'gemm', 'shift'"),
        (["BAD"], "is neither a recording nor a table of ours"),
        (["FILES", "--model", "softmax"], "--model softmax: its autotune has no model="),
    ],
)
def test_bad_use_is_named(
    args: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("{}")
    NativeTable("shift", H200.identity, {Problem({"M": 1}): Entry(A)}).write(tmp_path / "other.json")
    meant = {"FILES": recorded(tmp_path), "OTHER": ["other.json"], "BAD": ["bad.json"]}
    assert main(["distill", *[word for arg in args for word in meant.get(arg, [arg])]]) == 2
    assert said in capsys.readouterr().err


def test_of_a_problem_twice_what_is_known_better_counts() -> None:
    part, whole = tuned({1: {A: 0.0}}), tuned({1: {A: 0.1, B: 0.0}})
    found = together([Collection("k", "d", tuple(part), "f1"), Collection("k", "d", tuple(whole), "f2")])
    assert (list(found.tuned), found.fingerprint) == (whole, "")


def predicted(m: int, n: int = 4096) -> Tuned:
    """What the model says of 27 Configs."""
    model, space = Model(Tiles()), Space(BLOCK_M=[64, 128, 256], BLOCK_N=[64, 128, 256], BLOCK_K=[64], num_warps=[8])
    problem = Problem({"M": m, "N": n, "K": 4096})
    seconds = {c: found.seconds for c in space if (found := model.predict(problem, c, H200)) is not None}
    best = min(seconds.values())
    return Tuned(problem, {config: s / best - 1 for config, s in seconds.items()}, seconds)


def test_a_model_says_what_changes_between_tuned_sizes() -> None:
    """What is best changes at sizes that were never tuned, where a tile more is needed."""
    model = Model(Tiles())
    sparse, dense = ([predicted(m) for m in sizes] for sizes in ((64, 1024, 2048), range(128, 2049, 128)))
    fill, groups = expecting(model, H200.identity, "M", 0.03), groups_of(sparse, "M")
    bare, filled = (table_of(one, "M", "ceil", 0.03) for one in (groups, fill(groups)))
    lost = [max(one.loss(table.decide(one.problem) or A) for one in dense) for table in (bare, filled)]
    assert lost[1] <= 0.06 < lost[0]
    assert filled.worst <= 0.03
    with pytest.raises(BadInput, match="too little is known of device nothing"):
        expecting(model, "nothing", "M", 0.03)


def test_a_group_without_the_end_of_the_range_is_told_of_it_by_the_others() -> None:
    fill = expecting(Model(Tiles()), H200.identity, "M", 0.03)
    short, other = [predicted(m) for m in (64, 128, 256)], [predicted(m, 2560) for m in (64, 512, 2000)]
    assert max(fill(groups_of(short, "M"))[0].sizes) == 256
    both = fill(groups_of([*short, *other], "M"))
    assert [max(group.sizes) for group in both] == [2000, 2000]
    table = table_of(both, "M", "ceil", 0.03)
    assert table.worst <= 0.03  # of what was tuned
    lost = [predicted(2000).loss(made.decide(predicted(2000).problem) or A) for made in (
        table, table_of(fill(groups_of(short, "M")), "M", "ceil", 0.03)
    )]  # fmt: skip
    assert lost[0] < lost[1] / 2


@pytest.mark.parametrize(("error", "pays"), [(1.0, True), (4.0, False)])
def test_what_was_good_nowhere_is_believed_to_be_good_between_only_where_that_pays(error: float, pays: bool) -> None:
    """A is the best but for size 64, where C is; D is never good. A model errs about D, now up and now down."""
    worst, sizes = Config(BLOCK=256), [1, 8, 64, 512, 4096]
    known = [*tuned({m: {A: 0.5 * (m == 64), C: 0.5 * (m != 64), worst: 0.6} for m in sizes})]
    solved = list[Solved]()
    for i, one in enumerate(known):
        wrong = error ** (1 if i % 2 else -1)
        said = {config: s * (wrong if config == worst else 1.0) for config, s in one.seconds.items()}
        solved.append(Solved(one.problem, one.seconds, H200.identity, said.get))
    found = set(believed(known, solved, H200.identity, 0.03))
    assert set(good_somewhere(known, 0.03)) == {A, C}
    assert found == ({A, C, worst} if pays else {A, C})
