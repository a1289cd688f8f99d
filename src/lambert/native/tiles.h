// Matrix products by AMX: eight tiles of 16 rows of 64 bytes. One instruction multiplies 16 rows of 16 words with 16
// words of 16 columns.
//
// Source: Intel, "Intel 64 and IA-32 architectures software developer's manual", volume 1, chapter 18 (TDPBF16PS, TDPBUSD).
#pragma once
#include <algorithm>
#include <cstdint>

#include "common.h"

namespace lambert {

constexpr long kTile = 16;          // rows of a tile, and words of a row
constexpr long kTileRows = 2 * kTile;  // rows of the kernel

// The left operand: word (row, k) is at[row * stride + k / 16 * step + k % 16]. If it is padded, rows and words up to the
// next multiple of 16 may be read.
struct Left {
    const uint32_t* at;
    long stride, step;
    bool padded;
    Left from(long row) const { return {at + row * stride, stride, step, padded}; }
};

// A row-major matrix whose rows are `stride` words apart.
inline Left rows_of(const void* matrix, long stride, bool padded = false) {
    return {static_cast<const uint32_t*>(matrix), stride, kTile, padded};
}

// The right operand: word (k, column) is at[k * stride + column].
struct Right {
    const uint32_t* at;
    long stride;
};

extern bool use_amx;
// Returns whether products use AMX: the processor has it, the system lets this process use it, and nobody forbade it.
inline bool has_amx() { return use_amx; }

// The instructions. GCC's own intrinsics do not say that they read and write memory.
inline void load_shapes(const void* from) { asm volatile("ldtilecfg (%0)" ::"r"(from) : "memory"); }
inline void release_tiles() { asm volatile("tilerelease"); }
template <int N>
inline void zero_tile() {
    asm volatile("tilezero %%tmm%c0" ::"n"(N));
}
template <int N>
inline void load_tile(const void* from, long bytes) {  // bytes: from row to row
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(bytes), "n"(N) : "memory");
}
template <int N>
inline void store_tile(void* to, long bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(bytes), "n"(N) : "memory");
}

// What a word of the operands is: two bfloat16, whose products are added in float32.
struct Pair {
    using Sums = __m512;
    static Sums zero() { return _mm512_setzero_ps(); }
    static Sums add(Sums sums, __m512i left, __m512i right) {
        return _mm512_dpbf16_ps(sums, (__m512bh)left, (__m512bh)right);
    }
    template <int S, int L, int R>
    static void add_tiles() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(S), "n"(L), "n"(R));
    }
    static Sums load(const void* from) { return _mm512_load_ps(from); }
};

// Or four unsigned bytes on the left and four signed ones on the right, whose products are added in int32.
struct Bytes {
    using Sums = __m512i;
    static Sums zero() { return _mm512_setzero_si512(); }
    static Sums add(Sums sums, __m512i left, __m512i right) {
        // Not GCC's intrinsic, for which it copies the sums and loads the columns again for each row: half as fast.
        asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(left), "v"(right));
        return sums;
    }
    template <int S, int L, int R>
    static void add_tiles() {
        asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"n"(S), "n"(L), "n"(R));
    }
    static Sums load(const void* from) { return _mm512_load_si512(from); }
};

// Gives the thread its tiles. A task that multiplies has one.
class Tiles {
  public:
    Tiles() {
        if (!has_amx()) return;
        alignas(64) Shapes shapes{};
        shapes.palette = 1;
        std::fill_n(shapes.row_bytes, 8, 64);
        std::fill_n(shapes.rows, 8, kTile);
        load_shapes(&shapes);
    }
    ~Tiles() {
        if (has_amx()) release_tiles();
    }
    Tiles(const Tiles&) = delete;

  private:
    struct Shapes {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    };
};

// Loads a tile of `rows` rows and `words` words into tile number N; by way of `copy`, with zeros behind them, if reading
// more is not allowed.
template <int N>
inline __attribute__((always_inline)) void load_left(Left left, long rows, long words, uint32_t* copy) {
    if (left.padded || (rows >= kTile && words >= kTile)) return load_tile<N>(left.at, left.stride * 4);
    for (long r = 0; r < kTile; ++r)
        _mm512_store_si512(copy + r * kTile, r < rows ? _mm512_maskz_loadu_epi32(lanes(words), left.at + r * left.stride)
                                                      : _mm512_setzero_si512());
    load_tile<N>(copy, kTile * 4);
}

// Calls epilogue(row, column, sums) for the `rows` rows of tile number N.
template <class Word, int N, class Epilogue>
inline __attribute__((always_inline)) void unload(long rows, long row, long column, Epilogue& epilogue) {
    alignas(64) uint32_t sums[kTile * kTile];
    store_tile<N>(sums, kTile * 4);
    for (long r = 0; r < std::min(rows, kTile); ++r) epilogue(row + r, column, Word::load(sums + r * kTile));
}

// Multiplies up to 16 * R rows with 16 * C columns; R and C are 1 or 2. Tiles 0 to 3 are sums, 4 and 5 left, 6 and 7 right.
template <class Word, int R, int C, class Epilogue>
inline void tiles(Left left, Right right, long count, long rows, long row, long column, Epilogue& epilogue) {
    alignas(64) uint32_t copy[kTile * kTile];
    zero_tile<0>();
    if (C > 1) zero_tile<1>();
    if (R > 1) zero_tile<2>();
    if (R > 1 && C > 1) zero_tile<3>();
    for (long k = 0; k < count; k += kTile) {
        load_left<4>(left, rows, count - k, copy);
        load_tile<6>(right.at + k * right.stride, right.stride * 4);
        Word::template add_tiles<0, 4, 6>();
        if (C > 1) {
            load_tile<7>(right.at + k * right.stride + kTile, right.stride * 4);
            Word::template add_tiles<1, 4, 7>();
        }
        if (R > 1) {
            load_left<5>(left.from(kTile), rows - kTile, count - k, copy);
            Word::template add_tiles<2, 5, 6>();
            if (C > 1) Word::template add_tiles<3, 5, 7>();
        }
        left.at += left.step;
    }
    unload<Word, 0>(rows, row, column, epilogue);
    if (C > 1) unload<Word, 1>(rows, row, column + kTile, epilogue);
    if (R > 1) unload<Word, 2>(rows - kTile, row + kTile, column, epilogue);
    if (R > 1 && C > 1) unload<Word, 3>(rows - kTile, row + kTile, column + kTile, epilogue);
}

// times_panel of gemm.h with AMX. The words of `right` behind the last one, up to a multiple of 16, are zeros.
template <class Word, class Epilogue>
inline void times_tiles(
    Left left, Right right, long count, long rows, long row, long column, long columns, Epilogue& epilogue) {
    for (long r = 0; r < rows; r += kTileRows) {
        const Left part = left.from(r);
        for (long c = 0; c < columns; c += 2 * kTile) {
            const Right side{right.at + c, right.stride};
            const bool tall = rows - r > kTile, wide = columns - c > kTile;
            const auto multiply = tall ? wide ? tiles<Word, 2, 2, Epilogue> : tiles<Word, 2, 1, Epilogue>
                                       : wide ? tiles<Word, 1, 2, Epilogue> : tiles<Word, 1, 1, Epilogue>;
            multiply(part, side, count, rows - r, row + r, column + c, epilogue);
        }
    }
}

}  // namespace lambert
