// Goes through the turns of a step with two passes while the second pass of one KV head stays away, for each in turn:
// two_passes THREADS KV_HEADS LENGTH... Says how many places there are, or what went wrong.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "two_passes.h"

using toptheta::TwoPasses;

namespace {

// Whether the scores of `held` (-1: nobody) stay alone in their place until its second pass ends, and, with nobody
// held up, whether no turn waits for one that comes after it.
bool are_places_right(const toptheta::Plan& plan, int64_t batch, int64_t heads, int64_t threads, int64_t held)
{
    TwoPasses passes(plan, batch, heads, threads);
    bool has_scores = false;
    for (int64_t number = 0; number < passes.turns(); ++number) {
        const TwoPasses::Turn turn = passes.turn(number);
        if (turn.is_second) {
            if (turn.pair != held) {
                passes.end_second(turn.pair);
            }
            continue;
        }
        if (!passes.is_place_free(turn.pair)) {
            return held >= 0;  // all threads wait here for the pair that is held up
        }
        if (has_scores && turn.pair != held && passes.place(turn.pair) == passes.place(held)) {
            std::printf("KV head %ld writes over the scores of %ld\n", long(turn.pair), long(held));
            return false;
        }
        has_scores = has_scores || turn.pair == held;
    }
    return true;
}

}  // namespace

int main(int count, char** words)
{
    std::vector<int64_t> lengths;
    for (int i = 3; i < count; ++i) {
        lengths.push_back(std::atol(words[i]));
    }
    const int64_t threads = std::atol(words[1]), heads = std::atol(words[2]);
    toptheta::Arguments a{};
    a.batch = static_cast<int64_t>(lengths.size());
    a.heads = a.key_value_heads = heads;
    a.head_dim = 256;
    a.tokens = 1;
    a.capacity = 1 << 20;
    a.lengths = {lengths.data(), 1};
    const toptheta::Plan plan(a, 2);
    for (int64_t held = -1; held < a.batch * heads; ++held) {
        if (!are_places_right(plan, a.batch, heads, threads, held)) {
            return 1;
        }
    }
    std::printf("%ld\n", long(TwoPasses(plan, a.batch, heads, threads).places()));
    return 0;
}
