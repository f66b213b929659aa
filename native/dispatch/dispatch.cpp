#include "dispatch/dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#ifdef FEWBITS_X86
#include <cpuid.h>
#endif
#if defined(FEWBITS_AMX) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fewbits {

namespace baseline {
extern const Kernels kernels;
extern const Products products;
extern const Systems systems;
}
#ifdef FEWBITS_X86
namespace avx2 {
extern const Kernels kernels;
extern const Products products;
extern const Systems systems;
}
namespace avx2_vnni {
extern const Products products;
}
namespace avx512 {
extern const Kernels kernels;
extern const Products products;
extern const Systems systems;
}
namespace avx512_vnni {
extern const Products products;
}
namespace avx512_bf16 {
extern const Kernels kernels;
extern const Products products;
}
#endif
#ifdef FEWBITS_AMX
namespace amx {
extern const Products products;
}
#endif

namespace {

std::atomic<const Implementation*> forced{nullptr};

bool anywhere() { return true; }

#ifdef FEWBITS_X86
// Conversions of float16, a bit of its own: not every compiler's builtin knows it.
bool has_f16c() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

// The builtin also asks whether the operating system saves the wide registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

// AVX-VNNI, a bit of its own: Clang's builtin does not know it.
bool has_avx2_vnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

bool has_avx512_bf16() {
    return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512vpopcntdq");
}
#endif

#ifdef FEWBITS_AMX
#ifdef FEWBITS_EMULATE_TILES
bool has_amx() { return has_avx512_bf16(); }
#else
// Tiles are 8 KiB more for the operating system to save, which Linux allows a process that asks for it once.
bool may_use_tiles() {
#ifdef __linux__
    constexpr long request_permission = 0x1023, tile_data = 18;  // of arch/x86/include/uapi/asm/prctl.h
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}

bool has_amx() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool there = has_avx512_bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
    static const bool allowed = there && may_use_tiles();
    return allowed;
}
#endif
#endif

const Implementation& find(const std::string& name, const std::string& who) {
    std::string known;
    for (const Implementation& i : implementations()) {
        if (name == i.name) {
            if (i.runs_here()) return i;
            throw std::invalid_argument(who + " asks for " + name + ", which this CPU cannot run");
        }
        known += (known.empty() ? "" : ", ") + std::string(i.name);
    }
    throw std::invalid_argument(who + " asks for " + name + ", which is not one of " + known);
}

const Implementation& chosen_by_environment() {
    const char* name = std::getenv("FEWBITS_ISA");
    if (name != nullptr && *name != '\0') return find(name, "the environment variable FEWBITS_ISA");
    for (const Implementation& i : implementations())
        if (i.runs_here()) return i;
    return implementations().back();
}

}  // namespace

const std::vector<Implementation>& implementations() {
    static const std::vector<Implementation> table = {
#ifdef FEWBITS_X86
#ifdef FEWBITS_AMX
        {"amx", has_amx, avx512_bf16::kernels, amx::products, avx512::systems, true},
#endif
        {"avx512_bf16", has_avx512_bf16, avx512_bf16::kernels, avx512_bf16::products, avx512::systems, true},
        {"avx512_vnni", has_avx512_vnni, avx512::kernels, avx512_vnni::products, avx512::systems, true},
        {"avx512", has_avx512, avx512::kernels, avx512::products, avx512::systems, false},
        {"avx2_vnni", has_avx2_vnni, avx2::kernels, avx2_vnni::products, avx2::systems, true},
        {"avx2", has_avx2, avx2::kernels, avx2::products, avx2::systems, false},
#endif
        {"baseline", anywhere, baseline::kernels, baseline::products, baseline::systems, false},
    };
    return table;
}

const Implementation& active() {
    if (const Implementation* implementation = forced.load()) return *implementation;
    static const Implementation& chosen = chosen_by_environment();  // tried again while it throws
    return chosen;
}

void force(const std::string& name) { forced.store(name.empty() ? nullptr : &find(name, "force_isa")); }

}  // namespace fewbits
