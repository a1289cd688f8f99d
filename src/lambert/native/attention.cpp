// Attention within each sequence of a flat batch, without padding: one task for each sequence and head.
//
// qkv is [T, 3, H, E], the output [T, H, E], both bfloat16. The forward pass keeps the logarithm of each row's sum, from
// which the backward pass computes the probabilities again, as in Dao et al., "FlashAttention", 2022. M: tokens of a
// sequence. Sums are float32; probabilities are rounded to bfloat16 for the products. With a window, a token attends to
// so many tokens on each side, causal, to none behind it, and to the first `most` tokens of its sequence alone: rows of
// scores have the columns that a block of queries sees, from a multiple of kColumns. Biases, float32, are added to the scores of a head by
// the distance of two tokens of a sequence, key - query: biases[distance].
#include <cmath>
#include <cstring>

#include "gemm.h"
#include "scratch.h"

namespace lambert {

constexpr long kQueries = 64;  // rows of scores, at most, that are in the cache at once
constexpr long kBlock = 2 * kQueries;  // rows, at most, over which the gradients of keys and values are added at once

// Which tokens of a sequence a token attends to.
struct Reach {
    long window, most;  // window of 0: all on both sides
    bool causal;
};

// One head of one sequence: rows of E elements that are `stride` elements apart.
struct Head {
    const bf16 *query, *key, *value;
    long stride, M, E;
    Reach reach;

    Head(const bf16* qkv, long start, long end, long head, long heads, long E, Reach reach)
        : query(qkv + (start * 3 * heads + head) * E), key(query + heads * E), value(key + heads * E),
          stride(3 * heads * E), M(end - start), E(E), reach(reach) {}

    long width() const { return panels(M) * kPanel; }  // of a row of scores
};

constexpr long kColumns = 2 * kTile;  // rows of scores begin and end at multiples of it: a tile has so many along K

// Rows of scores that are computed at once: even, and a multiple of the rows of the kernel. With a narrow window, fewer rows
// see fewer tokens that most of them do not attend to.
inline long queries(const Reach& reach) {
    if (has_amx()) return 2 * kTileRows;
    return (reach.window && reach.window <= kQueries ? 5 : 10) * kRows;
}

// The tokens that a block of queries attends to, from a multiple of kColumns, and which of them a query sees.
struct Keys {
    Reach reach;
    long from, count;

    Keys(long first, long rows, Reach reach)
        : reach(reach), from(reach.window ? std::max(0L, first - reach.window) / kColumns * kColumns : 0),
          count(end(first + rows - 1) - from) {}

    long low(long query) const { return reach.window ? std::max(0L, query - reach.window - from) : 0; }
    long high(long query) const { return end(query) - from; }
    long columns() const { return (count + kColumns - 1) / kColumns * kColumns; }

