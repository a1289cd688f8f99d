// Updates of weights by AdamW, LAMB and StableAdamW, and norms of gradients.
//
// An update also writes the copies of a weight that products read, while the weight is in the cache. Sums over a tensor are
// added in the order of its chunks, so a result does not depend on the number of threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "pack.h"

namespace lambert {
namespace {

constexpr long kChunk = 1 << 15;  // elements of a chunk of a tensor that has no packed copies
constexpr long kGroup = 1 << 20;  // elements of tensors whose two passes follow each other: their arrays stay in the cache

constexpr long kSum = 1 << 12;    // elements whose sum is of float32; these sums are added in float64

enum Kind { kAdamW, kLamb, kStableAdamW };

// A tensor [rows, columns], its gradient and the running means of the gradient and of its square, contiguous. `copies.forward`
// is null if it has no packed copies, and `copy`, if it has no float32 copy. Python builds this table of int64.
struct Item {
    float* weight;
    const float* grad;
    float *mean, *square;
    long rows, columns;
    Packed copies;
    float* copy;

    // Rows of a chunk: those of a panel of the packed copies.
    long height() const { return copies.forward ? kPanel : std::max<long>(1, kChunk / columns); }
};

// The numbers of an update, as Python passes them:
//
//     m <- m + take1 * (g - m),  v <- keep2 * v + take2 * g^2,  u = m * debias1 / (sqrt(v) * debias2 + eps) + decay * w,
//     w <- w - rate * ratio * u
struct Numbers {
    float grad_scale, take1, keep2, take2, debias1, debias2, eps, decay, rate, adapted, low, high;
};

struct Chunk {
    long item, first, rows;
};

std::vector<Chunk> chunks_of(const Item* items, long begin, long end) {
    std::vector<Chunk> found;
    for (long i = begin; i < end; ++i)
        for (long first = 0, height = items[i].height(); first < items[i].rows; first += height)
            found.push_back({i, first, std::min(height, items[i].rows - first)});
    return found;
}

inline double total(__m512 sums) { return _mm512_reduce_add_ps(sums); }

// Updates of 16 elements.
struct Elements {
    __m512 weight, grad, mean, square;

    void take(const Numbers& n) {
        mean = _mm512_fmadd_ps(_mm512_set1_ps(n.take1), _mm512_sub_ps(grad, mean), mean);
        square = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_set1_ps(n.take2), grad), grad,
                                 _mm512_mul_ps(_mm512_set1_ps(n.keep2), square));
    }
    __m512 step(const Numbers& n) const {
        const __m512 root = _mm512_fmadd_ps(_mm512_sqrt_ps(square), _mm512_set1_ps(n.debias2), _mm512_set1_ps(n.eps));
        const __m512 ratio = _mm512_div_ps(_mm512_mul_ps(mean, _mm512_set1_ps(n.debias1)), root);
        return _mm512_fmadd_ps(_mm512_set1_ps(n.decay), weight, ratio);
    }
};

// Calls work(place, mask) for elements begin to end, 16 at a time.
template <class Work>
inline void over(long begin, long end, Work work) {
    for (long at = begin; at < end; at += kLanes) work(at, lanes(end - at));
}

// Updates the running means of elements begin to end, in AdamW also the weights, and adds to `sums` what the scale of the
// tensor needs: w^2 and u^2 in LAMB, g^2 / max(v, eps^2) in StableAdamW.
template <Kind kind>
void take_gradient(const Item& item, long begin, long end, const Numbers& n, double sums[2]) {
    __m512 first = _mm512_setzero_ps(), second = _mm512_setzero_ps();
    over(begin, end, [&](long at, __mmask16 mask) {
        Elements e;
        e.weight = _mm512_maskz_loadu_ps(mask, item.weight + at);
        e.grad = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, item.grad + at), _mm512_set1_ps(n.grad_scale));
        e.mean = _mm512_maskz_loadu_ps(mask, item.mean + at);
        e.square = _mm512_maskz_loadu_ps(mask, item.square + at);
        e.take(n);
        _mm512_mask_storeu_ps(item.mean + at, mask, e.mean);
        _mm512_mask_storeu_ps(item.square + at, mask, e.square);
        if constexpr (kind == kAdamW) {
            e.weight = _mm512_fnmadd_ps(_mm512_set1_ps(n.rate), e.step(n), e.weight);
            _mm512_mask_storeu_ps(item.weight + at, mask, e.weight);
        }
        if constexpr (kind == kLamb) {
            const __m512 step = _mm512_maskz_mov_ps(mask, e.step(n));
            first = _mm512_fmadd_ps(e.weight, e.weight, first);
            second = _mm512_fmadd_ps(step, step, second);
        }
        if constexpr (kind == kStableAdamW) {
            const __m512 root = _mm512_max_ps(_mm512_sqrt_ps(e.square), _mm512_set1_ps(n.eps));
            const __m512 ratio = _mm512_div_ps(e.grad, root);
            first = _mm512_fmadd_ps(ratio, ratio, first);
        }
    });
    sums[0] += total(first), sums[1] += total(second);
}

