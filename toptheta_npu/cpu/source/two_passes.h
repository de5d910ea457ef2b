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
    int64_t place(int64_t pair) const { return at(pair).place; }

    bool is_place_free(int64_t pair) const
    {
        const Pair* before = at(pair).before_in_place;
        return before == nullptr || before->unread.load(std::memory_order_acquire) == 0;
    }
    // Whether this was the last of the pair's granules to be scored: then the second pass may begin.
    bool end_first(int64_t pair) { return at(pair).unscored.fetch_sub(1, std::memory_order_acq_rel) == 1; }
    void end_second(int64_t pair) { at(pair).unread.fetch_sub(1, std::memory_order_release); }

private:
    struct Pair {
        int64_t first_item;
        int64_t end_item;
        int64_t place;
        const Pair* before_in_place;  // null: nobody has had the place
        std::atomic<int64_t> unscored;
        std::atomic<int64_t> unread;
    };

    Pair& at(int64_t pair) { return pairs_[static_cast<size_t>(pair)]; }
    const Pair& at(int64_t pair) const { return pairs_[static_cast<size_t>(pair)]; }

    // As many items are scored ahead of a second pass as there are threads: so it rarely waits. Pairs without keys have
    // no turn and no place: nobody could see by them whether the one before has left it.
    void order(int64_t threads)
    {
        std::vector<int64_t> pairs;
        for (size_t pair = 0; pair < pairs_.size(); ++pair) {
            if (pairs_[pair].first_item < pairs_[pair].end_item) {
                pairs.push_back(static_cast<int64_t>(pair));
            }
        }
        size_t scored = 0, ahead = 0;
        for (size_t number = 0; number < pairs.size(); ++number) {
            const int64_t end = at(pairs[number]).end_item;
            while (scored < pairs.size() && (scored <= number || at(pairs[scored]).first_item - end < threads)) {
                add(pairs[scored++], false);
            }
            ahead = std::max(ahead, scored - number);
            add(pairs[number], true);
        }
        give_places(pairs, std::min(ahead + 1, pairs.size()));
    }

    void give_places(const std::vector<int64_t>& pairs, size_t places)
    {
        places_ = static_cast<int64_t>(places);
        for (size_t number = 0; number < pairs.size(); ++number) {
            at(pairs[number]).place = static_cast<int64_t>(number % places);
            at(pairs[number]).before_in_place = number < places ? nullptr : &at(pairs[number - places]);
        }
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
