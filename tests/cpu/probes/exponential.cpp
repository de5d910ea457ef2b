// Reads floats and writes their exponentials, as the library computes them.
#include <cstdio>
#include <vector>

#include "exponential.h"

int main()
{
    using toptheta::kLanes;
    std::vector<float> numbers(1 << 16);
    static_assert((1 << 16) % kLanes == 0);
    for (size_t count; (count = std::fread(numbers.data(), sizeof(float), numbers.size(), stdin)) > 0;) {
        for (size_t i = 0; i < count; i += kLanes) {
            toptheta::store(numbers.data() + i, toptheta::exponential(toptheta::load(numbers.data() + i)));
        }
        std::fwrite(numbers.data(), sizeof(float), count, stdout);
    }
    return 0;
}
