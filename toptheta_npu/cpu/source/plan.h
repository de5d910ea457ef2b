// How a call is cut into items of work: granules of neighbouring keys of one sequence and KV head.
//
// Their size depends on the row alone, not on threads or on the rest of the batch, and so does the order in which their
// results are combined: a row's result is the same bit for bit however many threads work and whatever is beside it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "arguments.h"
#include "query_tokens.h"
#include "scores.h"

namespace toptheta {

constexpr int64_t kGranuleBytes =
    256 << 10;  // of K: the scores stay in the L1 cache, and each thread has its turn soon
constexpr int kMostGranuleRows = 2048;
constexpr int kFewestGranuleRows = 128;

struct Sequence {
    int64_t start;  // first valid key
    int64_t length;  // keys that are read
    int64_t granules;  // per KV head
    int64_t first_item;  // items of a KV head follow each other
    int first_token;  // tokens from this one to end_token - 1 see keys
    int end_token;
};

struct Item {
    int64_t number;
    int64_t sequence;
    int64_t key_value_head;
    int64_t granule;
};

class Plan {
public:
    Plan(const Arguments& a, int64_t element_bytes)
    {
        const int64_t rows = kGranuleBytes / (a.head_dim * element_bytes) / kLanes * kLanes;
        granule_rows_ = static_cast<int>(std::clamp<int64_t>(rows, kFewestGranuleRows, kMostGranuleRows));
        sequences_.reserve(static_cast<size_t>(a.batch));
        for (int64_t b = 0; b < a.batch; ++b) {
            const int64_t length = keys_read(a, b);
            const int64_t granules = (length + granule_rows_ - 1) / granule_rows_;
            int first = 0, end = static_cast<int>(a.tokens);
            for (; first < end && keys_of_token(a, b, first) == 0; ++first) {
            }
            for (; first < end && keys_of_token(a, b, end - 1) == 0; --end) {
            }
            sequences_.push_back({first_key(a, b), length, granules, items_, first, end});
            items_ += granules * a.key_value_heads;
        }
    }

    int64_t items() const { return items_; }
    int granule_rows() const { return granule_rows_; }
    const Sequence& sequence(int64_t b) const { return sequences_[static_cast<size_t>(b)]; }

    Item item(int64_t number) const
    {
        const auto after = std::upper_bound(sequences_.begin(), sequences_.end(), number,
                                            [](int64_t item, const Sequence& s) { return item < s.first_item; });
        const int64_t b = after - sequences_.begin() - 1;
        const int64_t place = number - sequence(b).first_item;
        return {number, b, place / sequence(b).granules, place % sequence(b).granules};
    }

    int64_t first_item(int64_t b, int64_t key_value_head) const
    {
        return sequence(b).first_item + key_value_head * sequence(b).granules;
    }

private:
    std::vector<Sequence> sequences_;
    int64_t items_ = 0;
    int granule_rows_;
};

}  // namespace toptheta
