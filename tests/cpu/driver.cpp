// Runs the native CPU backend over cases that Python wrote to files. There is no Python in this process, so sanitizers
// and emulators see nothing but the library: driver FOLDER writes a .result beside each .case of the folder.
//
// A .case is, in 8-byte integers of this machine and raw bytes:
//   size of Arguments, number of tensors, number of runs
//   what each 8-byte field of Arguments is: 0 a number, 1 the address of an input, 2 that of an output
//   the bytes of each tensor
//   the runs: Arguments, and the number of the allocation that finds no memory (-1: none). In place of addresses, an
//   input has the number of its tensor, from 1 on, and an output its bytes; 0 is a null pointer.
//   the tensors
// A .result is, for each run, its status and the outputs that it has, in the order of Arguments.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "arguments.h"

extern "C" int32_t toptheta_incremental_attention(const toptheta::Arguments* arguments);

namespace {

std::atomic<int64_t> allocations_left{-1};  // until one fails; below 0 none does
thread_local bool is_spared = false;        // the driver's own allocations never fail

// neither is inlined: g++ would warn of a pointer of new that free() takes
[[gnu::noinline]] void* allocate(std::size_t bytes, std::size_t alignment)
{
    if (!is_spared && allocations_left.load() >= 0 && allocations_left.fetch_sub(1) == 0) {
        throw std::bad_alloc();
    }
    // malloc wherever it will do: it takes exactly so many bytes, and AddressSanitizer sees the first one past them
    void* memory = alignment <= alignof(std::max_align_t)
                       ? std::malloc(std::max<std::size_t>(bytes, 1))
                       : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (memory == nullptr) {
        throw std::bad_alloc();
    }
    return memory;
}

[[gnu::noinline]] void release(void* memory) { std::free(memory); }

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes, 1); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment)
{
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace {

[[noreturn]] void fail(const std::string& what)
{
    std::fprintf(stderr, "driver: %s\n", what.c_str());
    std::exit(2);
}

// Memory of a tensor. Under AddressSanitizer it lies on the heap; otherwise it ends where a page that may not be
// touched begins, so that its last element is aligned to nothing more than its own size.
class Buffer {
public:
    explicit Buffer(std::size_t bytes) : bytes_(bytes)
    {
#if defined(__SANITIZE_ADDRESS__)
        data_ = static_cast<char*>(std::malloc(bytes));
#else
        const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        const std::size_t whole = (bytes + page - 1) / page * page;
        mapped_bytes_ = whole + page;
        mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped_ == MAP_FAILED || mprotect(static_cast<char*>(mapped_) + whole, page, PROT_NONE) != 0) {
            fail("no memory for a tensor");
        }
        data_ = static_cast<char*>(mapped_) + whole - bytes;
#endif
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer()
    {
#if defined(__SANITIZE_ADDRESS__)
        std::free(data_);
#else
        munmap(mapped_, mapped_bytes_);
#endif
    }

    char* data() const { return data_; }
    std::size_t bytes() const { return bytes_; }

private:
    std::size_t bytes_;
    char* data_;
    [[maybe_unused]] void* mapped_ = nullptr;
    [[maybe_unused]] std::size_t mapped_bytes_ = 0;
};

using Buffers = std::vector<std::unique_ptr<Buffer>>;

using Fields = std::array<int64_t, sizeof(toptheta::Arguments) / sizeof(int64_t)>;
enum Kind : int64_t { kNumber = 0, kInput = 1, kOutput = 2 };

struct Run {
    Fields fields;
    int64_t failing_allocation;
};

template <class Value>
Value read(std::istream& file)
{
    Value value;
    file.read(reinterpret_cast<char*>(&value), sizeof value);
    return value;
}

// As GOMP_parallel, over threads that sanitizers know.
void run_in_parallel(void (*function)(void*), void* data, unsigned threads, unsigned)
{
    is_spared = true;
    std::vector<std::thread> others;
    for (unsigned thread = 1; thread < threads; ++thread) {
        others.emplace_back(function, data);
    }
    is_spared = false;
    function(data);
    for (std::thread& other : others) {
        other.join();
    }
}

// The address of the tensor with this number.
int64_t address_of_input(int64_t number, const Buffers& tensors)
{
    if (number < 0 || static_cast<std::size_t>(number) > tensors.size()) {
        fail("a tensor that is not in the file");
    }
    return number == 0 ? 0 : reinterpret_cast<int64_t>(tensors[static_cast<std::size_t>(number) - 1]->data());
}

// The address of so many bytes of new memory.
int64_t address_of_output(int64_t bytes, Buffers& outputs)
{
    if (bytes == 0) {
        return 0;
    }
    outputs.push_back(std::make_unique<Buffer>(static_cast<std::size_t>(bytes)));
    std::memset(outputs.back()->data(), 0xA5, outputs.back()->bytes());
    return reinterpret_cast<int64_t>(outputs.back()->data());
}

void run_case(Run run, const Fields& kinds, const Buffers& tensors, std::ostream& result)
{
    Buffers outputs;
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        if (kinds[i] == kInput) {
            run.fields[i] = address_of_input(run.fields[i], tensors);
        } else if (kinds[i] == kOutput) {
            run.fields[i] = address_of_output(run.fields[i], outputs);
        }
    }
    toptheta::Arguments a;
    std::memcpy(&a, run.fields.data(), sizeof a);
    a.run_in_parallel = run_in_parallel;
    allocations_left = run.failing_allocation;
    const int64_t status = toptheta_incremental_attention(&a);
    allocations_left = -1;
    result.write(reinterpret_cast<const char*>(&status), sizeof status);
    for (const auto& output : outputs) {
        result.write(output->data(), static_cast<std::streamsize>(output->bytes()));
    }
}

void run_file(const std::filesystem::path& path)
{
    std::ifstream file(path, std::ios::binary);
    const auto sizes = read<std::array<int64_t, 3>>(file);
    if (!file || sizes[0] != static_cast<int64_t>(sizeof(toptheta::Arguments))) {
        fail("another struct Arguments in " + path.string());
    }
    const auto kinds = read<Fields>(file);
    Buffers tensors(static_cast<std::size_t>(sizes[1]));
    for (auto& tensor : tensors) {
        tensor = std::make_unique<Buffer>(static_cast<std::size_t>(read<int64_t>(file)));
    }
    std::vector<Run> runs(static_cast<std::size_t>(sizes[2]));
    for (Run& run : runs) {
        run = read<Run>(file);
    }
    for (const auto& tensor : tensors) {
        file.read(tensor->data(), static_cast<std::streamsize>(tensor->bytes()));
    }
    if (!file || file.peek() != std::ifstream::traits_type::eof()) {
        fail("another length of " + path.string());
    }
    std::ofstream result(std::filesystem::path(path).replace_extension(".result"), std::ios::binary);
    for (const Run& run : runs) {
        run_case(run, kinds, tensors, result);
    }
    if (!result.flush()) {
        fail("the result cannot be written: " + path.string());
    }
}

}  // namespace

int main(int count, char** words)
{
    if (count != 2) {
        fail("expected the folder of the cases");
    }
    std::vector<std::filesystem::path> cases;
    for (const auto& entry : std::filesystem::directory_iterator(words[1])) {
        if (entry.path().extension() == ".case") {
            cases.push_back(entry.path());
        }
    }
    std::sort(cases.begin(), cases.end());
    for (const auto& path : cases) {
        // the last name says where a sanitizer stopped the process
        std::fprintf(stderr, "%s\n", path.stem().c_str());
        run_file(path);
    }
    return 0;
}
