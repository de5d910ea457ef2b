// Which sync calls a run executes, and which of them a mutation run switches off.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "types.h"

namespace ascendc_host {

// The parsed form of LaunchOptions::suppress.
class Suppression {
public:
    // Throws std::invalid_argument when an entry is neither FILE:LINE nor FILE:LINE:KIND.
    explicit Suppression(const std::string& text);

    bool Covers(Where where, const char* kind) const;  // any kind when `kind` is null

private:
    struct Entry {
        std::string file;  // a path matches when it ends with this file name or path
        int line;
        std::string kind;  // empty: every kind
    };
    std::vector<Entry> entries_;
};

class SyncLog {
public:
    using Key = std::tuple<std::string, int, std::string>;  // file, line, kind

    void Count(Where where, const char* kind);
    void AddTo(std::map<Key, uint64_t>& total) const;

private:
    struct Site {
        Where where;
        const char* kind;
        uint64_t count;
    };
    std::vector<Site> sites_;
};

}  // namespace ascendc_host
