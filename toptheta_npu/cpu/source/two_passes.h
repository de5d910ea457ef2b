// The order of a step that goes through its scores twice: the second pass over a KV head needs what the first found in
// all of its granules. Both take turns, so that the scores of few KV heads wait in the caches.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "plan.h"

namespace toptheta {

// A pair is a sequence and a KV head. No turn waits but for turns before it, so whoever takes them in order ends.
class TwoPasses {
public:
    struct Turn {
        int64_t item;
        int64_t pair;
        bool is_second;
    };

    TwoPasses(const Plan& plan, int64_t batch, int64_t key_value_heads, int64_t threads)
        : pairs_(static_cast<size_t>(batch * key_value_heads))
    {
        for (int64_t pair = 0; pair < batch * key_value_heads; ++pair) {
            const int64_t b = pair / key_value_heads, granules = plan.sequence(b).granules;
            const int64_t first = plan.first_item(b, pair % key_value_heads);
            Pair& made = pairs_[static_cast<size_t>(pair)];
            made.first_item = first;
            made.end_item = first + granules;
            made.unscored.store(granules, std::memory_order_relaxed);
            made.unread.store(granules, std::memory_order_relaxed);
        }
        turns_.reserve(static_cast<size_t>(2 * plan.items()));
        order(threads);
    }

    int64_t turns() const { return static_cast<int64_t>(turns_.size()); }
    const Turn& turn(int64_t number) const { return turns_[static_cast<size_t>(number)]; }
    // Pairs whose scores have a place at a time, and the place of a pair's.
    int64_t places() const { return places_; }
    int64_t place(int64_t pair) const { return pair % places_; }

    bool is_place_free(int64_t pair) const
    {
        return pair < places_ || at(pair - places_).unread.load(std::memory_order_acquire) == 0;
    }
    // Whether this was the last of the pair's granules to be scored: then the second pass may begin.
    bool end_first(int64_t pair) { return at(pair).unscored.fetch_sub(1, std::memory_order_acq_rel) == 1; }
    void end_second(int64_t pair) { at(pair).unread.fetch_sub(1, std::memory_order_release); }

private:
    struct Pair {
        int64_t first_item;
        int64_t end_item;
        std::atomic<int64_t> unscored;
        std::atomic<int64_t> unread;
    };

    Pair& at(int64_t pair) { return pairs_[static_cast<size_t>(pair)]; }
    const Pair& at(int64_t pair) const { return pairs_[static_cast<size_t>(pair)]; }

    // As many items are scored ahead of a second pass as there are threads: so it rarely waits.
    void order(int64_t threads)
    {
        const int64_t pairs = static_cast<int64_t>(pairs_.size());
        int64_t scored = 0, ahead = 0;
        for (int64_t pair = 0; pair < pairs; ++pair) {
            while (scored < pairs && (scored <= pair || at(scored).first_item - at(pair).end_item < threads)) {
                add(scored++, false);
            }
            ahead = std::max(ahead, scored - pair);
            add(pair, true);
        }
        places_ = std::min(ahead + 1, pairs);
    }

    void add(int64_t pair, bool is_second)
    {
        for (int64_t item = at(pair).first_item; item < at(pair).end_item; ++item) {
            turns_.push_back({item, pair, is_second});
        }
    }

    std::vector<Pair> pairs_;
    std::vector<Turn> turns_;
    int64_t places_ = 0;
};

}  // namespace toptheta
