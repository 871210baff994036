"""The written warm path: what it reads, what it can't confuse, and that nothing a user wrote gets into its text."""

import enum
import inspect
from typing import Any

import numpy as np
import pytest

from tunesmith.dispatch.arguments import StrideClasses, dtype_name, integer_facts, plain, protocol_of, strides_of
from tunesmith.dispatch.keyfunction import WRITTEN_CLASSES, Asked, Seen, Writer
from tunesmith.errors import BadInput


class Fake:
    """An array that is neither torch's nor numpy's."""

    def __init__(self, dtype: Any = "float32", shape: tuple[int, ...] = (4,)) -> None:
        self.dtype, self.shape = dtype, shape


class Mode(str, enum.Enum):
    FAST = "fast"


def writer(f: Any, *asked: Asked) -> Writer:
    parameters = list(inspect.signature(f).parameters.values())
    return Writer(parameters, asked or [Asked(p.name) for p in parameters], None, lambda: None, lambda args: args)


def source(f: Any, *calls: tuple[Any, ...], asked: tuple[Asked, ...] = ()) -> str:
    made = writer(f, *asked)
    names = list(inspect.signature(f).parameters)
    seen = [Seen() for _ in names]
    for call in calls:
        seen = [s.add(value, False) for s, value in zip(seen, call, strict=True)]
    return made.write(made.form(seen), "warm")


# --- arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (True, True),
        (np.int64(5), 5),
        (np.bool_(True), True),
        (np.float32(0.5), 0.5),
        (-0.0, 0.0),
        (Mode.FAST, "fast"),
        (np.array(7), 7),
        ("x", "x"),
        (None, None),
    ],
)
def test_a_keys_value_is_what_its_wrapping_stands_for(given: object, expected: object) -> None:
    value = plain(given)
    assert value == expected
    assert type(value) is type(expected)
    assert repr(value) == repr(expected)  # -0.0 equals 0.0


def test_dtypes_of_one_name_are_spelled_alike_and_byte_order_is_kept() -> None:
    assert dtype_name(np.ones(1, np.float16)) == "float16"
    assert dtype_name(Fake(np.float16)) == "float16"
    assert dtype_name(Fake("torch.float16")) == "float16"
    assert dtype_name(np.ones(1, ">f4")) == ">f4"


def test_numpys_scalars_are_no_arrays() -> None:
    assert protocol_of(np.float32(1)) is None
    assert protocol_of(np.ones(3)) == protocol_of(np.array(1.0)) == "host"
    assert protocol_of(Fake()) == "array"


def test_strides_are_in_elements_and_a_field_of_a_record_is_neither_broadcast_nor_contiguous() -> None:
    a = np.ones((4, 6), np.float64)
    assert strides_of("a", a) == (6, 1)
    assert strides_of("a", np.broadcast_to(a[0], (4, 6))) == (0, 1)
    records = np.zeros(4, [("small", "i1"), ("large", "f8")])
    assert StrideClasses(in_bytes=True)[records["large"].strides, 8] == "x"
    with pytest.raises(BadInput, match=r"'a'.*Fake"):
        strides_of("a", Fake())


@pytest.mark.parametrize(
    ("n", "facts"),
    [
        (1, ("== 1",)),
        (0, ("% 16 == 0",)),
        (17, ()),
        (2**31, ("% 16 == 0", "needs 64 bits")),
        (np.int32(32), ("% 16 == 0",)),
        (True, ()),
        (16.0, ()),
        (None, ()),
    ],
)
def test_integer_facts(n: object, facts: tuple[str, ...]) -> None:
    assert integer_facts(n) == facts


# --- the text ---------------------------------------------------------------------------------------


def test_defaults_and_kinds_of_parameters_are_those_of_the_signature() -> None:
    def f(a, b=..., /, c="'); raise SystemExit #", *, d, e=frozenset({1})): ...

    made = writer(f)
    text = made.write(None, "warm")
    scope: dict[str, Any] = dict(made.constants)
    exec(text, scope)

    assert str(inspect.signature(scope["bind"])) == str(inspect.signature(f))
    assert scope["bind"](1, d=2) == (1, ..., "'); raise SystemExit #", 2, frozenset({1}))
    assert "SystemExit" not in text


def test_a_parameter_may_be_named_as_a_constant_of_the_text() -> None:
    def f(_t_warm, _t_policy=3): ...

    made = writer(f)
    scope: dict[str, Any] = dict(made.constants)
    exec(made.write(None, "warm"), scope)
    assert scope["call"](2) == (2, 3)


def test_a_kernel_without_parameters() -> None:
    assert "return _t_launch()" in source(lambda: None, ())


def test_what_was_always_the_same_is_guarded_and_what_varied_is_in_the_key() -> None:
    once = source(lambda n, flag: None, (1, True))
    assert "is n.__class__" in once.split("def key")[0]
    assert "n.__class__" not in once.split("def key")[1]

    twice = source(lambda n, flag: None, (1, True), (1.0, True))
    assert "n.__class__" in twice.split("def key")[1]


def test_ever_new_classes_make_no_ever_new_source() -> None:
    texts = set()
    values = [type(f"C{i}", (), {})() for i in range(50)]
    for upto in range(1, 50):
        texts.add(source(lambda x: None, *[(v,) for v in values[:upto]]))
    assert len(texts) <= 3  # one class, some, many

    seen = Seen()
    for value in values:
        seen = seen.add(value, False)
    assert len(seen.classes) == WRITTEN_CLASSES + 1
