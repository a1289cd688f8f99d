// Linear layers: y = x W' + b, and its gradients. Weights are packed once after each update.
//
// Matrices are row-major and contiguous. T: rows of x and y. D: width of x. F: width of y, the rows of W [F, D].
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "activation.h"
#include "pack.h"

namespace lambert {

constexpr long kBlockRows = 96;                // rows of a task
constexpr long kBlockWords = 1 << 17;          // words of the right operand that a task keeps in its second-level cache
constexpr long kInner = 2048;                  // words of K that are multiplied at a time
constexpr long kSmall = 1 << 18;               // multiply-adds that one thread computes before a second one helps

// Calls epilogue(row, column, sums) for rows `first` to `last` and panels `begin` to `end`, with sums in memory between parts
// of K.
template <class Epilogue>
void in_parts(const uint32_t* left, const uint32_t* right, long count, long columns, long first, long last, long begin,
              long end, Epilogue& epilogue) {
    const long words = padded(count) * kPanel;
    alignas(64) float sums[kBlockRows * kPanel];
    for (long p = begin; p < end; ++p) {
        const long used = std::min<long>(kPanel, columns - p * kPanel);
        std::memset(sums, 0, sizeof sums);
        auto add = [&](long row, long column, __m512 part) {
            float* to = sums + (row - first) * kPanel + column;
            _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), part));
        };
        for (long k = 0; k < count; k += kInner)
            times_panel(rows_of(left + first * count + k, count), {right + p * words + k * kPanel, kPanel},
                        std::min(kInner, count - k), last - first, first, 0, used, add);
        for (long row = first; row < last; ++row)
            for (long column = 0; column < used; column += kLanes)
                epilogue(row, p * kPanel + column, _mm512_load_ps(sums + (row - first) * kPanel + column));
    }
}

// Calls epilogue(row, column, sums) for all registers of left [rows, 2 * count] times the packed right operand.
template <class Word = Pair, class Epilogue>
void product(const uint32_t* left, const uint32_t* right, long rows, long count, long columns, long threads,
             Epilogue epilogue) {
    const long width = panels(columns), words = padded(count) * kPanel;  // of a panel
    const long wide = std::clamp<long>(kBlockWords / words, 1, width), height = has_amx() ? kTileRows : kRows;
    const long row_blocks = (rows + kBlockRows - 1) / kBlockRows, column_blocks = (width + wide - 1) / wide;
    if (rows * columns * count < kSmall) threads = 1;
    each(row_blocks * column_blocks, threads, [&](long task) {
        // Consecutive tasks share the columns, which are then in the cache that the cores share.
        const long first = task % row_blocks * kBlockRows, last = std::min(rows, first + kBlockRows);
        const long begin = task / row_blocks * wide, end = std::min(width, begin + wide);
        Epilogue own = epilogue;
        const Tiles tiles;
        if (count <= kInner) {
            for (long row = first; row < last; row += height)
                for (long p = begin; p < end; ++p)
                    times_panel<Word>(rows_of(left + row * count, count), {right + p * words, kPanel}, count,
                                      std::min(height, last - row), row, p * kPanel,
                                      std::min<long>(kPanel, columns - p * kPanel), own);
            return;
        }
        if constexpr (std::is_same_v<Word, Pair>) in_parts(left, right, count, columns, first, last, begin, end, own);
    });
}

// y = sums + b in bfloat16, gelu(y), or both.
struct WithBias {
    bf16 *y, *activated;
    const float* bias;
    long columns;
    long form;  // of gelu: 0 by the normal distribution, 1 by tanh
    void operator()(long row, long column, __m512 sums) const {
        const __mmask16 mask = lanes(columns - column);
        if (bias) sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(mask, bias + column));
        const long at = row * columns + column;
        const __m256i rounded = narrow(sums);
        if (y) _mm256_mask_storeu_epi16(y + at, mask, rounded);
        if (activated) store_bf16(activated + at, mask, form ? gelu_tanh(widen(rounded)) : gelu(widen(rounded)));
    }
};

// y = (sums - shift) times the scales of row and column, + b, in bfloat16, and optionally gelu of that.
struct Scaled {
    bf16* y;
    const float *steps, *scales, *bias;  // of rows; of columns
    const int32_t* shifts;               // of columns
    long columns, form;                  // of gelu; -1: none
    void operator()(long row, long column, __m512i sums) const {
        const __mmask16 mask = lanes(columns - column);
        const __m512 whole = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, _mm512_maskz_loadu_epi32(mask, shifts + column)));
        const __m512 scale = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, scales + column), _mm512_set1_ps(steps[row]));
        __m512 value = _mm512_fmadd_ps(whole, scale, _mm512_maskz_loadu_ps(mask, bias + column));
        if (form >= 0) value = form ? gelu_tanh(value) : gelu(value);
        store_bf16(y + row * columns + column, mask, value);
    }
};

