// Runs the native CPU backend over cases that Python wrote to files. There is no Python in this process, so sanitizers
// and emulators see nothing but the library: driver FOLDER writes a .result beside each .case of the folder.
//
// A .case is, in 8-byte integers of this machine and raw bytes:
//   size of Arguments, number of tensors, number of runs
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

struct Run {
    toptheta::Arguments arguments;
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

// Puts the tensor in place of its number.
template <class Pointer>
void point_at_input(Pointer& field, const Buffers& tensors)
{
    const auto number = reinterpret_cast<uintptr_t>(field);
    if (number > tensors.size()) {
        fail("a tensor that is not in the file");
    }
    field = number == 0 ? nullptr : reinterpret_cast<Pointer>(tensors[number - 1]->data());
}

// Puts new memory in place of the number of bytes.
template <class Pointer>
void point_at_output(Pointer& field, Buffers& outputs)
{
    const auto bytes = static_cast<std::size_t>(reinterpret_cast<uintptr_t>(field));
    if (bytes == 0) {
        field = nullptr;
        return;
    }
    outputs.push_back(std::make_unique<Buffer>(bytes));
    std::memset(outputs.back()->data(), 0xA5, bytes);
    field = reinterpret_cast<Pointer>(outputs.back()->data());
}

void run_case(Run run, const Buffers& tensors, std::ostream& result)
{
    toptheta::Arguments& a = run.arguments;
    for (const void** field : {&a.query.data, &a.key.data, &a.value.data, &a.lengths.data, &a.starts.data}) {
        point_at_input(*field, tensors);
    }
    for (const float** field : {&a.threshold, &a.row_lse, &a.discarded_mass, &a.value_mean}) {
        point_at_input(*field, tensors);
    }
    point_at_input(a.block_table, tensors);
    Buffers outputs;
    point_at_output(a.out, outputs);
    point_at_output(a.lse, outputs);
    point_at_output(a.kept, outputs);
    point_at_output(a.value_rows, outputs);
    for (float** field : {&a.maximum, &a.kept_mass, &a.discarded_part}) {
        point_at_output(*field, outputs);
    }
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
        run_case(run, tensors, result);
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
