// Programs, and the small kernels by which a whole pass of a model is a program.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common.h"

namespace lambert {
namespace {

constexpr long kLanes = 16;
constexpr long kRowsOfTask = 16;
constexpr long kOfTask = 4096;

// A call of a kernel. On x86-64 the first integers and addresses are in registers, the others on the stack, and a float in
// a register of its own, so a function ignores those that it does not have (System V ABI, section 3.2.3).
struct Call {
    static constexpr long kIntegers = 20;
    using Kernel = void (*)(long, long, long, long, long, long, long, long, long, long, long, long, long, long, long, long,
                            long, long, long, long, float);
    Kernel kernel;
    long a[kIntegers];
    double number;
};

}  // namespace
}  // namespace lambert

using namespace lambert;

extern "C" {

// Calls kernels one after another. Python builds the table (ops/program.py).
void lambert_run(const Call* calls, long count) {
    for (const Call* call = calls; call < calls + count; ++call) {
        const long* a = call->a;
        call->kernel(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15],
                     a[16], a[17], a[18], a[19], (float)call->number);
    }
}

// out[row] = x[ids[row]], rows of D elements.
void lambert_take_rows(const bf16* x, const int64_t* ids, long N, long D, long threads, bf16* out) {
    each_block(N, kRowsOfTask, threads, [&](long begin, long end) {
        for (long row = begin; row < end; ++row) std::memcpy(out + row * D, x + ids[row] * D, D * sizeof(bf16));
    });
}

// out[ids[row]] += rows[row], in the order of the rows, after out [T, D] has been zeroed if `clear`.
void lambert_put_rows(const bf16* rows, const int64_t* ids, long N, long T, long D, long clear, bf16* out) {
    if (clear) std::memset(out, 0, T * D * sizeof(bf16));
    for (long row = 0; row < N; ++row)
        for (long d = 0; d < D; d += kLanes) {
            const __mmask16 mask = lanes(D - d);
            bf16* to = out + ids[row] * D + d;
            store_bf16(to, mask, _mm512_add_ps(load_bf16(to, mask), load_bf16(rows + row * D + d, mask)));
        }
}

void lambert_tanh(const bf16* x, long count, long threads, bf16* y) {
    each_block(count, kOfTask, threads, [&](long begin, long end) {
        for (long i = begin; i < end; i += kLanes) {
            const __mmask16 mask = lanes(end - i);
            alignas(64) float values[kLanes];
            _mm512_store_ps(values, load_bf16(x + i, mask));
            for (float& value : values) value = std::tanh(value);
            store_bf16(y + i, mask, _mm512_load_ps(values));
        }
    });
}

// dx = dy (1 - y^2), where y is the result of tanh.
void lambert_tanh_backward(const bf16* dy, const bf16* y, long count, long threads, bf16* dx) {
    each_block(count, kOfTask, threads, [&](long begin, long end) {
        for (long i = begin; i < end; i += kLanes) {
            const __mmask16 mask = lanes(end - i);
            const __m512 grad = load_bf16(dy + i, mask), value = load_bf16(y + i, mask);
            store_bf16(dx + i, mask, _mm512_fnmadd_ps(_mm512_mul_ps(grad, value), value, grad));
        }
    });
}

// to = 0.
void lambert_zero(float* to, long count) { std::memset(to, 0, count * sizeof(float)); }

// to = from.
void lambert_copy(float* to, const float* from, long count) { std::memcpy(to, from, count * sizeof(float)); }

// to += from.
void lambert_add(float* to, const float* from, long count) {
    for (long i = 0; i < count; ++i) to[i] += from[i];
}
}