// Rounds a row of D elements to bytes, 128 for zero, and returns the step between them.
inline float quantize(const bf16* x, long D, uint8_t* bytes) {
    __m512 most = _mm512_setzero_ps();
    for (long d = 0; d < D; d += kLanes)
        most = _mm512_max_ps(most, _mm512_abs_ps(load_bf16(x + d, lanes(D - d))));
    const float step = std::max(_mm512_reduce_max_ps(most) / 127, 1e-30f);
    const __m512 inverse = _mm512_set1_ps(1 / step);
    for (long d = 0; d < D; d += kLanes) {
        const __mmask16 mask = lanes(D - d);
        const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(load_bf16(x + d, mask), inverse));
        _mm512_mask_cvtusepi32_storeu_epi8(bytes + d, mask, _mm512_add_epi32(whole, _mm512_set1_epi32(128)));
    }
    return step;
}

// Rounds a row of D weights to int8 times a scale of its own. Returns the scale, and in `sum` the sum of the integers.
inline float round_weights(const float* weight, long D, int8_t* rounded, int32_t& sum) {
    __m512 most = _mm512_setzero_ps();
    for (long d = 0; d < D; d += kLanes)
        most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_maskz_loadu_ps(lanes(D - d), weight + d)));
    const float scale = std::max(_mm512_reduce_max_ps(most) / 127, std::numeric_limits<float>::min());
    __m512i total = _mm512_setzero_si512();
    for (long d = 0; d < D; d += kLanes) {
        const __mmask16 mask = lanes(D - d);
        const __m512 parts = _mm512_div_ps(_mm512_maskz_loadu_ps(mask, weight + d), _mm512_set1_ps(scale));
        const __m512i whole = _mm512_cvtps_epi32(parts);
        total = _mm512_add_epi32(total, whole);
        _mm512_mask_cvtepi32_storeu_epi8(rounded + d, mask, whole);
    }
    sum = _mm512_reduce_add_epi32(total);
    return scale;
}

// The gradient of x: sums, plus the gradient that reached x by another way, or times the derivative of gelu.
struct Gradient {
    bf16* out;
    const bf16 *other, *before;  // other gradient; input of gelu
    long columns, form;
    void operator()(long row, long column, __m512 sums) const {
        const __mmask16 mask = lanes(columns - column);
        const long at = row * columns + column;
        if (other) sums = _mm512_add_ps(sums, load_bf16(other + at, mask));
        if (before) {
            const __m512 x = load_bf16(before + at, mask);
            sums = _mm512_mul_ps(sums, form ? gelu_tanh_gradient(x) : gelu_gradient(x));
        }
        store_bf16(out + at, mask, sums);
    }
};

// Adds or writes a block of the gradient of a weight [F, D].
struct Into {
    float* to;
    long columns;
    bool add;
    void operator()(long row, long column, __m512 sums) const {
        const __mmask16 mask = lanes(columns - column);
        float* at = to + row * columns + column;
        if (add) sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(mask, at));
        _mm512_mask_storeu_ps(at, mask, sums);
    }
};

// Where the gradients of one of several layers go: those of its weight [rows, D], whose rows begin at `offset` of all rows,
// and of its bias. Each may be null. Python builds it.
struct LayerGradients {
    long offset, rows;
    float* weight;
    long add_weight;  // whether it is added to the values there
    float* bias;
    long add_bias;
};

}  // namespace lambert

using namespace lambert;