  private:
    long end(long query) const {
        const long last = reach.causal ? query + 1 : reach.window ? query + reach.window + 1 : reach.most;
        return std::min(last, reach.most);
    }
};

// Whether each of 16 columns is in [low, high).
inline __mmask16 between(long column, long low, long high) {
    return lanes(high - column) & ~lanes(low - column);
}

// Packs the rows as the right operand of products along E, whose columns are tokens.
inline void pack_tokens(const bf16* from, long stride, long M, long E, uint32_t* to) {
    for (long p = 0; p < panels(M); ++p)
        pack_across(from + p * kPanel * stride, stride, std::min<long>(kPanel, M - p * kPanel), E,
                    to + p * padded(E / 2) * kPanel);
}

// Packs the rows as the right operand of products along the tokens, whose columns are the E elements.
inline void pack_elements(const bf16* from, long stride, long M, long E, uint32_t* to) {
    for (long p = 0; p < panels(E); ++p)
        pack_down(from + p * kPanel, stride, M, std::min<long>(kPanel, E - p * kPanel), to + p * padded(pairs(M)) * kPanel);
}

// Multiplies `rows` rows of `left` with `columns` columns of `right` from column `from`; its panels are `words` words apart.
template <class Epilogue>
inline void multiply_all(Left left, Right right, long words, long count, long rows, long from, long columns,
                         Epilogue& epilogue) {
    for (long c = from, next; c < from + columns; c = next) {
        next = std::min((c / kPanel + 1) * kPanel, from + columns);
        times_panel(left, {right.at + c / kPanel * words + c % kPanel, right.stride}, count, rows, 0, c - from, next - c,
                    epilogue);
    }
}

struct Scores {
    float* to;
    long width;
    void operator()(long row, long column, __m512 sums) const { _mm512_store_ps(to + row * width + column, sums); }
};

// Rows of one head in a tensor of bfloat16, each times a factor of its own.
struct HeadRows {
    bf16* to;
    long stride, E;
    const float* factors;
    void operator()(long row, long column, __m512 sums) const {
        if (factors) sums = _mm512_mul_ps(sums, _mm512_set1_ps(factors[row]));
        store_bf16(to + row * stride + column, lanes(E - column), sums);
    }
};

struct Accumulate {
    float* to;
    long width;
    void operator()(long row, long column, __m512 sums) const {
        float* at = to + row * width + column;
        _mm512_store_ps(at, _mm512_add_ps(_mm512_load_ps(at), sums));
    }
};

// Adds the biases of a row of products q k', whose first column has `biases[0]`, in units of the products.
inline void add_biases(float* scores, const float* biases, long low, long high, float unit) {
    for (long j = low / kLanes * kLanes; j < high; j += kLanes) {
        const __m512 bias = _mm512_maskz_loadu_ps(between(j, low, high), biases + j);
        _mm512_store_ps(scores + j, _mm512_fmadd_ps(bias, _mm512_set1_ps(unit), _mm512_load_ps(scores + j)));
    }
}

// Turns a row of products q k' into probabilities times their sum, as bfloat16 with dropped ones zeroed, in
// `weights`. The columns outside of [low, high) have none. Returns the logarithm of the sum in `log_sum`, and 1 / sum
// times the scale of dropout.
inline float softmax(float* scores, bf16* weights, long low, long high, long width, float scale, const Drop& drop,
                     long first, float& log_sum) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    for (long j = low / kLanes * kLanes; j < high; j += kLanes)
        most = _mm512_mask_max_ps(most, between(j, low, high), most, _mm512_load_ps(scores + j));
    const float top = _mm512_reduce_max_ps(most);
    const __m512 factor = _mm512_set1_ps(scale * kLog2E), shift = _mm512_set1_ps(-top * scale * kLog2E);
    __m512 total = _mm512_setzero_ps();
    for (long j = 0; j < width; j += 2 * kLanes) {
        const __mmask32 kept = drop.threshold && j < high ? drop.kept(first + j) : ~0u;
        for (long half = 0; half < 2; ++half) {
            const long at = j + half * kLanes;
            const __m512 e = exp2(_mm512_fmadd_ps(_mm512_load_ps(scores + at), factor, shift));
            const __m512 inside = _mm512_maskz_mov_ps(between(at, low, high), e);
            total = _mm512_add_ps(total, inside);
            const __mmask16 mask = (__mmask16)(kept >> (half * kLanes));
            store_bf16(weights + at, 0xFFFF, _mm512_maskz_mov_ps(mask, inside));
        }
    }
    const float sum = _mm512_reduce_add_ps(total);
    log_sum = top * scale + std::log(sum);
    return drop.scale / sum;
}

