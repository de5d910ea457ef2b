// Global memory: the kernel's arguments as named buffers, shared by all cores.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "launch.h"

namespace ascendc_host {

// One flag per byte, in memory that the host gives out page by page, so that a map of several GiB costs what is used.
class InitMap {
public:
    explicit InitMap(uint64_t bytes);
    ~InitMap();
    InitMap(const InitMap&) = delete;
    InitMap& operator=(const InitMap&) = delete;

    void Mark(uint64_t begin, uint64_t end);
    void Clear(uint64_t begin, uint64_t end);
    uint64_t FirstUnset(uint64_t begin, uint64_t end) const;  // `end` when all are set

private:
    uint8_t* flags_;
    uint64_t bytes_;
};

struct GmBuffer {
    std::string name;
    uint8_t* base = nullptr;
    uint64_t bytes = 0;
    size_t argument = 0;
    bool writable = false;
    bool workspace = false;
    std::unique_ptr<InitMap> written;  // null: everything is initialised from the start

    bool Contains(const uint8_t* address, uint64_t size) const
    {
        return address >= base && size <= bytes && static_cast<uint64_t>(address - base) <= bytes - size;
    }
};

class GmMemory {
public:
    // Arguments whose bytes overlap become one buffer named "a|b".
    explicit GmMemory(const std::vector<GmArgument>& arguments);

    int Find(const void* address, uint64_t size) const;  // index of the buffer, -1 when it is in none
    GmBuffer& operator[](int buffer) { return buffers_[buffer]; }
    const GmBuffer& operator[](int buffer) const { return buffers_[buffer]; }
    int Size() const { return static_cast<int>(buffers_.size()); }
    std::string Describe(const void* address) const;  // "key + 4096", "128 bytes after key"
    std::string Range(int buffer, uint64_t begin, uint64_t end) const;  // "key + 0..63"

private:
    std::vector<GmBuffer> buffers_;  // in the order of the arguments
};

}  // namespace ascendc_host
