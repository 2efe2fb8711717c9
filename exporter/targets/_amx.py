"""Tiles of Intel's AMX in C++, for exporter's kernels in packages that multiply bytes."""

from __future__ import annotations

from typing import Any

ROWS, LINE = 16, 64  # most rows of a tile, and the bytes of a row
DEFINITION = r"""
#ifndef EXPORTER_AMX
#define EXPORTER_AMX
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
namespace exporter_amx {
constexpr int TILE = 16, LINE = 64, WORD = 4; // rows of a tile; bytes of a row, and of a sum

// Asks the system to let the process use tiles.
inline bool request() {
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
static const bool permitted = request();

// Completes all writes to memory: GCC 12 does not know that tiles and their configuration are loaded from there.
inline void complete(const void* written) { asm volatile("" : : "r"(written) : "memory"); }

// Configures the tiles of a thread: 0 to 3 for sums and 4 and 5 for rows have `rows` rows, the others, for weights, 16.
class Tiles {
  public:
    explicit Tiles(int rows) {
        alignas(LINE) uint8_t settings[LINE] = {1};
        for (int tile = 0; tile < 8; tile++) {
            settings[16 + 2 * tile] = LINE;
            settings[48 + tile] = uint8_t(tile < 6 ? rows : TILE);
        }
        complete(settings);
        if (permitted) _tile_loadconfig(settings);
    }
    ~Tiles() {
        if (permitted) _tile_release();
    }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;
};
} // namespace exporter_amx
#endif
"""


def used() -> bool:
    """Return whether inductor generates code for a CPU with AMX now."""
    from torch._inductor import cpu_vec_isa

    amx: Any = cpu_vec_isa.VecAMX
    return isinstance(cpu_vec_isa.pick_vec_isa(), amx)
