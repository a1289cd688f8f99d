// The activations of feed-forward layers, with their derivatives, on 16 elements.
//
// Source: Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", 2016: x * normal_cdf(x), and its form with tanh.
#pragma once
#include "common.h"

namespace lambert {

inline __m512 clamp(__m512 x, float bound) {
    return _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-bound)), _mm512_set1_ps(bound));
}

// Returns 1 / x by one step of Newton's method, with a relative error below 2e-7. It takes half the time of a division.
inline __m512 reciprocal(__m512 x) {
    const __m512 guess = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(guess, _mm512_fnmadd_ps(x, guess, _mm512_set1_ps(2.0f)));
}

// The normal distribution at x: the probability of a value below x, and exp(-x^2 / 2), which has the density's form.
struct Normal {
    __m512 below, bell;
};

// Source: Abramowitz and Stegun, "Handbook of mathematical functions", 7.1.26: erf with an absolute error of 1.5e-7.
inline Normal normal(__m512 x) {
    const __m512 near = clamp(x, 12.0f);  // beyond, gelu is 0 or x; numbers below 1e-38 would take ten times as long
    const __mmask16 inside = _mm512_cmp_ps_mask(near, x, _CMP_EQ_OQ);
    const __m512 power = _mm512_mul_ps(_mm512_mul_ps(near, near), _mm512_set1_ps(-0.5f * kLog2E));
    const __m512 bell = _mm512_maskz_mov_ps(inside, exp2(power));
    const __m512 t = reciprocal(_mm512_fmadd_ps(_mm512_abs_ps(near), _mm512_set1_ps(0.23164189f), _mm512_set1_ps(1.0f)));
    __m512 p = _mm512_set1_ps(1.061405429f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
    const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(_mm512_mul_ps(p, t), bell), _mm512_set1_ps(0.5f));
    const __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
    return {_mm512_mask_sub_ps(tail, positive, _mm512_set1_ps(1.0f), tail), bell};
}

inline __m512 gelu(__m512 x) { return _mm512_mul_ps(x, normal(x).below); }

inline __m512 gelu_gradient(__m512 x) {
    const Normal at = normal(x);
    return _mm512_fmadd_ps(_mm512_mul_ps(x, _mm512_set1_ps(0.39894228f)), at.bell, at.below);  // 1 / sqrt(2 pi)
}

constexpr float kSlope = 1.59576912f, kCubic = 0.071354816f;  // 2 sqrt(2 / pi), and 0.044715 times it

// value: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), where 2 u = kSlope * x + kCubic * x^3; rest: 1 - value, without the
// cancellation of that difference.
struct Gate {
    __m512 value, rest;
};

inline Gate tanh_gate(__m512 x) {  // |x| is at most 9.5
    const __m512 cubic = _mm512_set1_ps(-kCubic * kLog2E), slope = _mm512_set1_ps(-kSlope * kLog2E);
    const __m512 power = exp2(_mm512_mul_ps(x, _mm512_fmadd_ps(_mm512_mul_ps(x, x), cubic, slope)));
    const __m512 value = reciprocal(_mm512_add_ps(power, _mm512_set1_ps(1.0f)));
    return {value, _mm512_mul_ps(power, value)};
}

inline __m512 gelu_tanh(__m512 x) {
    const __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-9.5f), _CMP_GE_OQ);  // below, the result is 0
    return _mm512_maskz_mul_ps(positive, x, tanh_gate(clamp(x, 9.5f)).value);
}

inline __m512 gelu_tanh_gradient(__m512 x) {
    x = clamp(x, 9.5f);  // beyond, the result is 0 or 1 in float32
    const Gate gate = tanh_gate(x);
    const __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(3 * kCubic), _mm512_set1_ps(kSlope));
    const __m512 change = _mm512_mul_ps(slope, _mm512_mul_ps(gate.rest, gate.value));  // derivative of the gate
    return _mm512_fmadd_ps(x, change, gate.value);
}

// 1 / (1 + exp(-x)), and 1 minus that, without the cancellation of the difference. Beyond 80 it is 0 or 1 in float32.
inline Gate sigmoid_gate(__m512 x) {
    const __m512 power = exp2(_mm512_mul_ps(clamp(x, 80.0f), _mm512_set1_ps(-kLog2E)));
    const __m512 value = reciprocal(_mm512_add_ps(power, _mm512_set1_ps(1.0f)));
    return {value, _mm512_mul_ps(power, value)};
}

// Source: Elfwing et al., "Sigmoid-weighted linear units", 2017, section 2.
inline __m512 silu(__m512 x) { return _mm512_mul_ps(x, sigmoid_gate(x).value); }

inline __m512 silu_gradient(__m512 x) {
    const Gate gate = sigmoid_gate(x);
    return _mm512_fmadd_ps(_mm512_mul_ps(clamp(x, 80.0f), gate.rest), gate.value, gate.value);
}

}  // namespace lambert
