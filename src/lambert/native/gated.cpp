// Rotary positions, the product of a gated feed-forward layer, and the gradient of gelu. All are limited by memory. Tensors
// are row-major and contiguous.
#include <algorithm>

#include "activation.h"

namespace lambert {
namespace {

constexpr long kLanes = 16;
constexpr long kRowsOfTask = 16;

// Calls work(row) for each row, in tasks of several rows.
template <class Work>
void each_row(long rows, long threads, const Work& work) {
    each_block(rows, kRowsOfTask, threads, [&](long begin, long end) {
        for (long row = begin; row < end; ++row) work(row);
    });
}

// Zeroes the elements that dropout does not keep, and scales the others.
struct Kept {
    __mmask16 mask;
    __m512 scale;
    __m512 operator()(__m512 values) const { return _mm512_maskz_mul_ps(mask, values, scale); }
};

// Calls work(i, kept) for every 16 elements of a row of `width` elements, which is part of a tensor from element `first`.
template <class Work>
void each_part(const Drop& drop, uint64_t first, long width, const Work& work) {
    const __m512 scale = _mm512_set1_ps(drop.scale);
    for (long i = 0; i < width; i += 2 * kLanes) {
        const __mmask32 kept = drop.threshold ? drop.kept(first + i) : ~0u;
        work(i, Kept{(__mmask16)kept, scale});
        work(i + kLanes, Kept{(__mmask16)(kept >> kLanes), scale});
    }
}

inline __m512 activate(__m512 x, long form) { return form == 2 ? silu(x) : form ? gelu_tanh(x) : gelu(x); }
inline __m512 activation_gradient(__m512 x, long form) {
    return form == 2 ? silu_gradient(x) : form ? gelu_tanh_gradient(x) : gelu_gradient(x);
}

inline __m512 load(const bf16* from) { return load_bf16(from, 0xFFFF); }
inline void store(bf16* to, __m512 values) { store_bf16(to, 0xFFFF, values); }

}  // namespace
}  // namespace lambert

using namespace lambert;

extern "C" {

// Turns queries and keys of qkv [T, 3, H, E] in place by the angles whose cosines and sines are rows `positions` of
// [., E / 2], by the negative angles if `back`. E / 2 is a multiple of 16.
//
// Source: Su et al., "RoFormer", 2021, equation 34; element i is paired with element i + E / 2.
void lambert_rotate(bf16* qkv, const int64_t* positions, const float* cosines, const float* sines, int64_t back, int64_t T,
                    int64_t H, int64_t E, int64_t threads) {
    const long half = E / 2;
    each_row(T, threads, [&](long row) {
        const float *cos = cosines + positions[row] * half, *sin = sines + positions[row] * half;
        bf16* at = qkv + row * 3 * H * E;
        for (long head = 0; head < 2 * H; ++head, at += E)
            for (long i = 0; i < half; i += kLanes) {
                const __m512 c = _mm512_loadu_ps(cos + i), plus = _mm512_loadu_ps(sin + i);
                const __m512 s = back ? _mm512_sub_ps(_mm512_setzero_ps(), plus) : plus;
                const __m512 first = load(at + i), second = load(at + half + i);
                store(at + i, _mm512_fmsub_ps(first, c, _mm512_mul_ps(second, s)));
                store(at + half + i, _mm512_fmadd_ps(second, c, _mm512_mul_ps(first, s)));
            }
    });
}

// out [T, F] = dropout(f(a) * b), where a and b are the halves of the rows of both [T, 2 F]; a is the second one unless
// `gate_first`. form: 0 gelu by the normal distribution, 1 gelu by tanh, 2 silu. `threshold` and `key` are those of Drop.
// F is a multiple of 32.
void lambert_gated(const bf16* both, int64_t form, int64_t gate_first, uint64_t key, int64_t threshold, int64_t T, int64_t F,
                   int64_t threads, bf16* out) {
    const Drop drop(key, (int)threshold);
    each_row(T, threads, [&](long row) {
        const bf16 *first = both + row * 2 * F, *a = gate_first ? first : first + F, *b = gate_first ? first + F : first;
        each_part(drop, row * F, F, [&](long i, Kept kept) {
            store(out + row * F + i, kept(_mm512_mul_ps(activate(load(a + i), form), load(b + i))));
        });
    });
}

// dboth [T, 2 F] from the gradient [T, F] of the result.
void lambert_gated_backward(const bf16* both, const bf16* dout, int64_t form, int64_t gate_first, uint64_t key,
                            int64_t threshold, int64_t T, int64_t F, int64_t threads, bf16* dboth) {
    const Drop drop(key, (int)threshold);
    each_row(T, threads, [&](long row) {
        const long at_a = row * 2 * F + (gate_first ? 0 : F), at_b = row * 2 * F + (gate_first ? F : 0);
        each_part(drop, row * F, F, [&](long i, Kept kept) {
            const __m512 x = load(both + at_a + i), grad = kept(load(dout + row * F + i));
            const __m512 slope = activation_gradient(x, form);
            store(dboth + at_a + i, _mm512_mul_ps(_mm512_mul_ps(grad, load(both + at_b + i)), slope));
            store(dboth + at_b + i, _mm512_mul_ps(grad, activate(x, form)));
        });
    });
}

// dx = dy times the derivative of gelu at x, for `count` elements. form: 0 by the normal distribution, 1 by tanh.
void lambert_gelu_backward(const bf16* dy, const bf16* x, int64_t form, int64_t count, int64_t threads, bf16* dx) {
    each_block(count, 4096, threads, [&](long begin, long end) {
        for (long i = begin; i < end; i += kLanes) {
            const __mmask16 mask = lanes(end - i);
            const __m512 slope = activation_gradient(load_bf16(x + i, mask), form);
            store_bf16(dx + i, mask, _mm512_mul_ps(load_bf16(dy + i, mask), slope));
        }
    });
}

}
