"""File names of serving engines: read, made, and taken out of a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.errors import BadInput
from tunesmith.tables import devices, names
from tunesmith.tables.convert import collisions
from tunesmith.tables.names import Layer, Name

CHIPS = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H20", "NVIDIA H20-3e", "NVIDIA B200", "AMD Instinct MI300X",
         "Intel(R) Arc(TM) Pro B60 Graphics", "NVIDIA GH200 480GB")  # fmt: skip


def engine_looks_for(engine: str, e: int, n: int, dtype: str, block: tuple[int, int] | None, channels: bool,
                     device: str, down: bool) -> str:  # fmt: skip
    """The engines' rule, restated: N is what the weights say."""
    if engine == "vllm":
        spelled = "_".join(device.split()).replace("/", "_")
        spelled = "NVIDIA_H200" if "H200" in spelled.split("_") else spelled
        parts = [f"E={e}", f"N={n}", f"device_name={spelled}", *([f"dtype={dtype}"] if dtype else [])]
        return ",".join(parts + ([f"block_shape=[{block[0]},{block[1]}]"] if block else [])) + ".json"
    spelled = device.replace(" ", "_")
    parts = [f"E={e}", f"N={n}", f"device_name={spelled}", *([f"dtype={dtype}"] if dtype else [])]
    parts += [f"block_shape={list(block)}"] if block else []
    return ",".join(parts + (["per_channel_quant=True"] if channels else [])) + ("_down" if down else "") + ".json"


@st.composite
def problems(draw):
    engine = draw(st.sampled_from(names.ENGINES))
    dtype = draw(st.sampled_from(names.MOE_DTYPES[engine]))
    blocks = st.none() | st.tuples(st.sampled_from([32, 64, 128]), st.sampled_from([32, 64, 128]))
    block = draw(blocks) if dtype else None
    channels = engine == "sglang" and draw(st.booleans())
    down = engine == "sglang" and draw(st.booleans())
    e, shard, tp = draw(st.integers(1, 1024)), 2 * draw(st.integers(1, 5000)), draw(st.sampled_from([1, 2, 4, 8]))
    layer = Layer(e, shard * tp, tp, dtype, block, channels)
    return engine, layer, draw(st.sampled_from(CHIPS)), down


@given(problem=problems())
def test_what_the_exporter_names_is_what_the_engine_looks_for(problem):
    engine, layer, device, down = problem
    weights = layer.shard // 2 if layer.dtype == "int4_w4a16" and engine == "sglang" else layer.shard
    wanted = engine_looks_for(engine, layer.experts, weights, layer.dtype, layer.block, layer.per_channel, device, down)
    assert names.of_layer(engine, layer, device, down=down) == wanted
    read = names.read(wanted)
    assert (read.fields["E"], read.fields["N"], read.block, read.down) == (layer.experts, weights, layer.block, down)
    assert read.fields.get("dtype", "") == layer.dtype
    assert ("per_channel_quant" in read.fields) == layer.per_channel


@given(one=problems(), other=problems())
def test_two_problems_never_share_a_file(one, other):
    def identity(problem):
        engine, layer, device, down = problem
        chip = devices.vllm_moe(device) if engine == "vllm" else device
        return engine, layer.experts, layer.n(engine), layer.dtype, layer.block, layer.per_channel, chip, down

    same = names.of_layer(*one[:3], down=one[3]) == names.of_layer(*other[:3], down=other[3])
    if one[0] == other[0]:
        assert same == (identity(one) == identity(other))


def test_packed_and_unpacked_weights():
    layer = Layer(384, 2048, 8, "int4_w4a16")
    assert (layer.n("sglang"), layer.n("vllm"), layer.shard) == (128, 256, 256)
    for tp, sglang, vllm in ((1, 256, 512), (2, 128, 256)):
        layer = Layer(256, 512, tp, "int4_w4a16")
        assert (layer.n("sglang"), layer.n("vllm")) == (sglang, vllm)
    with pytest.raises(BadInput, match="packed in pairs"):
        Layer(8, 7, 1, "int4_w4a16").n("sglang")
    with pytest.raises(BadInput, match="split over tp=3"):
        Layer(8, 512, 3)


