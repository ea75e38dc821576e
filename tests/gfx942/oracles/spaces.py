"""How each kind of memory is addressed, so that one test can run on all of them.

Every lane has 32 bytes of its own, filled from v10..v17 before the instruction that is tested.
"""

from dataclasses import dataclass

LANE_BYTES = 32
FIRST_BYTE = 64
"""Of the lanes' memory in the array at s[8:9]; before it lie the scalar inputs."""


@dataclass(frozen=True)
class Space:
    """One kind of memory.

    Attributes:
        name: ``global``, ``flat``, ``buffer``, ``scratch`` or ``lds``.
        setup: Lines that make the address.
        at: The operands of an access, between what comes before and after the data.
        base: Added to each offset.
    """

    name: str
    setup: tuple[str, ...]
    base: int

    def access(self, mnemonic: str, data: str, offset: int, result: str = "") -> str:
        """Return a load (data is the destination), store, or atomic (result is where the old value
        goes, if anywhere)."""
        where = f" offset:{self.base + offset}"
        kind = mnemonic.split("_")[1]
        returned = f"{result}, " if result else ""
        sc0 = " sc0" if result else ""
        if self.name == "lds":
            if kind == "read":
                return f"{mnemonic} {data}, v3{where}"
            return f"{mnemonic} {returned}v3, {data}{where}"
        if self.name == "buffer":
            return f"{mnemonic} {data}, v3, s[36:39], 0 offen{where}{sc0}"
        address, after = {
            "global": ("v3", ", s[8:9]"),
            "flat": ("v[4:5]", ""),
            "scratch": ("v3", ", off"),
        }[self.name]
        if kind == "load":
            return f"{mnemonic} {data}, {address}{after}{where}"
        return f"{mnemonic} {returned}{address}, {data}{after}{where}{sc0}"

    def word(self, action: str) -> str:
        """Return the mnemonic that moves one word: ``load`` or ``store``."""
        if self.name == "lds":
            return "ds_read_b32" if action == "load" else "ds_write_b32"
        return f"{self.name}_{action}_dword"

    def program(self, *tested: str, read_back: bool) -> str:
        """Return the lines: fill the memory, run what is tested, and read 16 bytes back if
        asked."""
        lines = [*self.setup]
        lines += [self.access(self.word("store"), f"v{10 + k}", 4 * k) for k in range(8)]
        lines += ["s_waitcnt vmcnt(0) lgkmcnt(0)", *tested, "s_waitcnt vmcnt(0) lgkmcnt(0)"]
        if read_back:
            lines += [self.access(self.word("load"), f"v{20 + k}", 4 * k) for k in range(4)]
            lines += ["s_waitcnt vmcnt(0) lgkmcnt(0)"]
        return "\n  ".join(lines)


_LANE_OFFSET = "v_lshlrev_b32_e32 v3, 5, v0"
_DESCRIPTOR = (
    "s_mov_b32 s36, s8",
    "s_mov_b32 s37, s9",
    f"s_movk_i32 s38, {FIRST_BYTE + 64 * LANE_BYTES}",
    "s_mov_b32 s39, 0x20000",
)
_FLAT_ADDRESS = ("v_mov_b32_e32 v4, s8", "v_mov_b32_e32 v5, s9", "v_mov_b32_e32 v6, 0")
_ADD_OFFSET = (
    "v_mov_b32_e32 v2, v3",
    "v_mov_b32_e32 v3, v6",
    "v_lshl_add_u64 v[4:5], v[2:3], 0, v[4:5]",
)

GLOBAL = Space("global", (_LANE_OFFSET,), FIRST_BYTE)
FLAT = Space("flat", (_LANE_OFFSET, *_FLAT_ADDRESS, *_ADD_OFFSET), FIRST_BYTE)
BUFFER = Space("buffer", (_LANE_OFFSET, *_DESCRIPTOR), FIRST_BYTE)
SCRATCH = Space("scratch", ("v_mov_b32_e32 v3, 8",), 0)
LDS = Space("lds", (_LANE_OFFSET,), 0)
ALL = (GLOBAL, FLAT, BUFFER, SCRATCH, LDS)
