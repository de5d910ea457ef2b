// Errors in the words of the Python package: argument, what was expected, what came, the remedy.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace toptheta {

enum class ErrorKind : uint32_t { kNone, kValue, kType, kNotSupported };

struct ArgumentError {
    ErrorKind kind = ErrorKind::kNone;
    std::string message;

    explicit operator bool() const { return kind != ErrorKind::kNone; }
};

inline ArgumentError MakeError(ErrorKind kind, const std::string& argument, const std::string& expected,
                               const std::string& got, const std::string& remedy)
{
    const std::string text = argument + ": expected " + expected + ", got " + got;
    return {kind, remedy.empty() ? text : text + "; " + remedy};
}

inline ArgumentError ValueError(const std::string& argument, const std::string& expected, const std::string& got,
                                const std::string& remedy = "")
{
    return MakeError(ErrorKind::kValue, argument, expected, got, remedy);
}

// Arguments that need or exclude each other, though each by itself is well.
inline ArgumentError CombinationError(const std::string& argument, const std::string& relation,
                                      const std::string& other, const std::string& remedy)
{
    return {ErrorKind::kValue, argument + " " + relation + " " + other + "; " + remedy};
}

inline ArgumentError TypeError(const std::string& argument, const std::string& expected, const std::string& got,
                               const std::string& remedy = "")
{
    return MakeError(ErrorKind::kType, argument, expected, got, remedy);
}

inline ArgumentError NotSupportedError(const std::string& argument, const std::string& expected, const std::string& got,
                                       const std::string& remedy = "")
{
    return MakeError(ErrorKind::kNotSupported, argument, expected, got, remedy);
}

inline std::string ListText(const std::vector<int64_t>& values)
{
    std::string text = "[";
    for (size_t i = 0; i < values.size(); i++) {
        text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
    }
    return text + "]";
}

inline std::string NumberText(double value)
{
    if (std::isnan(value)) {
        return "nan";  // printf would show its sign
    }
    char text[32];
    std::snprintf(text, sizeof(text), "%g", value);
    return text;
}

inline std::string Quoted(const std::string& text) { return "'" + text + "'"; }

}  // namespace toptheta
