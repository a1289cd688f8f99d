// The copies of a weight for products: rounded to bfloat16, in panels.
#pragma once
#include "gemm.h"
#include "scratch.h"

namespace lambert {

// The copies of a weight W [F, D], D even: for y = x W' (columns F, inner dimension D), and for the gradient of x (columns D,
// inner dimension F), which may be null. The weight may be the rows from `offset` of `total` rows of several weights that are
// multiplied at once; then `offset` and F are multiples of 64, or it is the last.
struct Packed {
    uint32_t *forward, *backward;
    long offset, total;

    // Writes the copies of up to 64 rows [rows, D] of the weight, from its row `first`, a multiple of 64.
    void write(const float* weight, long first, long rows, long D) const {
        Scratch scratch;
        bf16* rounded = scratch.take<bf16>(rows * D);
        for (long i = 0; i < rows * D; i += kLanes) {
            const __mmask16 mask = lanes(rows * D - i);
            store_bf16(rounded + i, mask, _mm512_maskz_loadu_ps(mask, weight + i));
        }
        pack_across(rounded, D, rows, D, forward + (offset + first) / kPanel * padded(D / 2) * kPanel);
        for (long column = 0; backward && column < D; column += kPanel)
            pack_down(rounded + column, D, rows, std::min<long>(kPanel, D - column),
                      backward + (column / kPanel * padded(pairs(total)) + (offset + first) / 2) * kPanel);
    }
};

}  // namespace lambert
