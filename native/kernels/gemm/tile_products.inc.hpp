// Products of bfloat16 by the tiles of AMX: registers of 16 rows of 64 bytes, and an instruction that adds to 16 by 16 sums the
// products of 16 rows with 32 values each and as many columns. Pieces of panels lie as tiles want them: each line of a has its 32
// values side by side, each lane of b a pair of every column.
#pragma once

#include "kernels/gemm/panels.inc.hpp"

namespace tile_products {

#if defined(FEWBITS_TILES)

// The instructions name their registers in their own text, so that only macros can pass them on.
#if defined(FEWBITS_EMULATE_TILES)
// The same in plain code, which runs on any CPU and which a sanitizer follows into memory.
// A tile's rows are a step apart in memory, and always 16 of 64 bytes here.
struct Emulated {
    alignas(64) u32 words[8][16][16];
};
inline thread_local Emulated registers;

inline void emulated_zero(int t) { __builtin_memset(registers.words[t], 0, sizeof(registers.words[t])); }
inline void emulated_load(int t, const void* from, i64 step) {
    for (i64 row = 0; row < 16; ++row) __builtin_memcpy(registers.words[t][row], static_cast<const char*>(from) + row * step, 64);
}
inline void emulated_store(int t, void* to, i64 step) {
    for (i64 row = 0; row < 16; ++row) __builtin_memcpy(static_cast<char*>(to) + row * step, registers.words[t][row], 64);
}
// Even and odd values are added apart, then to each other, then to the sum; what is subnormal is zero.
inline void emulated_add(int sum, int a, int b) {
    const auto real = [](u32 bits) { return __builtin_bit_cast(float, bits & 0x7f800000u ? bits : bits & 0x80000000u); };
    const auto normal = [&](float x) { return real(__builtin_bit_cast(u32, x)); };
    for (i64 i = 0; i < 16; ++i)
        for (i64 j = 0; j < 16; ++j) {
            float even = 0.0f, odd = 0.0f;
            for (i64 lane = 0; lane < 16; ++lane) {
                const u32 of_a = registers.words[a][i][lane], of_b = registers.words[b][lane][j];
                even = normal(__builtin_fmaf(real(of_a << 16), real(of_b << 16), even));
                odd = normal(__builtin_fmaf(real(of_a & 0xffff0000u), real(of_b & 0xffff0000u), odd));
            }
            u32& to = registers.words[sum][i][j];
            to = __builtin_bit_cast(u32, normal(real(to) + normal(even + odd)));
        }
}
#define FEWBITS_TILE_ZERO(t) tile_products::emulated_zero(t)
#define FEWBITS_TILE_LOAD(t, from, step) tile_products::emulated_load(t, from, step)
#define FEWBITS_TILE_STORE(t, to, step) tile_products::emulated_store(t, to, step)
#define FEWBITS_TILE_ADD(sum, a, b) tile_products::emulated_add(sum, a, b)
struct Configuration {};
inline Configuration configure() { return {}; }
inline void restore(const Configuration&) {}
#else
#define FEWBITS_TILE_ZERO(t) _tile_zero(t)
#define FEWBITS_TILE_LOAD(t, from, step) _tile_loadd(t, from, step)
#define FEWBITS_TILE_STORE(t, to, step) _tile_stored(t, to, step)
#define FEWBITS_TILE_ADD(sum, a, b) _tile_dpbf16ps(sum, a, b)

// What LDTILECFG reads: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, table 18-1.
struct alignas(64) Configuration {
    std::uint8_t palette, start_row, reserved[14];
    u16 bytes[16];          // of a row of each tile
    std::uint8_t rows[16];
};
static_assert(sizeof(Configuration) == 64);

inline void restore(const Configuration& before) { asm volatile("ldtilecfg %0" : : "m"(before)); }

// Makes a thread's tiles whole. How they were configured before is to be restored, as other libraries may count on it; what was
// in them is lost. The intrinsics of GCC 12 tell the compiler of 8 of the 64 bytes.
inline Configuration configure() {
    Configuration before{}, whole{};
    asm volatile("sttilecfg %0" : "=m"(before));
    whole.palette = 1;
    for (int t = 0; t < 8; ++t) {
        whole.bytes[t] = 64;
        whole.rows[t] = 16;
    }
    restore(whole);
    return before;
}
#endif

// Two tiles of sums beside each other and two below, 0 to 3: each of the tiles that are read, 4 and 5 of a, 6 and 7 of b, serves
// two products.
constexpr i64 lines = panels::tile_lines, lanes = 16, bytes_of_lane = lines * i64{sizeof(u32)};

// Sums stay in their tiles while a stretch of two panels passes; `row_step` is between rows of an item's sums in memory.
inline void begin_sums() {
    FEWBITS_TILE_ZERO(0);
    FEWBITS_TILE_ZERO(1);
    FEWBITS_TILE_ZERO(2);
    FEWBITS_TILE_ZERO(3);
}
inline void load_sums(const float* y, i64 row_step) {
    const i64 step = row_step * i64{sizeof(float)};
    FEWBITS_TILE_LOAD(0, y, step);
    FEWBITS_TILE_LOAD(1, y + 16, step);
    FEWBITS_TILE_LOAD(2, y + 16 * row_step, step);
    FEWBITS_TILE_LOAD(3, y + 16 * row_step + 16, step);
}
inline void store_sums(float* y, i64 row_step) {
    const i64 step = row_step * i64{sizeof(float)};
    FEWBITS_TILE_STORE(0, y, step);
    FEWBITS_TILE_STORE(1, y + 16, step);
    FEWBITS_TILE_STORE(2, y + 16 * row_step, step);
    FEWBITS_TILE_STORE(3, y + 16 * row_step + 16, step);
}
// A line of a has `in_line` lanes in its piece.
inline void load_a(const u32* a, i64 in_line) {
    FEWBITS_TILE_LOAD(4, a, in_line * i64{sizeof(u32)});
    FEWBITS_TILE_LOAD(5, a + 16 * in_line, in_line * i64{sizeof(u32)});
}
// A lane of b has a pair of each of the 32 columns; the first 16 are one tile, the others the next.
inline void load_b(const u32* b) {
    FEWBITS_TILE_LOAD(6, b, bytes_of_lane);
    FEWBITS_TILE_LOAD(7, b + 16, bytes_of_lane);
}
// Four products for four tiles that were read: 64 cycles, in which 4 KiB come from the cache.
inline void add_products() {
    FEWBITS_TILE_ADD(0, 4, 6);
    FEWBITS_TILE_ADD(1, 4, 7);
    FEWBITS_TILE_ADD(2, 5, 6);
    FEWBITS_TILE_ADD(3, 5, 7);
}

// Adds the products of `count` pieces, or begins with them; of two terms the small ones of a piece first. The compiler is told
// at both ends that memory is read and written: not every one knows it of these instructions.
template <bool two_terms>
inline void add_pairs(i64 count, const u32* a, const u32* b, float* y, i64 row_step, bool begin, panels::Ahead ahead) {
    constexpr i64 in_line = two_terms ? 2 * lanes : lanes;
    asm volatile("" ::: "memory");
    if (begin)
        begin_sums();
    else
        load_sums(y, row_step);
    for (i64 piece = 0; piece < count; ++piece, a += lines * in_line, b += lines * in_line) {
        for (i64 line = 0; line < ahead.of_b.lines; ++line, ahead.of_b.from += panels::line_words) __builtin_prefetch(ahead.of_b.from, 0, 2);
        for (i64 line = 0; line < ahead.of_a.lines; ++line, ahead.of_a.from += panels::line_words) __builtin_prefetch(ahead.of_a.from, 0, 2);
        load_b(b);
        if constexpr (two_terms) {
            load_a(a + lanes, in_line);
            add_products();
            load_a(a, in_line);
            add_products();
            load_b(b + lines * lanes);
            add_products();
        } else {
            load_a(a, in_line);
            add_products();
        }
    }
    store_sums(y, row_step);
    asm volatile("" ::: "memory");
}

#endif

}  // namespace tile_products
