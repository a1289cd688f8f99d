// Kernels that are limited by memory: each reads and writes its tensors once, where torch would do so for every
// operation.
//
// All tensors are row-major and contiguous: T rows of D elements, D a multiple of 32. Sums are in float32, in an order
// that does not depend on the number of threads. `threshold` and `key` are those of Drop; element (row, column) of a
// tensor has number row * D + column.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "common.h"

namespace lambert {
namespace {

constexpr long kLanes = 16;
constexpr long kStep = 32;  // elements for which Drop draws bits at once
constexpr long kRowsOfTask = 16;

inline __m512 load(const float* from) { return _mm512_loadu_ps(from); }
inline __m512 load(const bf16* from) { return widen(_mm256_loadu_si256((const __m256i*)from)); }
inline void store(float* to, __m512 values) { _mm512_storeu_ps(to, values); }
inline void store(bf16* to, __m512 values) { _mm256_storeu_si256((__m256i*)to, narrow(values)); }

// Memory of one task, aligned so that no load crosses cache lines.
struct Floats {
    float* at;
    explicit Floats(long count) : at((float*)std::aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64)) {}
    ~Floats() { std::free(at); }
    Floats(const Floats&) = delete;
};

// Calls visit(column, mask of 16 kept elements, 0 or 1 in turns) for a row whose first element has number `first`.
template <class Visit>
inline __attribute__((always_inline)) void each_kept(const Drop& drop, uint64_t first, long width, const Visit& visit) {
    for (long d = 0; d < width; d += kStep) {
        const __mmask32 kept = drop.threshold ? drop.kept(first + d) : ~0u;
        visit(d, (__mmask16)kept, 0);
        visit(d + kLanes, (__mmask16)(kept >> kLanes), 1);
    }
}

struct Norm {
    const float *gamma, *beta;
    float eps;
    float *mean, *rstd;  // [T]: results, which the backward pass needs
    bool centred = true; // whether the mean is subtracted
};

// Normalizes the row `values`, whose sum is `total`, and calls finish(column, mask, 16 elements of the result).
//
// Source: Ba, Kiros and Hinton, "Layer normalization", 2016; without a mean: Zhang and Sennrich, "Root mean square layer
// normalization", 2019.
template <class Finish>
inline void normalize(
    const Norm& norm, long row, const float* values, float total, long width, const Drop& drop, const Finish& finish) {
    const float mean = norm.centred ? total / width : 0;
    __m512 squares[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (long d = 0; d < width; d += kStep) {
        for (int half = 0; half < 2; ++half) {
            const __m512 from_mean = _mm512_sub_ps(load(values + d + half * kLanes), _mm512_set1_ps(mean));
            squares[half] = _mm512_fmadd_ps(from_mean, from_mean, squares[half]);
        }
    }
    const float rstd = 1 / std::sqrt(_mm512_reduce_add_ps(_mm512_add_ps(squares[0], squares[1])) / width + norm.eps);
    norm.mean[row] = mean;
    norm.rstd[row] = rstd;
    const __m512 scale = _mm512_set1_ps(rstd), shift = _mm512_set1_ps(-mean * rstd);
    each_kept(drop, row * width, width, [&](long d, __mmask16 kept, int) {
        const __m512 normal = _mm512_fmadd_ps(load(values + d), scale, shift);
        finish(d, kept, _mm512_fmadd_ps(normal, load(norm.gamma + d), load(norm.beta + d)));
    });
}

// What the backward pass of a norm reads and writes. The normalized values are computed again from `sum`.
struct NormGradient {
    const bf16 *dout, *sum;
    const float *mean, *rstd, *gamma;
    Drop drop;
    long width;
    const bf16* other;  // another gradient of the norm's input, or null
    bf16* dsum;  // the gradient of the norm's input
    bf16* dy;    // dsum through dropout, or null
    bool centred = true;
};

// Computes R rows, and adds their gradients of gamma and beta to `dgamma` and `dbeta`. `After`: dropout was applied to
// the norm's result, so it is applied to `dout` first.
template <int R, bool After>
inline void norm_gradient(const NormGradient& all, long row, float* dgamma, float* dbeta) {
    const long width = all.width;
    const __m512 kept_scale = _mm512_set1_ps(all.drop.scale);
    const bool drops = all.drop.threshold;
    __m512 scale[R], shift[R], sums[R], products[R];
    for (int r = 0; r < R; ++r) {
        scale[r] = _mm512_set1_ps(all.rstd[row + r]);
        shift[r] = _mm512_set1_ps(-all.mean[row + r] * all.rstd[row + r]);
        sums[r] = products[r] = _mm512_setzero_ps();
    }
    for (long d = 0; d < width; d += kStep) {
        __mmask32 kept[R];
        for (int r = 0; r < R; ++r) kept[r] = After && drops ? all.drop.kept((row + r) * width + d) : ~0u;
        for (long at = d; at < d + kStep; at += kLanes) {
            const __m512 gamma = load(all.gamma + at);
            __m512 gamma_sum = load(dgamma + at), beta_sum = load(dbeta + at);
            for (int r = 0; r < R; ++r) {
                const long element = (row + r) * width + at;
                __m512 grad = load(all.dout + element);
                if (After) grad = _mm512_maskz_mul_ps((__mmask16)(kept[r] >> (at - d)), grad, kept_scale);
                const __m512 normal = _mm512_fmadd_ps(load(all.sum + element), scale[r], shift[r]);
                beta_sum = _mm512_add_ps(beta_sum, grad);
                gamma_sum = _mm512_fmadd_ps(grad, normal, gamma_sum);
                const __m512 weighted = _mm512_mul_ps(grad, gamma);
                sums[r] = _mm512_add_ps(sums[r], weighted);
                products[r] = _mm512_fmadd_ps(weighted, normal, products[r]);
            }
            store(dgamma + at, gamma_sum);
            store(dbeta + at, beta_sum);
        }
    }
    for (int r = 0; r < R; ++r) {
        const __m512 mean = _mm512_set1_ps(all.centred ? _mm512_reduce_add_ps(sums[r]) / width : 0);
        const __m512 slope = _mm512_set1_ps(_mm512_reduce_add_ps(products[r]) / width);
        const long first = (row + r) * width;
        each_kept(all.drop, first, width, [&](long d, __mmask16 kept, int) {
            __m512 grad = load(all.dout + first + d);
            if (After) grad = _mm512_maskz_mul_ps(kept, grad, kept_scale);
            const __m512 normal = _mm512_fmadd_ps(load(all.sum + first + d), scale[r], shift[r]);
            const __m512 centred = _mm512_fmsub_ps(grad, load(all.gamma + d), mean);
            __m512 result = _mm512_mul_ps(_mm512_fnmadd_ps(normal, slope, centred), scale[r]);
            if (all.other) result = _mm512_add_ps(result, load(all.other + first + d));
            store(all.dsum + first + d, result);
            if (!After && all.dy) store(all.dy + first + d, _mm512_maskz_mul_ps(kept, result, kept_scale));
        });
    }
}

// Runs the backward pass of a norm. Each block of rows has its own sums of the gradients of gamma and beta, which are
// added at the end in the order of the blocks.
template <bool After>
void norm_gradients(const NormGradient& all, long rows, long threads, float* dgamma, float* dbeta) {
    const long width = all.width, size = std::max(32l, (rows / 64 + 3) / 4 * 4);  // at most about 64 blocks
    const long blocks = (rows + size - 1) / size;
    const Floats sums(std::max(1l, blocks) * 2 * width);
    each_block(rows, size, threads, [&](long begin, long end) {
        float *gammas = sums.at + begin / size * 2 * width, *betas = gammas + width;
        std::fill(gammas, gammas + 2 * width, 0.0f);
        long row = begin;
        for (; row + 4 <= end; row += 4) norm_gradient<4, After>(all, row, gammas, betas);
        for (; row < end; ++row) norm_gradient<1, After>(all, row, gammas, betas);
    });
    for (int which = 0; which < 2; ++which) {
        float* to = which ? dbeta : dgamma;
        for (long d = 0; d < width; d += kLanes) {
            __m512 total = _mm512_setzero_ps();
            for (long block = 0; block < blocks; ++block)
                total = _mm512_add_ps(total, load(sums.at + (2 * block + which) * width + d));
            store(to + d, total);
        }
    }
}

float at(const bf16* logits, int64_t label) { return _mm512_cvtss_f32(load_bf16(logits + label, 1)); }

// Returns exp(logit - top) of 16 logits.
inline __m512 power(const bf16* logits, __mmask16 mask, float top) {
    return exp2(_mm512_mul_ps(_mm512_sub_ps(load_bf16(logits, mask), _mm512_set1_ps(top)), _mm512_set1_ps(kLog2E)));
}

// Returns the loss of one row of logits. `top` is the largest one, `log_sum` the logarithm of the sum of exp(logit - top).
float cross_entropy_row(const bf16* logits, long width, int64_t label, float& top, float& log_sum) {
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    __m512 highest = lowest;
    for (long v = 0; v < width; v += kLanes) {
        const __mmask16 mask = lanes(width - v);
        highest = _mm512_mask_max_ps(highest, mask, highest, load_bf16(logits + v, mask));
    }
    top = _mm512_reduce_max_ps(highest);
    __m512 sums = _mm512_setzero_ps();
    for (long v = 0; v < width; v += kLanes) {
        const __mmask16 mask = lanes(width - v);
        sums = _mm512_mask_add_ps(sums, mask, sums, power(logits + v, mask, top));
    }
    log_sum = std::log(_mm512_reduce_add_ps(sums));
    return log_sum - (at(logits, label) - top);
}

// Replaces one row of logits by its gradient, the softmax minus one-hot, times `scale`.
void cross_entropy_gradient_row(bf16* logits, long width, int64_t label, float top, float log_sum, float scale) {
    const float missing = (std::exp(at(logits, label) - top - log_sum) - 1) * scale;
    const __m512 factor = _mm512_set1_ps(std::exp(-log_sum) * scale);
    for (long v = 0; v < width; v += kLanes) {
        const __mmask16 mask = lanes(width - v);
        store_bf16(logits + v, mask, _mm512_mul_ps(power(logits + v, mask, top), factor));
    }
    store_bf16(logits + label, 1, _mm512_set1_ps(missing));
}

}  // namespace
}  // namespace lambert

