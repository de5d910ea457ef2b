// exp(x) of differences to a maximum, which are never above 0.
#pragma once

#include "vector.h"

namespace toptheta {

// At most 1.01 units in the last place off for x from -87.33 to 0 (more than 1 at five of these floats, more than a
// half at one in 120); 0 below, where the result would be subnormal; NaN of NaN. x = n ln 2 + r with |r| <= ln 2 / 2,
// so exp(x) = 2^n exp(r), and exp(r) = 1 + r + r^2 p(r). The polynomial p is a minimax fit whose relative error in
// exp(r) is below 2^-27.
inline Floats exponential(Floats x)
{
    const Mask vanishes = greater(broadcast(-87.33F), x);
    const Floats n = rounded(multiply(x, broadcast(1.44269504F)));
    // ln 2 in two parts, the first of which has so few bits that n times it is exact
    Floats r = multiply_add(n, broadcast(-0.693359375F), x);
    r = multiply_add(n, broadcast(2.12194440e-4F), r);
    Floats p = broadcast(0.00138145988F);
    p = multiply_add(p, r, broadcast(0.00836871658F));
    p = multiply_add(p, r, broadcast(0.0416683890F));
    p = multiply_add(p, r, broadcast(0.166665211F));
    p = multiply_add(p, r, broadcast(0.49999994F));
    p = multiply_add(p, multiply(r, r), r);
    return select(vanishes, zero(), times_power_of_two(add(p, broadcast(1.0F)), n));
}

}  // namespace toptheta
