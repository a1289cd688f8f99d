// What all kernels share: threads, random bits, exponentials.
#pragma once
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace lambert {

using bf16 = uint16_t;

// Runs task(i, context) for each i in [0, tasks), in any order, on up to `threads` threads. Returns false, and does
// nothing, if another caller is using the threads.
using Task = void (*)(long i, const void* context);
bool run(long tasks, long threads, Task task, const void* context);

// Calls work(i) for each i in [0, tasks), in any order, on up to `threads` threads. A thread takes the next task when it
// is free, because tasks differ in size and another process may delay a thread.
template <class Work>
void each(long tasks, long threads, const Work& work) {
    const Task task = [](long i, const void* context) { (*static_cast<const Work*>(context))(i); };
    if (tasks > 1 && threads > 1 && run(tasks, threads < tasks ? threads : tasks, task, &work)) return;
    for (long i = 0; i < tasks; ++i) work(i);
}

// Calls work(begin, end) for blocks of `size` rows.
template <class Work>
void each_block(long rows, long size, long threads, const Work& work) {
    const long blocks = (rows + size - 1) / size;
    each(blocks, threads, [&](long block) { work(block * size, std::min(rows, (block + 1) * size)); });
}

inline __m512 widen(__m256i low) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16)); }
inline __m256i narrow(__m512 values) { return (__m256i)_mm512_cvtneps_pbh(values); }
inline __mmask16 lanes(long count) { return count >= 16 ? 0xFFFF : count <= 0 ? 0 : (__mmask16)((1u << count) - 1); }
inline __m512 load_bf16(const bf16* from, __mmask16 mask) { return widen(_mm256_maskz_loadu_epi16(mask, from)); }
inline void store_bf16(bf16* to, __mmask16 mask, __m512 values) { _mm256_mask_storeu_epi16(to, mask, narrow(values)); }

constexpr float kLog2E = 1.44269504f;

// Returns 2 to the power of x, with a relative error below 2e-7 from x = -126 on; 1 at 0, and 0 from -150 down.
inline __m512 exp2(__m512 x) {
    const __m512 whole = _mm512_roundscale_ps(x, 0), r = _mm512_sub_ps(x, whole);
    // The polynomial 1 + ... of degree 5 with the smallest relative error in [-1/2, 1/2].
    __m512 p = _mm512_set1_ps(1.32647273e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.67151299e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.55073358e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.40222424e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.93147004e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, whole);
}

// Which elements dropout keeps. Element i of a tensor gets 16 bits, part i % 4 of word i / 4 of the key, and is dropped
// if they are below `threshold`, so probabilities are multiples of 1 / 65536. A mask does not depend on threads, and the
// backward pass draws it again instead of storing it.
//
// Source: words of a key as in core/randomness.py (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014).
struct Drop {
    uint64_t key;
    int threshold;  // 0: nothing is dropped
    float scale;    // 1 / (1 - probability)

    Drop(uint64_t key, int threshold) : key(key), threshold(threshold), scale(65536.0f / (65536 - threshold)) {}

    // The same probability under the key of part `part` of the tensor.
    Drop part(uint64_t part) const { return Drop(mix(key + (part + 1) * kGolden), threshold); }

    // Bit j: whether element first + j is kept. `first` is a multiple of 32.
    __mmask32 kept(uint64_t first) const {
        const __m512i steps = _mm512_set_epi64(8 * kGolden, 7 * kGolden, 6 * kGolden, 5 * kGolden, 4 * kGolden,
                                               3 * kGolden, 2 * kGolden, kGolden);
        __m512i x = _mm512_add_epi64(_mm512_set1_epi64((long long)(key + first / 4 * kGolden)), steps);
        x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 30));
        x = _mm512_mullo_epi64(x, _mm512_set1_epi64((long long)kMix1));
        x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 27));
        x = _mm512_mullo_epi64(x, _mm512_set1_epi64((long long)kMix2));
        x = _mm512_xor_si512(x, _mm512_srli_epi64(x, 31));
        return _mm512_cmpge_epu16_mask(x, _mm512_set1_epi16((short)threshold));
    }

    static constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull, kMix1 = 0xBF58476D1CE4E5B9ull, kMix2 = 0x94D049BB133111EBull;
    static uint64_t mix(uint64_t x) {
        x = (x ^ (x >> 30)) * kMix1;
        x = (x ^ (x >> 27)) * kMix2;
        return x ^ (x >> 31);
    }
};

}  // namespace lambert