void forward(const Head& head, bf16* out, long out_stride, float* log_sums, long log_stride, const Drop& drop,
             const float* biases) {
    const long M = head.M, E = head.E, width = head.width();
    const long tokens = padded(E / 2) * kPanel, words = padded(pairs(M)) * kPanel;  // of a panel
    const float scale = 1 / std::sqrt((float)E);
    Scratch scratch;
    uint32_t* keys = scratch.take<uint32_t>(width * padded(E / 2));
    uint32_t* values = scratch.take<uint32_t>(panels(E) * padded(pairs(M)) * kPanel);
    float* scores = scratch.take<float>(kQueries * width);
    bf16* weights = scratch.take<bf16>(kQueries * width);
    pack_tokens(head.key, head.stride, M, E, keys);
    pack_elements(head.value, head.stride, M, E, values);
    for (long first = 0; first < M; first += queries(head.reach)) {
        const long rows = std::min(queries(head.reach), M - first);
        const Keys seen(first, rows, head.reach);
        const long columns = seen.columns();
        Scores into{scores, width};
        const Left query = rows_of(head.query + first * head.stride, head.stride / 2);
        multiply_all(query, {keys, kPanel}, tokens, E / 2, rows, seen.from, seen.count, into);
        float factors[kQueries];
        for (long r = 0; r < rows; ++r) {
            const long low = seen.low(first + r), high = seen.high(first + r);
            if (biases) add_biases(scores + r * width, biases + seen.from - first - r, low, high, 1 / scale);
            factors[r] = softmax(scores + r * width, weights + r * width, low, high, columns, scale, drop,
                                 (first + r) * width + seen.from, log_sums[(first + r) * log_stride]);
        }
        HeadRows mixed{out + first * out_stride, out_stride, E, factors};
        multiply_all(rows_of(weights, width / 2, true), {values + seen.from / 2 * kPanel, kPanel}, words, pairs(seen.count),
                     rows, 0, E, mixed);
    }
}

// For two rows of a panel of scores: the probabilities with dropout in `weights`, and the gradients of the products q k' in
// `paired`, both in words of (first row, second row); and the gradients of each row in `gradients`. A row has the columns
// [low, high), a second row that is missing none. The probabilities of both rows, `width` apart, begin at number `first`.
inline void scores_backward(const float* scores, const float* incoming, const long* low, const long* high, long columns,
                            float scale, const float* log_sums, const float* inner, const Drop& drop, long first,
                            uint32_t* weights, uint32_t* paired, bf16* gradients, long width) {
    const __m512 factor = _mm512_set1_ps(scale), grow = _mm512_set1_ps(drop.threshold ? drop.scale : 1.0f);
    const __m512 factor_of_2 = _mm512_set1_ps(scale * kLog2E);
    const __m512 shift[2] = {_mm512_set1_ps(log_sums[0] * kLog2E), _mm512_set1_ps(log_sums[1] * kLog2E)};
    for (long j = 0; j < columns; j += kColumns) {
        __m512i mixed[2], slopes[2];
        for (long r = 0; r < 2; ++r) {
            const __mmask32 kept = drop.threshold ? drop.kept(first + r * width + j) : ~0u;
            __m512 p[2], d[2];
            for (long half = 0; half < 2; ++half) {
                const long at = j + half * kLanes;
                const __mmask16 inside = between(at, low[r], high[r]), mask = (__mmask16)(kept >> (half * kLanes));
                const __m512 s = _mm512_load_ps(scores + r * kPanel + at);
                const __m512 e = _mm512_maskz_mov_ps(inside, exp2(_mm512_fmsub_ps(s, factor_of_2, shift[r])));
                const __m512 g = _mm512_maskz_mul_ps(mask, _mm512_load_ps(incoming + r * kPanel + at), grow);
                p[half] = _mm512_maskz_mul_ps(mask, e, grow);
                // The mask also discards what lies behind the row and may not be finite.
                d[half] = _mm512_maskz_mul_ps(inside, _mm512_mul_ps(e, factor), _mm512_sub_ps(g, _mm512_set1_ps(inner[r])));
            }
            mixed[r] = (__m512i)_mm512_cvtne2ps_pbh(p[1], p[0]);
            slopes[r] = (__m512i)_mm512_cvtne2ps_pbh(d[1], d[0]);
            _mm512_store_si512(gradients + r * width + j, slopes[r]);
        }
        _mm512_store_si512(weights + j, _mm512_permutex2var_epi16(mixed[0], kLowPairs, mixed[1]));
        _mm512_store_si512(weights + j + kLanes, _mm512_permutex2var_epi16(mixed[0], kHighPairs, mixed[1]));
        _mm512_store_si512(paired + j, _mm512_permutex2var_epi16(slopes[0], kLowPairs, slopes[1]));
        _mm512_store_si512(paired + j + kLanes, _mm512_permutex2var_epi16(slopes[0], kHighPairs, slopes[1]));
    }
}