extern "C" {

// Packs a weight W [F, D] (`Packed`).
void lambert_pack_weight(const float* weight, long F, long D, long offset, long total, uint32_t* forward,
                         uint32_t* backward, long threads) {
    const Packed copies{forward, backward, offset, total};
    each(panels(F), threads, [&](long p) {
        copies.write(weight + p * kPanel * D, p * kPanel, std::min<long>(kPanel, F - p * kPanel), D);
    });
}

// y [T, F] = x [T, D] W' + b, and gelu(y) into `activated`. One of them may be null.
void lambert_linear(const bf16* x, const uint32_t* forward, const float* bias, bf16* y, bf16* activated, long form, long T,
                    long D, long F, long threads) {
    product((const uint32_t*)x, forward, T, D / 2, F, threads, WithBias{y, activated, bias, F, form});
}

// Rounds weights [F, D], D a multiple of 4, to int8 and packs them for lambert_linear_bytes, with the scale of each row and
// 128 times the sum of its integers. A weight may be the rows from `offset` of several weights that are multiplied at once;
// then `offset` and F are multiples of 64, or it is the last. `packed`: panels of all rows * 64 * padded(D / 4) words.
void lambert_pack_bytes(const float* weight, long F, long D, long offset, uint32_t* packed, float* scales, int32_t* shifts,
                        long threads) {
    each(panels(F), threads, [&](long p) {
        const long rows = std::min<long>(kPanel, F - p * kPanel), first = offset + p * kPanel;
        const std::unique_ptr<int8_t[]> rounded(new int8_t[rows * D]);
        for (long row = 0; row < rows; ++row) {
            int32_t sum;
            scales[first + row] = round_weights(weight + (p * kPanel + row) * D, D, rounded.get() + row * D, sum);
            shifts[first + row] = 128 * sum;
        }
        pack_across((const bf16*)rounded.get(), D / 2, rows, D / 2, packed + first / kPanel * padded(D / 4) * kPanel);
    });
}

// Rounds each row of x [T, D] to bytes from 1 to 255, 128 for zero, times a step of its own.
void lambert_quantize(const bf16* x, long T, long D, uint8_t* bytes, float* steps, long threads) {
    constexpr long kRowsOfTask = 16;
    each((T + kRowsOfTask - 1) / kRowsOfTask, threads, [&](long task) {
        for (long row = task * kRowsOfTask; row < std::min(T, (task + 1) * kRowsOfTask); ++row)
            steps[row] = quantize(x + row * D, D, bytes + row * D);
    });
}

// y [T, F] = x W' + b, or its gelu, for x = steps * (bytes - 128) and W = scales * the packed weights. `shifts` [F] are
// 128 times the sums of the packed weights. D is at most 8192. form: of gelu, or -1 for none.
void lambert_linear_bytes(const uint8_t* bytes, const float* steps, const uint32_t* packed, const float* scales,
                          const int32_t* shifts, const float* bias, bf16* y, long form, long T, long D, long F,
                          long threads) {
    product<Bytes>((const uint32_t*)bytes, packed, T, D / 4, F, threads, Scaled{y, steps, scales, bias, shifts, F, form});
}

// dx [T, D] = dy [T, F] W + other, or (dy W) times the derivative of gelu at `before`. `other` and `before` may be null.
void lambert_linear_input(const bf16* dy, const uint32_t* backward, const bf16* other, const bf16* before, bf16* dx,
                          long form, long T, long F, long D, long threads) {
    product((const uint32_t*)dy, backward, T, F / 2, D, threads, Gradient{dx, other, before, D, form});
}

// dW (+)= dy' x, and db (+)= the sums of dy over rows, for dy [T, F], x [T, D] and `count` layers: columns of dy from a
// multiple of 64.
void lambert_linear_weights(const bf16* dy, const bf16* x, long T, long F, long D, const LayerGradients* layers, long count,
                            long threads) {
    const long used = pairs(T), words = padded(used), high = panels(F), wide = panels(D);
    const long workers = std::max<long>(1, std::min(threads, high));
    std::vector<std::pair<long, long>> owners(high, {-1, 0});  // of each panel of dy: a layer, and one of its panels
    for (long w = 0; w < count; ++w)
        for (long p = 0; p < panels(layers[w].rows); ++p) owners[layers[w].offset / kPanel + p] = {w, p};
    Scratch scratch;
    uint32_t *right = scratch.take<uint32_t>(wide * kPanel * words), *left = scratch.take<uint32_t>(workers * kPanel * words);
    each(wide, threads, [&](long p) {
        pack_down(x + p * kPanel, D, T, std::min<long>(kPanel, D - p * kPanel), right + p * words * kPanel);
    });
    // A worker packs a panel of dy, which then is in its cache for the product.
    std::atomic<long> next{0};
    each(workers, threads, [&](long worker) {
        const Tiles tiles;
        const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3F80);
        uint32_t* panel = left + worker * kPanel * words;
        for (long task; (task = next.fetch_add(1)) < high;) {
            const auto [w, p] = owners[task];
            if (w < 0) continue;
            const LayerGradients& layer = layers[w];
            const long first = task * kPanel, rows = std::min<long>(kPanel, layer.rows - p * kPanel);
            pack_rows(dy + first, F, T, rows, panel);
            for (long row = 0; layer.bias && row < rows; ++row) {
                __m512 total = _mm512_setzero_ps();
                for (long k = 0; k < words; k += kTile)
                    total = _mm512_dpbf16_ps(total, (__m512bh)_mm512_loadu_si512(panel + k * kPanel + row * kTile), ones);
                float& sum = layer.bias[p * kPanel + row];
                sum = _mm512_reduce_add_ps(total) + (layer.add_bias ? sum : 0.0f);
            }
            if (!layer.weight) continue;
            for (long k = 0; k == 0 || k < used; k += kInner / 2) {  // writes zeros if there are no rows
                Into into{layer.weight, D, layer.add_weight != 0 || k > 0};
                for (long q = 0; q < wide; ++q)
                    times_panel(packed_rows(panel + k * kPanel), {right + (q * words + k) * kPanel, kPanel},
                                std::min(kInner / 2, used - k), rows, p * kPanel, q * kPanel,
                                std::min<long>(kPanel, D - q * kPanel), into);
            }
        }
    });
}

}  // extern "C"
