// The query tokens of a sequence: the rows that share K, and the keys that each sees. They are right-aligned: the last
// real token sees all keys.
#pragma once

#include <algorithm>
#include <cstdint>

#include "arguments.h"

namespace toptheta {

constexpr int kMostTokens = 16;

// Rows of a query, token by token: row r is query head first_head + r % heads of token first_token + r / heads.
struct QueryRows {
    int64_t sequence;
    int64_t first_head;
    int heads;
    int first_token;
    int tokens;

    int count() const { return heads * tokens; }
    int64_t head(int row) const { return first_head + row % heads; }
    int token(int row) const { return first_token + row / heads; }

    template <class Stored>
    const Stored* address(const Arguments& a, int row) const
    {
        return static_cast<const Stored*>(a.query.data) + sequence * a.query.sequence_stride +
               head(row) * a.query.head_stride + token(row) * a.query.row_stride;
    }
};

inline int64_t first_key(const Arguments& a, int64_t b) { return a.starts.data == nullptr ? 0 : a.starts[b]; }

// n of a sequence, where lengths are not by token.
inline int64_t valid_keys(const Arguments& a, int64_t b, int64_t start)
{
    return a.lengths.data == nullptr ? a.capacity - start : a.lengths[b];
}

// The tokens that are there: they come first. Without numbers of them all are, or none where there are no keys.
inline int64_t real_tokens(const Arguments& a, int64_t b, int64_t valid)
{
    if (a.query_lengths.data == nullptr) {
        return valid == 0 ? 0 : a.tokens;
    }
    return a.query_lengths[b];
}

// The keys that a token sees, from the first valid one on; 0 behind the real tokens.
inline int64_t keys_of_token(const Arguments& a, int64_t b, int64_t token)
{
    if (a.are_lengths_by_token != 0) {
        return a.lengths[b * a.tokens + token];
    }
    const int64_t valid = valid_keys(a, b, first_key(a, b)), real = real_tokens(a, b, valid);
    return token < real ? valid - real + 1 + token : 0;
}

// The keys that are read of a sequence: what some token sees.
inline int64_t keys_read(const Arguments& a, int64_t b)
{
    int64_t most = 0;
    for (int64_t token = 0; token < a.tokens; ++token) {
        most = std::max(most, keys_of_token(a, b, token));
    }
    return most;
}

}  // namespace toptheta