// Adds the gradients of a row of products q k', in units of the scores, to those of its biases.
inline void add_bias_gradients(const bf16* gradients, float* sums, long low, long high, float unit) {
    for (long j = low / kLanes * kLanes; j < high; j += kLanes) {
        const __mmask16 inside = between(j, low, high);
        const __m512 sum = _mm512_maskz_loadu_ps(inside, sums + j);
        _mm512_mask_storeu_ps(sums + j, inside, _mm512_fmadd_ps(load_bf16(gradients + j, inside), _mm512_set1_ps(unit), sum));
    }
}

// The sum over E of gradient times output, which is that over the row of probability times gradient.
inline float inner_product(const bf16* left, const bf16* right, long E) {
    __m512 total = _mm512_setzero_ps();
    for (long j = 0; j < E; j += kLanes) {
        const __mmask16 mask = lanes(E - j);
        total = _mm512_fmadd_ps(load_bf16(left + j, mask), load_bf16(right + j, mask), total);
    }
    return _mm512_reduce_add_ps(total);
}

// Writes sums in panels of [E, 64 tokens] as M rows of E elements.
inline void store_transposed(const float* from, long M, long E, bf16* to, long stride) {
    for (long first = 0; first < M; first += kLanes)
        for (long e = 0; e < E; e += kLanes) {
            const float* at = from + first / kPanel * E * kPanel + e * kPanel + first % kPanel;
            __m512i block[16];
            for (long i = 0; i < 16; ++i) block[i] = _mm512_load_si512(at + i * kPanel);
            transpose(block);
            for (long i = 0; i < std::min<long>(16, M - first); ++i)
                store_bf16(to + (first + i) * stride + e, 0xFFFF, _mm512_castsi512_ps(block[i]));
        }
}

// The tensors of one head of one sequence that its backward pass reads and writes; rows of the output, and of its gradient, are
// `out_stride` elements apart. Biases or none.
struct Gradients {
    const bf16 *out, *grad;
    long out_stride;
    const float* log_sums;
    long log_stride;
    Drop drop;
    bf16* dqkv;
    const float* biases;
    float* dbiases;
};

// The backward pass of one head of one sequence, one block of queries after the other.
class Backward {
  public:
    Backward(const Head& head, const Gradients& of)
        : head(head), of(of), tokens(padded(head.E / 2) * kPanel), words(padded(pairs(head.M)) * kPanel),
          width(head.width()), part(queries(head.reach)), scale(1 / std::sqrt((float)head.E)) {
        const long M = head.M, E = head.E;
        keys = scratch.take<uint32_t>(width * padded(E / 2));
        values = scratch.take<uint32_t>(width * padded(E / 2));
        key_rows = scratch.take<uint32_t>(panels(E) * words);
        query_columns = scratch.take<uint32_t>(panels(E) * kPanel * kBlock / 2);
        grad_columns = scratch.take<uint32_t>(panels(E) * kPanel * kBlock / 2);
        scores = scratch.take<float>(kQueries * kPanel);
        incoming = scratch.take<float>(kQueries * kPanel);
        weights = scratch.take<uint32_t>(kBlock / 2 * kStride);
        paired = scratch.take<uint32_t>(kBlock / 2 * kStride);
        gradients = scratch.take<bf16>(kBlock * width);
        dkey = scratch.take<float>(E * width);
        dvalue = scratch.take<float>(E * width);
        std::memset(dkey, 0, E * width * sizeof(float));
        std::memset(dvalue, 0, E * width * sizeof(float));
        pack_tokens(head.key, head.stride, M, E, keys);
        pack_tokens(head.value, head.stride, M, E, values);
        pack_elements(head.key, head.stride, M, E, key_rows);
    }

    void run() {
        const long block = head.reach.window ? part : kBlock / part * part;
        for (first = 0; first < head.M; first += rows) {
            rows = std::min(block, head.M - first);
            add_block();
        }
        const long of_heads = head.stride / 3;
        store_transposed(dkey, head.M, head.E, of.dqkv + of_heads, head.stride);
        store_transposed(dvalue, head.M, head.E, of.dqkv + 2 * of_heads, head.stride);
    }

