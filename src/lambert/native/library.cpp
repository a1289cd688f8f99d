// What Python asks the library before it calls a kernel.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tiles.h"

namespace lambert {
namespace {

// Source: Linux, Documentation/arch/x86/xstate.rst: a process asks once for the tiles' registers.
bool find_amx() {
    constexpr long kAskForState = 0x1023, kTileData = 18;
    constexpr unsigned kBfloat16 = 1u << 22, kTiles = 1u << 24;
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    return (edx & kBfloat16) && (edx & kTiles) && syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

}  // namespace

bool use_amx = false;

}  // namespace lambert

extern "C" {

// The version of the kernels' interface, which src/lambert/native/__init__.py compares with its own. Change both when
// the arguments of a kernel change.
long lambert_version() { return 9; }

// Lets products use AMX, if it can be used, or not.
void lambert_use_amx(long allowed) { lambert::use_amx = allowed && lambert::find_amx(); }

long lambert_uses_amx() { return lambert::use_amx; }
}
