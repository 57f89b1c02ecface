"""Runs a CUDA kernel through ctypes, in a container of the GPU tests: cuda_program.py [fault]

Prints a line for each step. With ``fault``, the kernel writes to an address that does not exist.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

THREADS = 64
PTX = b"""
.version 6.4
.target sm_75
.address_size 64
.visible .entry triple(.param .u64 target)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [target];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.s64 %rd4, %rd2, %rd3;
  mul.lo.s32 %r2, %r1, 3;
  st.global.u32 [%rd4], %r2;
  ret;
}
\0"""


def main() -> int:
    print("nodes", *sorted(p.name for p in Path("/dev").glob("nvidia*")), flush=True)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as e:
        print("no libcuda:", e, flush=True)
        return 2

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        print(name, code, flush=True)
        if code:
            raise SystemExit(code if code < 200 else 200)

    count, device = ctypes.c_int(), ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    print("devices", count.value, flush=True)
    call("cuDeviceGet", ctypes.byref(device), 0)
    uuid = (ctypes.c_ubyte * 16)()
    call("cuDeviceGetUuid_v2", uuid, device)
    print("uuid", bytes(uuid).hex(), flush=True)
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    memory = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(THREADS * 4))
    call("cuModuleLoadData", ctypes.byref(module), PTX)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"triple")
    target = ctypes.c_uint64(0x3_0000_0000_00 if sys.argv[1:] == ["fault"] else memory.value)
    parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(target), ctypes.c_void_p))
    call("cuLaunchKernel", function, 1, 1, 1, THREADS, 1, 1, 0, None, parameters, None)
    call("cuCtxSynchronize")
    result = (ctypes.c_uint32 * THREADS)()
    call("cuMemcpyDtoH_v2", result, memory, ctypes.c_size_t(THREADS * 4))
    right = list(result) == [3 * i for i in range(THREADS)]
    print("kernel", "right" if right else "wrong", flush=True)
    time.sleep(0.5)
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