  private:
    static constexpr long kStride = kPanel + kLanes;  // of the words of two rows: no power of two, as the caches prefer

    const Head& head;
    const Gradients& of;
    const long tokens, words;  // of a panel
    const long width, part;  // queries whose scores are computed at once
    const float scale;
    long first, rows;  // the queries of the block
    long low[kBlock + 1], high[kBlock + 1];  // the columns that each row sees, from the beginning of the panel
    float logs[kBlock + 1], inner[kBlock + 1];
    Scratch scratch;
    uint32_t *keys, *values, *key_rows, *query_columns, *grad_columns, *weights, *paired;
    float *scores, *incoming, *dkey, *dvalue;
    bf16* gradients;  // of the scores, of all rows of the block

    const bf16* query() const { return head.query + first * head.stride; }
    const bf16* grad() const { return of.grad + first * of.out_stride; }

    void add_block() {
        const long E = head.E, count = pairs(rows);
        const Keys seen(first, rows, head.reach);
        for (long r = 0; r < rows; ++r) {
            low[r] = seen.low(first + r), high[r] = seen.high(first + r);
            logs[r] = of.log_sums[(first + r) * of.log_stride];
            inner[r] = inner_product(grad() + r * of.out_stride, of.out + (first + r) * of.out_stride, E);
        }
        logs[rows] = inner[rows] = 0, low[rows] = high[rows] = 0;  // of a second row that is missing
        for (long e = 0; e < E; e += kPanel) {
            const long elements = std::min<long>(kPanel, E - e), at = e * kBlock / 2;
            pack_rows(query() + e, head.stride, rows, elements, query_columns + at);
            pack_rows(grad() + e, of.out_stride, rows, elements, grad_columns + at);
        }
        const long rest = padded(count) - count;  // words of K that the products with AMX read
        std::memset(weights + count * kStride, 0, rest * kStride * sizeof(uint32_t));
        std::memset(paired + count * kStride, 0, rest * kStride * sizeof(uint32_t));
        // Panel by panel of keys, so that the scores stay in the cache.
        for (long from = 0, columns; from < seen.count; from += columns) {
            columns = std::min<long>(kPanel - (seen.from + from) % kPanel, seen.count - from);
            add_panel(seen.from + from, columns, from);
        }
        HeadRows dquery{of.dqkv + first * head.stride, head.stride, E, nullptr};
        multiply_all(rows_of(gradients, width / 2, true), {key_rows + seen.from / 2 * kPanel, kPanel}, words,
                     pairs(seen.count), rows, 0, E, dquery);
    }

    // Adds the gradients of `columns` keys and values from number `key`; those of the scores are column `from` of `gradients`.
    void add_panel(long key, long columns, long from) {
        const long E = head.E, count = pairs(rows);
        for (long r = 0; r < rows; r += part) add_part(r, std::min(part, rows - r), key, columns, from);
        for (long e = 0; e < E; e += kPanel) {
            const long elements = std::min<long>(kPanel, E - e), at = e * kBlock / 2;
            const long sums = key / kPanel * E * kPanel + e * kPanel + key % kPanel;
            Accumulate add_key{dkey + sums, kPanel}, add_value{dvalue + sums, kPanel};
            multiply_all(packed_rows(query_columns + at), {paired, kStride}, 0, count, elements, 0, columns, add_key);
            multiply_all(packed_rows(grad_columns + at), {weights, kStride}, 0, count, elements, 0, columns, add_value);
        }
        for (long r = 0; r < rows; ++r) low[r] -= columns, high[r] -= columns;
    }

