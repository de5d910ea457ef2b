#include "gm_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace ascendc_host {

namespace {

// Garbage is only written where it costs no memory that the kernel would not use anyhow.
constexpr uint64_t kGarbageLimit = 256ull << 20;
constexpr int kGarbage = 0xFF;  // NaN in every floating point type, -1 in every integer type

void Absorb(GmBuffer& buffer, const GmBuffer& other)
{
    buffer.name += "|" + other.name;
    buffer.bytes = std::max(buffer.bytes, static_cast<uint64_t>(other.base - buffer.base) + other.bytes);
    buffer.writable = buffer.writable || other.writable;
    buffer.workspace = buffer.workspace && other.workspace;
    buffer.written.reset();
    buffer.argument = std::min(buffer.argument, other.argument);
}

std::vector<GmBuffer> ByAddress(const std::vector<GmArgument>& arguments)
{
    std::vector<GmBuffer> buffers;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const GmArgument& argument = arguments[i];
        if (argument.data == nullptr || argument.bytes == 0) continue;
        GmBuffer buffer;
        buffer.name = argument.name;
        buffer.base = static_cast<uint8_t*>(argument.data);
        buffer.bytes = argument.bytes;
        buffer.argument = i;
        buffer.writable = argument.role != Role::kIn;
        buffer.workspace = argument.role == Role::kWorkspace;
        if (argument.role == Role::kOut || argument.role == Role::kWorkspace) {
            buffer.written = std::make_unique<InitMap>(argument.bytes);
        }
        buffers.push_back(std::move(buffer));
    }
    std::stable_sort(buffers.begin(), buffers.end(),
                     [](const GmBuffer& a, const GmBuffer& b) { return a.base < b.base; });
    return buffers;
}

}  // namespace

InitMap::InitMap(uint64_t bytes) : bytes_(bytes)
{
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    flags_ = static_cast<uint8_t*>(pages);
}

InitMap::~InitMap() { munmap(flags_, bytes_); }

void InitMap::Mark(uint64_t begin, uint64_t end) { std::memset(flags_ + begin, 1, end - begin); }

void InitMap::Clear(uint64_t begin, uint64_t end) { std::memset(flags_ + begin, 0, end - begin); }

uint64_t InitMap::FirstUnset(uint64_t begin, uint64_t end) const
{
    const void* unset = std::memchr(flags_ + begin, 0, end - begin);
    return unset == nullptr ? end : static_cast<uint64_t>(static_cast<const uint8_t*>(unset) - flags_);
}

GmMemory::GmMemory(const std::vector<GmArgument>& arguments)
{
    std::vector<GmBuffer> byAddress = ByAddress(arguments);
    for (GmBuffer& buffer : byAddress) {
        if (!buffers_.empty() && buffer.base < buffers_.back().base + buffers_.back().bytes) {
            Absorb(buffers_.back(), buffer);
        } else {
            buffers_.push_back(std::move(buffer));
        }
    }
    std::sort(buffers_.begin(), buffers_.end(),
              [](const GmBuffer& a, const GmBuffer& b) { return a.argument < b.argument; });
    for (GmBuffer& buffer : buffers_) {
        if (buffer.written && buffer.bytes <= kGarbageLimit) std::memset(buffer.base, kGarbage, buffer.bytes);
    }
}

int GmMemory::Find(const void* address, uint64_t size) const
{
    const auto* byte = static_cast<const uint8_t*>(address);
    for (int i = 0; i < Size(); ++i) {
        if (buffers_[i].Contains(byte, size)) return i;
    }
    return -1;
}

std::string GmMemory::Describe(const void* address) const
{
    if (address == nullptr) return "nullptr";
    const auto* byte = static_cast<const uint8_t*>(address);
    std::string nearest = "an unknown address";
    uint64_t nearestDistance = ~0ull;
    for (const GmBuffer& buffer : buffers_) {
        const uint8_t* end = buffer.base + buffer.bytes;
        if (byte >= buffer.base && byte < end) return buffer.name + " + " + std::to_string(byte - buffer.base);
        const bool below = byte < buffer.base;
        const auto distance = static_cast<uint64_t>(below ? buffer.base - byte : byte - end);
        if (distance >= nearestDistance) continue;
        nearestDistance = distance;
        nearest = std::to_string(distance) + (below ? " bytes before " : " bytes after ") + buffer.name;
    }
    return nearest;
}

std::string GmMemory::Range(int buffer, uint64_t begin, uint64_t end) const
{
    return buffers_[static_cast<size_t>(buffer)].name + " + " + std::to_string(begin) + ".." + std::to_string(end - 1);
}

}  // namespace ascendc_host
