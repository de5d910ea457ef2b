// The AI core has no scalar exp, log or sqrt, but a host compiler would link libm without a word. From here on calls of
// these names do not compile; the message comes from the static_assert. Macros, because nothing else reaches names that
// <cmath> has already declared. To be included last.

#pragma once

namespace ascendc_host {

template <typename... Arguments>
float NoScalarMathOnTheAiCore(Arguments...)
{
    static_assert(sizeof...(Arguments) > 99,
                  "the AI core has no scalar math library: keep the values in the Unified Buffer and use vector "
                  "instructions (Exp, Ln, Abs, Cast)");
    return 0;
}

}  // namespace ascendc_host

#define exp(...) exp(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define expf(...) expf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define exp2(...) exp2(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define exp2f(...) exp2f(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define expm1(...) expm1(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define expm1f(...) expm1f(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define log(...) log(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define logf(...) logf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define log2(...) log2(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define log2f(...) log2f(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define log10(...) log10(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define log10f(...) log10f(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define log1p(...) log1p(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define log1pf(...) log1pf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define sqrt(...) sqrt(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define sqrtf(...) sqrtf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define cbrt(...) cbrt(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define cbrtf(...) cbrtf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define pow(...) pow(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define powf(...) powf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define hypot(...) hypot(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define hypotf(...) hypotf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define sin(...) sin(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define sinf(...) sinf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define cos(...) cos(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define cosf(...) cosf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define tan(...) tan(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define tanf(...) tanf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define asin(...) asin(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define asinf(...) asinf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define acos(...) acos(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define acosf(...) acosf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define atan(...) atan(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define atanf(...) atanf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define atan2(...) atan2(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define atan2f(...) atan2f(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define sinh(...) sinh(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define sinhf(...) sinhf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define cosh(...) cosh(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define coshf(...) coshf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define tanh(...) tanh(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define tanhf(...) tanhf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define erf(...) erf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define erff(...) erff(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define erfc(...) erfc(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define erfcf(...) erfcf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define tgamma(...) tgamma(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define tgammaf(...) tgammaf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define lgamma(...) lgamma(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define lgammaf(...) lgammaf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define floor(...) floor(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define floorf(...) floorf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define ceil(...) ceil(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define ceilf(...) ceilf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define round(...) round(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define roundf(...) roundf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define trunc(...) trunc(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define truncf(...) truncf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define rint(...) rint(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define rintf(...) rintf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define nearbyint(...) nearbyint(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define nearbyintf(...) nearbyintf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define fabs(...) fabs(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define fabsf(...) fabsf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define fma(...) fma(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define fmaf(...) fmaf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define fmod(...) fmod(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define fmodf(...) fmodf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define remainder(...) remainder(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define remainderf(...) remainderf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define ldexp(...) ldexp(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define ldexpf(...) ldexpf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define frexp(...) frexp(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
#define frexpf(...) frexpf(ascendc_host::NoScalarMathOnTheAiCore(__VA_ARGS__))
