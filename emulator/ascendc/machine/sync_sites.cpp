#include "sync_sites.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <stdexcept>

namespace ascendc_host {

namespace {

bool EndsWithPath(const std::string& path, const std::string& end)
{
    if (path.size() < end.size() || path.compare(path.size() - end.size(), end.size(), end) != 0) return false;
    return path.size() == end.size() || path[path.size() - end.size() - 1] == '/';
}

[[noreturn]] void Refuse(const std::string& entry)
{
    throw std::invalid_argument("suppress: expected FILE:LINE or FILE:LINE:KIND, got '" + entry +
                                "'; take the sites from the sync_sites of a run");
}

}  // namespace

Suppression::Suppression(const std::string& text)
{
    std::istringstream entries(text);
    for (std::string entry; std::getline(entries, entry, ',');) {
        std::istringstream parts(entry);
        std::string file, line, kind;
        std::getline(parts, file, ':');
        std::getline(parts, line, ':');
        std::getline(parts, kind);
        const bool number = !line.empty() && line.size() < 9 && std::all_of(line.begin(), line.end(), ::isdigit);
        if (file.empty() || !number) Refuse(entry);
        entries_.push_back({file, std::stoi(line), kind});
    }
}

bool Suppression::Covers(Where where, const char* kind) const
{
    for (const Entry& entry : entries_) {
        const bool kindFits = kind == nullptr || entry.kind.empty() || entry.kind == kind;
        if (entry.line == where.line && kindFits && EndsWithPath(where.file, entry.file)) return true;
    }
    return false;
}

void SyncLog::Count(Where where, const char* kind)
{
    for (Site& site : sites_) {
        if (site.where.line == where.line && site.kind == kind && site.where.file == where.file) {
            ++site.count;
            return;
        }
    }
    sites_.push_back({where, kind, 1});
}

void SyncLog::AddTo(std::map<Key, uint64_t>& total) const
{
    for (const Site& site : sites_) total[{site.where.file, site.where.line, site.kind}] += site.count;
}

}  // namespace ascendc_host