using namespace lambert;

extern "C" {

// out = norm(sum), sum = x + dropout(y), or x if y is null. The norm subtracts the mean if `centred`. `sum` is stored in
// bfloat16 for the backward pass; the norm reads it unrounded.
void lambert_add_norm(
    const bf16* y, const bf16* x, uint64_t key, int64_t threshold, const float* gamma, const float* beta, float eps,
    int64_t centred, int64_t T, int64_t D, int64_t threads, bf16* out, bf16* sum, float* mean, float* rstd) {
    const Norm norm{gamma, beta, eps, mean, rstd, centred != 0};
    const Drop drop(key, (int)threshold);
    const __m512 scale = _mm512_set1_ps(drop.scale);
    each_block(T, kRowsOfTask, threads, [&](long begin, long end) {
        const Floats values(D);
        for (long row = begin; row < end; ++row) {
            const long first = row * D;
            __m512 totals[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
            each_kept(drop, first, D, [&](long d, __mmask16 kept, int half) {
                __m512 added = load(x + first + d);
                if (y) added = _mm512_add_ps(added, _mm512_maskz_mul_ps(kept, load(y + first + d), scale));
                store(values.at + d, added);
                store(sum + first + d, added);
                totals[half] = _mm512_add_ps(totals[half], added);
            });
            const float total = _mm512_reduce_add_ps(_mm512_add_ps(totals[0], totals[1]));
            normalize(norm, row, values.at, total, D, Drop(0, 0), [&](long d, __mmask16, __m512 result) {
                store(out + first + d, result);
            });
        }
    });
}

// dsum: the gradient of `sum`, so also of x, plus `other` if it is not null. dy: that of y, written if dropout was used.
// dgamma and dbeta [D] are replaced.
void lambert_add_norm_backward(
    const bf16* dout, const bf16* sum, const float* mean, const float* rstd, const float* gamma, const bf16* other,
    uint64_t key, int64_t threshold, int64_t centred, int64_t T, int64_t D, int64_t threads, bf16* dsum, bf16* dy,
    float* dgamma, float* dbeta) {
    bf16* dropped = threshold ? dy : nullptr;
    const Drop drop(key, (int)threshold);
    const NormGradient all{dout, sum, mean, rstd, gamma, drop, D, other, dsum, dropped, centred != 0};
    norm_gradients<false>(all, T, threads, dgamma, dbeta);
}

// out = dropout(layer_norm(sum)), sum = words[ids] + kinds[types] + places[positions].
void lambert_embed_norm(
    const int64_t* ids, const int64_t* types, const int64_t* positions, const float* words, const float* kinds,
    const float* places, uint64_t key, int64_t threshold, const float* gamma, const float* beta, float eps, int64_t T,
    int64_t D, int64_t threads, bf16* out, bf16* sum, float* mean, float* rstd) {
    const Norm norm{gamma, beta, eps, mean, rstd};
    const Drop drop(key, (int)threshold);
    const __m512 scale = _mm512_set1_ps(drop.scale);
    each_block(T, kRowsOfTask, threads, [&](long begin, long end) {
        const Floats values(D);
        for (long row = begin; row < end; ++row) {
            const float* word = words + ids[row] * D;
            const float* kind = kinds + types[row] * D;
            const float* place = places + positions[row] * D;
            // The next row of a table much larger than the caches.
            const char* next = (const char*)(words + ids[std::min(row + 1, T - 1)] * D);
            const long first = row * D;
            __m512 totals[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
            each_kept(Drop(0, 0), first, D, [&](long d, __mmask16, int half) {
                _mm_prefetch(next + d * sizeof(float), _MM_HINT_T0);
                const __m512 added = _mm512_add_ps(_mm512_add_ps(load(word + d), load(place + d)), load(kind + d));
                store(values.at + d, added);
                store(sum + first + d, added);
                totals[half] = _mm512_add_ps(totals[half], added);
            });
            const float total = _mm512_reduce_add_ps(_mm512_add_ps(totals[0], totals[1]));
            normalize(norm, row, values.at, total, D, drop, [&](long d, __mmask16 kept, __m512 result) {
                store(out + first + d, _mm512_maskz_mul_ps(kept, result, scale));
            });
        }
    });
}

// dsum: the gradient of the sum of the embeddings, for lambert_add_rows. dgamma, dbeta: as above.
void lambert_embed_norm_backward(
    const bf16* dout, const bf16* sum, const float* mean, const float* rstd, const float* gamma, uint64_t key,
    int64_t threshold, int64_t T, int64_t D, int64_t threads, bf16* dsum, float* dgamma, float* dbeta) {
    const NormGradient all{dout, sum, mean, rstd, gamma, Drop(key, (int)threshold), D, nullptr, dsum, nullptr};
    norm_gradients<true>(all, T, threads, dgamma, dbeta);
}

// table[ids[row]] += rows[row], in the order of the rows. Tasks have disjoint columns or disjoint ids, so no element is
// written by two threads.
void lambert_add_rows(const bf16* rows, const int64_t* ids, int64_t T, int64_t D, int64_t threads, float* table) {
    const long strip = threads > 1 ? 128 : D, strips = (D + strip - 1) / strip;
    long classes = 1;  // of ids with equal low bits: some ids are much more frequent than others
    while (threads > 1 && strips * classes < 4 * threads) classes *= 2;
    each(strips * classes, threads, [&](long task) {
        const long begin = task % strips * strip, end = std::min<long>(D, begin + strip);
        for (long row = 0; row < T; ++row) {
            if ((ids[row] & (classes - 1)) != task / strips) continue;
            const bf16* from = rows + row * D;
            float* to = table + ids[row] * D;
            for (long d = begin; d < end; d += kLanes) store(to + d, _mm512_add_ps(load(to + d), load(from + d)));
        }
    });
}

// Writes the losses [T] of the logits [T, V], and what the backward pass needs: the largest logit of each row, and the
// logarithm of the sum of exp(logit - largest). V is any size.
void lambert_cross_entropy(
    const bf16* logits, const int64_t* labels, int64_t T, int64_t V, int64_t threads, float* losses, float* tops,
    float* log_sums) {
    each(T, threads, [&](long row) {
        losses[row] = cross_entropy_row(logits + row * V, V, labels[row], tops[row], log_sums[row]);
    });
}

// Replaces the logits by the gradients of their losses, times the `scales` of the rows.
void lambert_cross_entropy_backward(
    bf16* logits, const int64_t* labels, const float* tops, const float* log_sums, const float* scales, int64_t T,
    int64_t V, int64_t threads) {
    each(T, threads, [&](long row) {
        cross_entropy_gradient_row(logits + row * V, V, labels[row], tops[row], log_sums[row], scales[row]);
    });
}
}