    // The probabilities of `height` rows from number `begin` of the block, and the gradients of their scores.
    void add_part(long begin, long height, long key, long columns, long from) {
        const Left left_query = rows_of(query(), head.stride / 2), left_grad = rows_of(grad(), of.out_stride / 2);
        Scores into{scores, kPanel}, into_incoming{incoming, kPanel};
        multiply_all(left_query.from(begin), {keys, kPanel}, tokens, head.E / 2, height, key, columns, into);
        multiply_all(left_grad.from(begin), {values, kPanel}, tokens, head.E / 2, height, key, columns, into_incoming);
        for (long r = begin; r < begin + height; r += 2) {
            float* row = scores + (r - begin) * kPanel;
            const long both = of.biases ? std::min(2L, begin + height - r) : 0;  // rows with biases
            const long distance = key - first - r;
            for (long i = 0; i < both; ++i)
                add_biases(row + i * kPanel, of.biases + distance - i, std::max(0L, low[r + i]), std::min(columns, high[r + i]),
                           1 / scale);
            scores_backward(row, incoming + (r - begin) * kPanel, low + r, high + r, columns, scale, logs + r, inner + r, of.drop,
                            (first + r) * width + key, weights + r / 2 * kStride, paired + r / 2 * kStride,
                            gradients + r * width + from, width);
            for (long i = 0; i < both; ++i)
                add_bias_gradients(gradients + (r + i) * width + from, of.dbiases + distance - i, std::max(0L, low[r + i]),
                                   std::min(columns, high[r + i]), 1 / scale);
        }
    }
};

}  // namespace lambert

using namespace lambert;

extern "C" {

// out [T, H, E], log_sums [T, H] float32; bounds [S + 1]; E a multiple of 16. Dropout of the probabilities by `key`.
// A window of 0: a token attends to all tokens of its sequence. keys [S]: it attends to so many of its first tokens alone,
// at least 1, or none: all. biases [H, 2 longest - 1] by key - query + longest - 1, or none.
void lambert_attention(const bf16* qkv, const int32_t* bounds, const float* biases, long longest, bf16* out,
                       float* log_sums, uint64_t key, long threshold, long window, long causal, const int32_t* keys,
                       long sequences, long H, long E, long threads) {
    const Drop drop(key, (int)threshold);
    each(sequences * H, threads, [&](long task) {
        const long start = bounds[task / H], end = bounds[task / H + 1], h = task % H;
        const Tiles tiles;
        const Reach reach{window, keys ? keys[task / H] : end - start, causal != 0};
        forward(Head(qkv, start, end, h, H, E, reach), out + (start * H + h) * E, H * E, log_sums + start * H + h, H,
                drop.part(task), biases ? biases + (2 * h + 1) * longest - 1 - h : nullptr);
    });
}

// dqkv [T, 3, H, E] and dbiases from the gradient [T, H, E] of the output. `sums` has 2 T H float32 for the gradients of the
// biases of each sequence and head, which are added in the order of the sequences.
void lambert_attention_backward(const bf16* qkv, const int32_t* bounds, const float* biases, long longest, const bf16* out,
                                const float* log_sums, const bf16* grad, bf16* dqkv, float* dbiases, float* sums,
                                uint64_t key, long threshold, long window, long causal, const int32_t* keys,
                                long sequences, long H, long E, long threads) {
    const Drop drop(key, (int)threshold);
    const auto sums_of = [&](long start, long end, long h) { return sums + 2 * (start * H + h * (end - start)); };
    each(sequences * H, threads, [&](long task) {
        const long start = bounds[task / H], end = bounds[task / H + 1], h = task % H, at = (start * H + h) * E;
        const Tiles tiles;
        float* own = biases ? sums_of(start, end, h) : nullptr;
        if (biases) std::memset(own, 0, 2 * (end - start) * sizeof(float));
        const Reach reach{window, keys ? keys[task / H] : end - start, causal != 0};
        const Gradients of{out + at, grad + at, H * E, log_sums + start * H + h, H, drop.part(task),
                           dqkv + (start * 3 * H + h) * E, biases ? biases + (2 * h + 1) * longest - 1 - h : nullptr,
                           biases ? own + (end - start) - 1 : nullptr};
        Backward(Head(qkv, start, end, h, H, E, reach), of).run();
    });
    if (biases)
        each(H, threads, [&](long h) {
            float* to = dbiases + h * (2 * longest - 1);
            std::memset(to, 0, (2 * longest - 1) * sizeof(float));
            for (long s = 0; s < sequences; ++s) {
                const long start = bounds[s], M = bounds[s + 1] - start;
                const float* from = sums_of(start, start + M, h);
                for (long i = 0; i < 2 * M - 1; ++i) to[longest - M + i] += from[i];
            }
        });
}

}  // extern "C"
