"""Serving engines' own look-up functions, taken out of their wheels' source and run alone. For the benchmark of tables.

The functions that find and read a table, and the expression that picks its row, are cut out of the source by their
names and run with stand-ins for the rest of the engine (device name, logger, running version). Nothing of them is
kept here.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import logging
import os
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tunesmith.tables.sheet import Sheet

SGLANG_MOE = "sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py"
SGLANG_GEMM = "sglang/kernels/ops/gemm/fp8_kernel.py"
SGLANG_INT8 = "sglang/kernels/ops/gemm/int8_kernel.py"
VLLM_MOE = "vllm/model_executor/layers/fused_moe/fused_moe.py"
VLLM_FLYDSL = "vllm/model_executor/layers/fused_moe/fused_flydsl_moe.py"
VLLM_GEMM = "vllm/model_executor/layers/quantization/utils/fp8_utils.py"
VLLM_MAMBA = "vllm/model_executor/layers/mamba/ops/mamba_ssm.py"
SOURCES = (SGLANG_MOE, SGLANG_GEMM, SGLANG_INT8, VLLM_MOE, VLLM_FLYDSL, VLLM_GEMM, VLLM_MAMBA)


class Engine:
    """The functions of one source file, and the expression by which it picks a row.

    Args:
        root: where the wheel was unzipped.
        pick: part of the expression, `min(configs.keys()`.
        size: the expression's name for the size.
    """

    def __init__(self, root: Path, source: str, names: Sequence[str], pick: str, size: str = "M") -> None:
        path = root / source
        text = path.read_text()
        tree = ast.parse(text)
        kept = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in names]
        if {n.name for n in kept} != set(names):
            raise RuntimeError(f"{source} lacks some of {names}: its look-up has to be cut out anew")
        future = ast.parse("from __future__ import annotations").body
        self.space: dict[str, Any] = {**stand_ins(path), "__file__": str(path)}
        exec(compile(ast.Module([*future, *kept], []), str(path), "exec"), self.space)
        self.pick = self._expression(tree, text, pick, size)

    def _expression(self, tree: ast.Module, text: str, pick: str, size: str) -> Callable[[Mapping[int, Any], int], int]:
        """The key of a size: `min(…)` as it stands in the source."""
        for node in ast.walk(tree):
            source = ast.get_source_segment(text, node) if isinstance(node, ast.Call) else None
            if source is not None and source.replace("\n", "").replace(" ", "").startswith(pick.replace(" ", "")):
                configs = pick.partition("(")[2].partition(".")[0]
                arguments = ast.arguments([], [ast.arg(configs), ast.arg(size)], None, [], [], None, [])
                code = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, node)))
                return eval(compile(code, "pick", "eval"), self.space)
        raise RuntimeError(f"no {pick!r} in {text[:80]!r}")

    def table(self, function: str, device: str, version: str, *args: Any) -> Mapping[int, Any] | None:
        """The rows the engine finds on a device, `None` where it finds none."""
        self.space["DEVICE"][0], self.space["triton"].__version__ = device, version
        self.space[function].cache_clear()
        with contextlib.redirect_stderr(None):
            return self.space[function](*args)


def stand_ins(path: Path) -> dict[str, Any]:
    """What the functions reach for in the rest of the engine."""
    device = [""]
    quiet = logging.getLogger("engines")
    quiet.disabled = True
    for once in ("info_once", "warning_once"):
        setattr(quiet, once, lambda *args, **more: None)
    off = types.SimpleNamespace(enable_deterministic_inference=False)
    return {
        "DEVICE": device, "functools": functools, "json": json, "os": os, "logger": quiet, "Any": Any,
        "get_device_name": lambda *_: device[0], "get_device_name_as_file_name": lambda *_: device[0],
        "triton": types.SimpleNamespace(__version__=""), "log_info_on_rank0": lambda *args: None, "_is_cuda": True,
        "get_exec": lambda: types.SimpleNamespace(deterministic=off), "_FLYDSL_MOE_DEFAULT_CONFIG": None,
        "torch": types.SimpleNamespace(_dynamo=types.SimpleNamespace(is_compiling=lambda: False)),
        "envs": types.SimpleNamespace(VLLM_BATCH_INVARIANT=False, VLLM_TUNED_CONFIG_FOLDER=None),
        "_CONFIGS_DIR": str(path.parent / "configs" / "selective_state_update"),
    }  # fmt: skip


class Engines:
    """The look-up of each format."""

    def __init__(self, root: Path) -> None:
        names = ["get_config_file_name", "get_moe_configs"]
        keys = "min(configs.keys()"
        self.sglang_moe = Engine(root, SGLANG_MOE, names, keys)
        gemms = ["get_w8a8_block_fp8_configs", "get_w8a8_channelwise_fp8_configs"]
        self.sglang_gemm = Engine(root, SGLANG_GEMM, gemms, keys)
        self.sglang_int8 = Engine(root, SGLANG_INT8, ["get_w8a8_block_int8_configs"], keys)
        self.vllm_moe = Engine(root, VLLM_MOE, names, keys)
        self.vllm_gemm = Engine(root, VLLM_GEMM, ["get_w8a8_block_fp8_configs"], keys)
        self.vllm_flydsl = Engine(root, VLLM_FLYDSL, ["try_get_optimal_config"], "min(tuned_config.keys()", "tokens")
        mamba = ["get_ssm_config_file_name", "get_ssm_device_name", "_canonical_cache_dtype", "get_ssm_configs"]
        self.vllm_mamba = Engine(root, VLLM_MAMBA, mamba, keys, "effective_batch")

    def of(self, sheet: Sheet) -> tuple[Engine, Mapping[int, Any] | None] | None:
        """The engine of a table and the rows that it finds for the table's own name; `None` for other formats."""
        assert sheet.name is not None
        fields, block = sheet.name.fields, sheet.name.block or (0, 0)
        device, version = sheet.name.device, str(sheet.about.get("triton_folder", "9.9.9"))
        dtype = fields.get("dtype")
        match sheet.format:
            case "sglang-moe":
                asked = (fields["E"], fields["N"], dtype, *block, "per_channel_quant" in fields, sheet.name.down)
                return self.sglang_moe, self.sglang_moe.table("get_moe_configs", device, version, *asked)
            case "vllm-moe":
                asked = (fields["E"], fields["N"], dtype, *block)
                return self.vllm_moe, self.vllm_moe.table("get_moe_configs", device, version, *asked)
            case "sglang-gemm" if str(dtype).endswith("channelwise"):
                asked = ("get_w8a8_channelwise_fp8_configs", device, version, fields["N"], fields["K"])
                return self.sglang_gemm, self.sglang_gemm.table(*asked)
            case "sglang-gemm" | "vllm-gemm":
                engine = self.vllm_gemm if sheet.engine == "vllm" else self.sglang_gemm
                function = "get_w8a8_block_fp8_configs"
                if str(dtype).startswith("int8"):
                    engine, function = self.sglang_int8, "get_w8a8_block_int8_configs"
                return engine, engine.table(function, device, version, fields["N"], fields["K"], *block)
            case "vllm-flydsl":
                asked = ("try_get_optimal_config", device, version, fields["E"], fields["N"])
                return self.vllm_flydsl, self.vllm_flydsl.table(*asked)
            case "vllm-mamba":
                asked = (fields["headdim"], fields["dstate"], fields["cache_dtype"])
                return self.vllm_mamba, self.vllm_mamba.table("get_ssm_configs", device, version, *asked)
        return None
