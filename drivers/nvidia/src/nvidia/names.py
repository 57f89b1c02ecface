"""The names of numbers that NVML returns. A number without a name is newer than this driver."""

from __future__ import annotations

ACTIONS = {
    0: "",
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain peer-to-peer traffic",
    4: "drain and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}
BRANDS = {
    1: "Quadro", 2: "Tesla", 3: "NVS", 4: "Grid", 5: "GeForce", 6: "Titan", 7: "NvidiaVApps", 8: "NvidiaVPC",
    9: "NvidiaVCS", 10: "NvidiaVWS", 11: "NvidiaCloudGaming", 12: "QuadroRTX", 13: "NvidiaRTX", 14: "Nvidia",
    15: "GeForceRTX", 16: "TitanRTX",
}  # fmt: skip
ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper",
    10: "Blackwell", 13: "Rubin",
}  # fmt: skip
ADDRESSING = {1: "HMM", 2: "ATS"}
EVENTS = {
    0x8: "XID",
    0x100: "MIG configuration change",
    0x800: "memory row retirement failure",
    0x2000: "fatal poison error",
    0x4000: "GPU unavailable",
    0x8000: "GPU recovery action",
}
