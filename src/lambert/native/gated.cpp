// What only ModernBERT's block has: rotary positions and the product of a gated feed-forward layer. Both are limited by
// memory. Tensors are row-major and contiguous.
#include <algorithm>

#include "activation.h"

namespace lambert {
namespace {

constexpr long kLanes = 16;
constexpr long kRowsOfTask = 16;

// Calls work(row) for each row, in tasks of several rows.
template <class Work>
void each_row(long rows, long threads, const Work& work) {
    each((rows + kRowsOfTask - 1) / kRowsOfTask, threads, [&](long task) {
        for (long row = task * kRowsOfTask; row < std::min(rows, (task + 1) * kRowsOfTask); ++row) work(row);
    });
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

// out [T, F] = gelu(a) * b, where a and b are the halves of the rows of both [T, 2 F]. form: 0 by the normal distribution,
// 1 by tanh. F is a multiple of 16.
void lambert_gated(const bf16* both, int64_t form, int64_t T, int64_t F, int64_t threads, bf16* out) {
    each_row(T, threads, [&](long row) {
        const bf16 *a = both + row * 2 * F, *b = a + F;
        for (long i = 0; i < F; i += kLanes) {
            const __m512 x = load(a + i);
            store(out + row * F + i, _mm512_mul_ps(form ? gelu_tanh(x) : gelu(x), load(b + i)));
        }
    });
}

// dboth [T, 2 F] from the gradient [T, F] of the result.
void lambert_gated_backward(const bf16* both, const bf16* dout, int64_t form, int64_t T, int64_t F, int64_t threads,
                            bf16* dboth) {
    each_row(T, threads, [&](long row) {
        const bf16 *a = both + row * 2 * F, *b = a + F, *grads = dout + row * F;
        bf16 *da = dboth + row * 2 * F, *db = da + F;
        for (long i = 0; i < F; i += kLanes) {
            const __m512 x = load(a + i), grad = load(grads + i);
            const __m512 slope = form ? gelu_tanh_gradient(x) : gelu_gradient(x);
            store(da + i, _mm512_mul_ps(_mm512_mul_ps(grad, load(b + i)), slope));
            store(db + i, _mm512_mul_ps(grad, form ? gelu_tanh(x) : gelu(x)));
        }
    });
}
}