void move_weights(const Item& item, const Chunk& chunk, const Numbers& n, float rate) {
    const long begin = chunk.first * item.columns;
    over(begin, begin + chunk.rows * item.columns, [&](long at, __mmask16 mask) {
        Elements e;
        e.weight = _mm512_maskz_loadu_ps(mask, item.weight + at);
        e.mean = _mm512_maskz_loadu_ps(mask, item.mean + at);
        e.square = _mm512_maskz_loadu_ps(mask, item.square + at);
        _mm512_mask_storeu_ps(item.weight + at, mask, _mm512_fnmadd_ps(_mm512_set1_ps(rate), e.step(n), e.weight));
    });
}

void write_copies(const Item& item, const Chunk& chunk) {
    const float* from = item.weight + chunk.first * item.columns;
    if (item.copies.forward) item.copies.write(from, chunk.first, chunk.rows, item.columns);
    if (item.copy) std::copy_n(from, chunk.rows * item.columns, item.copy + chunk.first * item.columns);
}

// The factor of a tensor's step from the sums of its chunks.
double scale_of(Kind kind, const Item& item, const Numbers& n, double first, double second) {
    if (kind == kStableAdamW) return 1 / std::max(1.0, std::sqrt(first / (item.rows * item.columns)));
    if (!n.adapted) return 1;
    const double ratio = first > 0 && second > 0 ? std::sqrt(first / second) : 1;
    return std::min(std::max(ratio, (double)n.low), (double)n.high);
}

template <Kind kind>
void update(const Item* items, long begin, long end, const Numbers& n, double* ratios, long threads) {
    const std::vector<Chunk> chunks = chunks_of(items, begin, end);
    std::vector<double> sums(2 * chunks.size());
    each(chunks.size(), threads, [&](long c) {
        const Item& item = items[chunks[c].item];
        const long begin = chunks[c].first * item.columns, end = begin + chunks[c].rows * item.columns;
        for (long at = begin; at < end; at += kSum)
            take_gradient<kind>(item, at, std::min(end, at + kSum), n, &sums[2 * c]);
        if (kind == kAdamW) write_copies(item, chunks[c]);
    });
    if (kind == kAdamW) return std::fill(ratios + begin, ratios + end, 1.0);
    for (long i = begin, c = 0; i < end; ++i) {
        double first = 0, second = 0;
        for (; c < (long)chunks.size() && chunks[c].item == i; ++c) first += sums[2 * c], second += sums[2 * c + 1];
        ratios[i] = scale_of(kind, items[i], n, first, second);
    }
    each(chunks.size(), threads, [&](long c) {
        const Item& item = items[chunks[c].item];
        move_weights(item, chunks[c], n, (float)(n.rate * ratios[chunks[c].item]));
        write_copies(item, chunks[c]);
    });
}

}  // namespace
}  // namespace lambert

using namespace lambert;

extern "C" {

// Updates the tensors of a table of `count` items, and returns the factor of the step of each, which is the trust ratio in
// LAMB. kind: 0 AdamW, 1 LAMB, 2 StableAdamW.
void lambert_update(const Item* items, long count, const Numbers* numbers, long kind, double* ratios, long threads) {
    for (long begin = 0, end; begin < count; begin = end) {
        long elements = 0;
        for (end = begin; end < count && (end == begin || elements + items[end].rows * items[end].columns <= kGroup); ++end)
            elements += items[end].rows * items[end].columns;
        if (kind == kAdamW) update<kAdamW>(items, begin, end, *numbers, ratios, threads);
        if (kind == kLamb) update<kLamb>(items, begin, end, *numbers, ratios, threads);
        if (kind == kStableAdamW) update<kStableAdamW>(items, begin, end, *numbers, ratios, threads);
    }
}

// The L2 norms of tensors: norms[i] of the counts[i] elements at parts[i].
void lambert_norms(const float* const* parts, const long* counts, long count, float* norms, long threads) {
    std::vector<Chunk> chunks;
    for (long i = 0; i < count; ++i)
        for (long first = 0; first < counts[i]; first += kChunk)
            chunks.push_back({i, first, std::min(kChunk, counts[i] - first)});
    std::vector<double> sums(chunks.size());
    each(chunks.size(), threads, [&](long c) {
        const float* from = parts[chunks[c].item];
        const long begin = chunks[c].first, end = begin + chunks[c].rows;
        for (long first = begin; first < end; first += kSum) {
            __m512 squares = _mm512_setzero_ps();
            over(first, std::min(end, first + kSum), [&](long at, __mmask16 mask) {
                const __m512 values = _mm512_maskz_loadu_ps(mask, from + at);
                squares = _mm512_fmadd_ps(values, values, squares);
            });
            sums[c] += total(squares);
        }
    });
    std::vector<double> totals(count);
    for (size_t c = 0; c < chunks.size(); ++c) totals[chunks[c].item] += sums[c];
    for (long i = 0; i < count; ++i) norms[i] = (float)std::sqrt(totals[i]);
}

}  // extern "C"
