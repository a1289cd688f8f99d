// Matrix products of bfloat16 operands with float32 sums, or of bytes with int32 sums, by AMX or, without AMX, by the
// instructions vdpbf16ps (AVX512-BF16) and vpdpbusd (AVX512-VNNI).
//
// All of them multiply groups of neighbours along the inner dimension K. A word is such a group, of two bfloat16 or four
// bytes: 32 bits. Below, K is counted in bfloat16. The right operand is packed in panels of 64 columns, each [K / 2][64]
// words, or is a matrix [K / 2][columns] of words. The left operand is row-major with K contiguous, or packed by
// pack_rows.
//
// Without AMX, one thread computes a block of rows times a block of columns with a kernel of up to 6 rows and 64
// columns, whose sums stay in 24 of the 32 registers. With AMX (tiles.h), the kernel has 32 rows and 32 columns. The order
// of the additions along K does not depend on the number of rows, columns or threads, so neither do the results.
#pragma once
#include <algorithm>
#include <utility>

#include "common.h"
#include "tiles.h"

namespace lambert {

constexpr int kPanel = 64;  // columns of a panel
constexpr int kRows = 6;    // rows of the kernel without AMX
constexpr int kLanes = 16;  // float32 elements of a register

inline long pairs(long k) { return (k + 1) / 2; }
inline long panels(long n) { return (n + kPanel - 1) / kPanel; }
// Words of K in a packed operand. Those after the last pair are zeros.
inline long padded(long count) { return (count + kTile - 1) / kTile * kTile; }

// Calls work(0) to work(N - 1) with numbers that are constants for the compiler, as the indices of registers must be.
template <class Work, int... I>
inline __attribute__((always_inline)) void unroll(std::integer_sequence<int, I...>, const Work& work) {
    (work(std::integral_constant<int, I>()), ...);
}
template <int N, class Work>
inline __attribute__((always_inline)) void unroll(const Work& work) {
    unroll(std::make_integer_sequence<int, N>(), work);
}

// Computes R rows times V registers of columns over `count` words of K, and calls epilogue(row, column, sums) for each
// register. The sums stay in registers: with loops instead of `unroll`, GCC writes them to memory and reads them again every
// 16 words.
template <class Word, int R, int V, class Epilogue>
inline __attribute__((always_inline)) void tile(
    Left left, Right right, long count, long row, long column, Epilogue& epilogue) {
    typename Word::Sums sums[R][V];
    unroll<R * V>([&](auto i) __attribute__((always_inline)) { sums[i / V][i % V] = Word::zero(); });
    for (long k = 0; k < count; ++k, right.at += right.stride) {
        const uint32_t* at = left.at + k / kTile * left.step + k % kTile;
        __m512i columns[V];
        unroll<V>([&](auto v) __attribute__((always_inline)) { columns[v] = _mm512_loadu_si512(right.at + v * kLanes); });
        unroll<R>([&](auto r) __attribute__((always_inline)) {
            const __m512i word = _mm512_set1_epi32((int)at[r * left.stride]);
            unroll<V>([&](auto v) __attribute__((always_inline)) { sums[r][v] = Word::add(sums[r][v], word, columns[v]); });
        });
    }
    unroll<R * V>([&](auto i) __attribute__((always_inline)) {
        epilogue(row + i / V, column + i % V * kLanes, sums[i / V][i % V]);
    });
}

// Everything is inlined into it: a call would write all registers to memory.
template <class Word, int V, class Epilogue>
__attribute__((flatten)) void strip(Left left, Right right, long count, int rows, long row, long column, Epilogue& epilogue) {
    switch (rows) {
        case 6: return tile<Word, 6, V>(left, right, count, row, column, epilogue);
        case 5: return tile<Word, 5, V>(left, right, count, row, column, epilogue);
        case 4: return tile<Word, 4, V>(left, right, count, row, column, epilogue);
        case 3: return tile<Word, 3, V>(left, right, count, row, column, epilogue);
        case 2: return tile<Word, 2, V>(left, right, count, row, column, epilogue);
        case 1: return tile<Word, 1, V>(left, right, count, row, column, epilogue);
    }
}

// Multiplies `rows` rows of `left`, the first of which is number `row`, with up to 64 columns of `right`.
template <class Word = Pair, class Epilogue>
inline void times_panel(
    Left left, Right right, long count, long rows, long row, long column, long columns, Epilogue& epilogue) {
    if (has_amx()) return times_tiles<Word>(left, right, count, rows, row, column, columns, epilogue);
    for (long r = 0; r < rows; r += kRows) {
        const int height = (int)std::min<long>(kRows, rows - r);
        const Left part = left.from(r);
        switch ((columns + kLanes - 1) / kLanes) {
            case 1: strip<Word, 1>(part, right, count, height, row + r, column, epilogue); break;
            case 2: strip<Word, 2>(part, right, count, height, row + r, column, epilogue); break;
            case 3: strip<Word, 3>(part, right, count, height, row + r, column, epilogue); break;
            default: strip<Word, 4>(part, right, count, height, row + r, column, epilogue); break;
        }
    }
}

// Exchanges rows and columns of 16 x 16 words.
inline void transpose(__m512i (&rows)[16]) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xDD);
    }
    for (int i = 0; i < 4; ++i) {
        rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
        rows[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        rows[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
    }
}

inline const __m512i kLowPairs = _mm512_set_epi16(
    47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
inline const __m512i kHighPairs = _mm512_set_epi16(
    63, 31, 62, 30, 61, 29, 60, 28, 59, 27, 58, 26, 57, 25, 56, 24, 55, 23, 54, 22, 53, 21, 52, 20, 51, 19, 50, 18, 49,
    17, 48, 16);

// Words (row, row + 1) of 32 columns of a row-major matrix of `k` rows, in two registers; zeros behind its last row.
struct Pairs {
    __m512i low, high;
    Pairs(const bf16* from, long stride, long row, long k, __mmask32 mask) {
        // Not a load without lanes: beyond the matrix there may be no memory, which takes such a load hundreds of cycles.
        const __m512i zero = _mm512_setzero_si512();
        const __m512i even = row < k ? _mm512_maskz_loadu_epi16(mask, from + row * stride) : zero;
        const __m512i odd = row + 1 < k ? _mm512_maskz_loadu_epi16(mask, from + (row + 1) * stride) : zero;
        low = _mm512_permutex2var_epi16(even, kLowPairs, odd);
        high = _mm512_permutex2var_epi16(even, kHighPairs, odd);
    }
};

inline __mmask32 lanes32(long count) { return count >= 32 ? ~0u : count <= 0 ? 0 : (1u << count) - 1; }

// Packs up to 64 columns of a row-major matrix [k, columns] into one panel of padded(pairs(k)) words: the inner dimension
// runs over its rows.
inline void pack_down(const bf16* from, long stride, long k, long columns, uint32_t* panel) {
    for (long row = 0; row < 2 * padded(pairs(k)); row += 2, panel += kPanel) {
        for (int half = 0; half < kPanel; half += 32) {
            const Pairs words(from + half, stride, row, k, lanes32(columns - half));
            _mm512_storeu_si512(panel + half, words.low);
            _mm512_storeu_si512(panel + half + 16, words.high);
        }
    }
}

// Packs up to 64 columns of a row-major matrix [k, columns] as the rows of a left operand, in blocks of 16 words of all
// 64 rows: so neither writing nor multiplying touches memory at many distant places.
inline void pack_rows(const bf16* from, long stride, long k, long columns, uint32_t* to) {
    for (long at = 0; at < padded(pairs(k)); at += kTile, to += kTile * kPanel) {
        for (long column = 0; column < columns; column += 32) {
            __m512i low[16], high[16];
            for (int i = 0; i < 16; ++i) {
                const Pairs words(from + column, stride, 2 * (at + i), k, lanes32(columns - column));
                low[i] = words.low, high[i] = words.high;
            }
            transpose(low);
            transpose(high);
            for (int i = 0; i < 16; ++i) {
                _mm512_storeu_si512(to + (column + i) * kTile, low[i]);
                _mm512_storeu_si512(to + (column + 16 + i) * kTile, high[i]);
            }
        }
    }
}

// What pack_rows has written.
inline Left packed_rows(const uint32_t* from) { return {from, kTile, kTile * kPanel, true}; }

// Packs up to 64 rows of a row-major matrix [rows, k], k even, into one panel of padded(k / 2) words: the inner dimension
// runs along its rows.
inline void pack_across(const bf16* from, long stride, long rows, long k, uint32_t* panel) {
    const long count = k / 2;
    for (long first = 0; first < kPanel; first += 16) {
        for (long at = 0; at < count; at += 16) {
            __m512i block[16];
            const __mmask16 mask = lanes(count - at);
            for (int r = 0; r < 16; ++r)
                block[r] = first + r < rows ? _mm512_maskz_loadu_epi32(mask, from + (first + r) * stride + 2 * at)
                                            : _mm512_setzero_si512();
            transpose(block);
            for (long i = 0; i < 16; ++i) _mm512_storeu_si512(panel + (at + i) * kPanel + first, block[i]);
        }
    }
}

}  // namespace lambert
