"""Made-up tables that have the structure of real ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

H100 = "NVIDIA_H100_80GB_HBM3"
KNOBS = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 64,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 1,
    "num_warps": 4,
    "num_stages": 3,
}
BF16 = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw"
)
BLOCKSCALE = "gfx,cu_num,M,N,K,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio"
BPRESHUFFLE = "gfx,cu_num,M,N,K,q_dtype_w,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio"
MXSCALE = "gfx,b,m,n,k,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio"
FMOE = (
    "gfx,cu_num,token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,"
    "doweight_stage1,block_m,ksplit,us1,kernelName1,err1,us2,kernelName2,err2,us,run_1stage,flat,tflops,bw"
)


def ladder(
    rows: Mapping[Any, Any] | Iterable[Any],
    *,
    indent: int | None = 4,
    newline: str = "\n",
    end: bool = True,
    **head: Any,
) -> bytes:
    """A table with a member for each size; sizes alone get a plain Config."""
    members = rows if isinstance(rows, Mapping) else dict.fromkeys(rows, KNOBS)
    text = json.dumps({**head, **{str(size): config for size, config in members.items()}}, indent=indent)
    return (text + "\n" * end).replace("\n", newline).encode()


def put(folder: Path, name: str, data: bytes) -> Path:
    """Write a file, and its folders."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def bf16(m: int, us: object, *, gfx: str = "gfx942", units: int = 304, lib: str = "asm", kernel: str = "k1",
         error: object = 0.0, n: int = 896, k: int = 4096) -> str:  # fmt: skip
    """A row of a bf16 table whose derived columns are right."""
    try:
        tflops = round(2 * m * n * k / float(str(us)) / 1e6, 2)
    except (ValueError, ZeroDivisionError):
        tflops = 0.0
    shape = f"{gfx},{units},{m},{n},{k},False,torch.bfloat16,torch.bfloat16,False,False"
    return f"{shape},{lib},5,13,{us},{kernel},{error},{tflops},400.1"


def blockscale(m: int, us: object = 10.0, *, n: int = 4096, k: int = 7168, kernel: str = "ck_256x16x64") -> str:
    """A row of a blockscale table."""
    return f"gfx950,256,{m},{n},{k},ck,8,2,{us},{kernel},{round(2 * m * n * k / float(us) / 1e6, 2)},1304.22,0.0"


def fmoe(token: int, us: object = 50.0) -> str:
    """A row of a fused-MoE table."""
    what = "ActivationType.Silu,torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_1x128,1,0"
    return f"gfx950,256,{token},7168,256,257,9,{what},32,0,20.0,k1,0.0%,30.0,k2,0.0%,{us},0,1,100.0,200.0"


def csv(header: str, *rows: str, newline: str = "\n", end: bool = True) -> bytes:
    """A CSV."""
    return (newline.join([header, *rows]) + newline * end).encode()
