// One row (sequence, query head) from the results of its granules: compensation and output.
#pragma once

#include <cmath>
#include <cstdint>

#include "arguments.h"
#include "elements.h"
#include "rows.h"
#include "selection.h"

namespace toptheta {

// R, E and the number of kept elements of a row.
struct RowMasses {
    float maximum = -kInfinity;
    double kept_mass = 0.0;
    double discarded_mass = 0.0;
    int64_t kept = 0;
    int64_t best_granule = 0;  // the first that holds the maximum

    bool has_nan() const { return std::isnan(kept_mass) || std::isnan(discarded_mass); }
    double total() const { return kept_mass + discarded_mass; }
    // whether all scores are -inf, so that no element can stand in; NaNs are no part of a maximum
    bool is_empty() const { return maximum == -kInfinity && !has_nan(); }
};

// exp(maximum of a granule - maximum of the row); 0 where all scores of the granule are -inf, whatever the row's are
inline double granule_factor(float part, float whole)
{
    return part == -kInfinity ? 0.0 : std::exp(static_cast<double>(part) - whole);
}

// `parts` are those of one head, `stride` apart.
inline RowMasses combine_masses(const HeadPart* parts, int64_t granules, int64_t stride)
{
    RowMasses row;
    for (int64_t g = 0; g < granules; ++g) {
        if (parts[g * stride].maximum > row.maximum) {
            row.maximum = parts[g * stride].maximum;
            row.best_granule = g;
        }
    }
    for (int64_t g = 0; g < granules; ++g) {
        const HeadPart& part = parts[g * stride];
        const double factor = granule_factor(part.maximum, row.maximum);
        row.kept_mass += factor * part.kept_mass;
        row.discarded_mass += factor * part.discarded_mass;
        row.kept += part.kept;
    }
    return row;
}

// The estimate of the discarded mass (paper, SDC section); 0 where nothing is discarded.
inline double estimate_discarded_mass(const Arguments& a, int64_t row, const RowMasses& masses, double threshold,
                                      int64_t length)
{
    if (masses.kept == length) {
        return 0.0;
    }
    switch (a.sdc) {
        case kExact:
            return masses.discarded_mass;
        case kExpThreshold: {
            const double capped = std::min<double>(threshold, masses.maximum);
            return a.sdc_gamma * static_cast<double>(length - masses.kept) * std::exp(capped - masses.maximum);
        }
        case kOffline:
            return a.discarded_mass[row];
        default:
            return 0.0;
    }
}

// out / denominator + beta mu (paper equations sdc and vmc)
inline void compensate(float* out, int head_dim, double denominator, double estimate, const float* value_mean)
{
    const float scale = static_cast<float>(1.0 / denominator);
    const float beta = static_cast<float>(estimate / denominator);
    for (int i = 0; i < head_dim; ++i) {
        out[i] *= scale;
    }
    for (int i = 0; value_mean != nullptr && beta != 0.0F && i < head_dim; ++i) {
        out[i] += beta * value_mean[i];
    }
}

}  // namespace toptheta