@pytest.mark.parametrize(
    ("engine", "layer", "why"),
    [
        ("vllm", Layer(8, 512, dtype="int8_w8a8"), "unknown dtype 'int8_w8a8'"),
        ("sglang", Layer(8, 512, dtype="bf16"), "unknown dtype 'bf16'"),
        ("vllm", Layer(8, 512, dtype="fp8_w8a8", per_channel=True), "per-channel"),
        ("vllm", Layer(8, 512, block=(128, 128)), "with a dtype alone"), ("trt", Layer(8, 512), "unknown engine"),
    ],
)  # fmt: skip
def test_what_an_engine_never_looks_for_is_not_named(engine, layer, why):
    with pytest.raises(BadInput, match=why):
        names.of_layer(engine, layer, "NVIDIA H200")
    with pytest.raises(BadInput, match="device without a name"):
        names.of_layer("sglang", Layer(8, 512), " ")


def test_both_styles_of_blanks_read_alike():
    vllm = names.read("E=8,N=1024,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,block_shape=[128,128].json")
    sglang = names.read("E=8,N=1024,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,block_shape=[128, 128]_down.json")
    assert vllm.fields == sglang.fields
    assert (vllm.block, vllm.down, vllm.blank) == ((128, 128), False, False)
    assert (sglang.block, sglang.down, sglang.blank) == ((128, 128), True, True)
    plain = names.read("E=64,N=896,device_name=Intel(R)_Arc(TM)_Pro_B60_Graphics,dtype=fp8_w8a8_down.json")
    assert (plain.device, plain.fields["dtype"], plain.down) == ("Intel(R)_Arc(TM)_Pro_B60_Graphics", "fp8_w8a8", True)
    assert names.read("E=384,N=128,device_name=,dtype=int4_w4a16.json").device == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [("README.md", "no table's name"), ("E=8.json", "no device"), ("E=8,N=,device_name=X.json", "N is ''"),
     ("E=8,N=8,device_name=X,dtype=fp8_w8a8,dtype=bf16.json", "dtype twice"),
     ("E=8,N=8,device_name=X,block_shape=[128].json", "block_shape"),
     ("E=8,N=8,device_name=X,junk.json", "no table's")],
)  # fmt: skip
def test_noise_is_refused_with_a_reason(name, why):
    with pytest.raises(BadInput, match=why):
        names.read(name)


def test_a_log_says_what_was_looked_for():
    name = "E=128,N=192,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json"
    log = f"""INFO start
WARNING Using default MoE config. Performance might be sub-optimal! Config file not found at /opt/x/{name}, /y/{name}
WARNING Using default MoE config. Performance might be sub-optimal! Config file not found at /opt/x/{name}
WARNING Config file not found at /opt/models/config.json"""
    assert names.missed(log) == [
        Name(
            {"E": 128, "N": 192, "device_name": "NVIDIA_H100_80GB_HBM3", "dtype": "fp8_w8a8", "block_shape": (128, 128)}
        )
    ]


def test_layers_that_differ_in_what_names_do_not_know_are_told():
    one, other = Layer(8, 1024, hidden=4096), Layer(8, 1024, hidden=7168)
    found = collisions([("vllm", one, "NVIDIA H200"), ("vllm", other, "NVIDIA H200"), ("sglang", one, "NVIDIA H200")])
    assert len(found) == 1
    assert "hidden=7168" in found[0]
    assert names.of_gemm("sglang", 512, 7168, "NVIDIA H20", "fp8_w8a8", (128, 128)) == (
        "N=512,K=7168,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape=[128, 128].json"
    )
