// Small pieces of text for findings.
#pragma once

#include <cstring>
#include <string>

#include "types.h"

namespace ascendc_host {

inline const char* BaseName(const char* path)
{
    const char* slash = std::strrchr(path, '/');
    return slash == nullptr ? path : slash + 1;
}

inline std::string Place(Where where) { return std::string(BaseName(where.file)) + ":" + std::to_string(where.line); }

constexpr const char* CoreKindName(CoreKind kind) { return kind == CoreKind::kCube ? "cube" : "vector"; }

constexpr const char* PipeName(Pipe pipe)
{
    switch (pipe) {
        case Pipe::kS:
            return "S";
        case Pipe::kV:
            return "V";
        case Pipe::kM:
            return "M";
        case Pipe::kMte1:
            return "MTE1";
        case Pipe::kMte2:
            return "MTE2";
        case Pipe::kMte3:
            return "MTE3";
        case Pipe::kFix:
            return "FIX";
        default:
            return "ALL";
    }
}

}  // namespace ascendc_host
