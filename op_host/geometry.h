// Sizes and strides that the arguments imply, and the checks of query, key and value on the way.
#pragma once

#include "../op_kernel/ub_layout.h"
#include "../op_kernel/top_theta_incremental_attention_tiling_data.h"
#include "generic_checks.h"

namespace toptheta {

constexpr int64_t kMinHeadDim = 16;
constexpr int64_t kHeadDimStep = 16;        // rows are whole 32-byte blocks of a 16-bit type
constexpr int64_t kStrideStep = 16;         // elements, for the same reason
constexpr int64_t kInt8Step = 32;           // both for int8
constexpr int64_t kMaxBatch = 65536;
constexpr int64_t kMaxHeads = 4096;         // keeps B * Hq far inside 32 bits
constexpr int64_t kMaxQueryTokens = 16;
constexpr int64_t kMaxCapacity = 262144;
constexpr int64_t kMaxPageRows = 512;
constexpr int64_t kMaxRowGapBytes = 2147483646;  // the gap between rows is a 32-bit field of a copy

struct Geometry {
    int64_t batch = 0;
    int64_t numHeads = 0;
    int64_t numKeyValueHeads = 0;
    int64_t headDim = 0;
    int64_t queryTokens = 1;
    int64_t capacity = 0;
    int64_t tableWidth = 0;
    int64_t blocks = 0;  // of a paged cache
    CacheStrides key = {0, 0, 0};
    CacheStrides value = {0, 0, 0};
    CacheStrides keyScales = {0, 0, 0};  // of those per token and head
    CacheStrides valueScales = {0, 0, 0};

    // Query rows of a KV head.
    int64_t Group() const { return numHeads / numKeyValueHeads * queryTokens; }
};

// Several query tokens, or one that may be none: such calls have a kernel of their own.
inline bool HasTokens(const Arguments& arguments, const Geometry& geometry)
{
    return geometry.queryTokens > 1 || arguments.Has(InputIndex::kActualQueryLengths);
}

inline ArgumentError CheckQueryForm(const Arguments& arguments)
{
    const TensorDescription& query = arguments.inputs[InputIndex::kQuery];
    const std::string& layout = arguments.inputLayout;
    const bool flat = layout == "BSH";
    const std::string form = layout + (flat               ? " [B, Sq, Hq*D]"
                                       : layout == "BNSD" ? " [B, Hq, Sq, D]"
                                                          : " [B, Sq, Hq, D]");
    if (query.dims.size() != (flat ? 3U : 4U)) {
        return ValueError("query", form, ListText(query.dims));
    }
    if (query.dims[0] < 1) {
        return ValueError("query", "at least one sequence", ListText(query.dims));
    }
    if (query.dims[0] > kMaxBatch) {
        return ValueError("query", "at most " + std::to_string(kMaxBatch) + " sequences", ListText(query.dims),
                          "split the batch");
    }
    const int64_t tokens = query.dims[layout == "BNSD" ? 2 : 1];
    if (tokens < 1) {
        return ValueError("query", "at least one token, " + form, ListText(query.dims));
    }
    if (tokens > kMaxQueryTokens) {
        return NotSupportedError("query", "1 to " + std::to_string(kMaxQueryTokens) + " tokens, " + form,
                                 ListText(query.dims), "use prefill_attention for more tokens");
    }
    return CheckType("query", query, {ElementType::kFloat16, ElementType::kBfloat16});
}

inline ArgumentError CheckHeadDimStep(int64_t headDim, int64_t step, const char* caches)
{
    if (headDim % step == 0) {
        return {};
    }
    return NotSupportedError("query", "head_dim a multiple of " + std::to_string(step) + caches + " on an NPU",
                             std::to_string(headDim), "pad query, key and value with zeros and keep scale_value");
}

inline ArgumentError ResolveQuery(const Arguments& arguments, Geometry& geometry)
{
    if (const ArgumentError error = CheckQueryForm(arguments)) {
        return error;
    }
    const std::vector<int64_t>& dims = arguments.Dims(InputIndex::kQuery);
    const int64_t heads = arguments.numHeads;
    geometry.batch = dims[0];
    geometry.numHeads = heads;
    geometry.queryTokens = dims[arguments.inputLayout == "BNSD" ? 2 : 1];
    if (arguments.inputLayout == "BSH") {
        if (heads < 1 || dims[2] % heads != 0) {
            return ValueError("num_heads", "a divisor of the hidden size " + std::to_string(dims[2]),
                              std::to_string(heads));
        }
        geometry.headDim = dims[2] / heads;
    } else {
        const int64_t found = dims[arguments.inputLayout == "BNSD" ? 1 : 2];
        if (heads != found) {
            return ValueError("num_heads", std::to_string(found) + ", as query says", std::to_string(heads));
        }
        geometry.headDim = dims[3];
    }
    if (heads < 1 || heads > kMaxHeads) {
        return ValueError("num_heads", "1 to " + std::to_string(kMaxHeads), std::to_string(heads));
    }
    if (geometry.headDim < kMinHeadDim || geometry.headDim > kMaxHeadDim) {
        return ValueError("query", "head_dim from 16 to 512", std::to_string(geometry.headDim));
    }
    return CheckHeadDimStep(geometry.headDim, kHeadDimStep, "");
}

inline ArgumentError ResolveKeyValueHeads(const Arguments& arguments, Geometry& geometry)
{
    const std::vector<int64_t>& key = arguments.Dims(InputIndex::kKey);
    const bool paged = arguments.Paged();
    const bool flatLayout = arguments.inputLayout == "BSH";
    const int64_t given = arguments.numKeyValueHeads;
    if (key.size() == 4 && (paged || !flatLayout)) {
        const int64_t found = key[paged || arguments.inputLayout == "BNSD" ? 1 : 2];
        if (given != found) {
            return ValueError("num_key_value_heads", std::to_string(found) + ", as key says", std::to_string(given));
        }
    } else if (key.size() != 3 || !(paged || flatLayout)) {
        const std::string forms = paged ? "4 or 3" : flatLayout ? "3" : "4";
        return ValueError("key", forms + " dimensions for " + (paged ? "a paged cache" : arguments.inputLayout),
                          ListText(key));
    }
    if (given < 1 || geometry.numHeads % given != 0) {
        return ValueError("num_key_value_heads",
                          "a divisor of the " + std::to_string(geometry.numHeads) + " query heads",
                          std::to_string(given), "check the KV cache's layout");
    }
    geometry.numKeyValueHeads = given;
    return {};
}

inline ArgumentError CheckPaging(const Arguments& arguments, Geometry& geometry)
{
    const int64_t rows = arguments.blockSize;
    if (!arguments.Paged()) {
        return rows == 0 ? ArgumentError()
                         : CombinationError("block_size=" + std::to_string(rows), "needs", "block_table",
                                            "give the table of the paged cache, or leave block_size out");
    }
    const TensorDescription& table = arguments.inputs[InputIndex::kBlockTable];
    if (const ArgumentError error = CheckType("block_table", table, {ElementType::kInt32})) {
        return error;
    }
    if (const ArgumentError error = CheckShape("block_table", table, {geometry.batch, -1}, " [B, max_blocks]")) {
        return error;
    }
    if (!arguments.Has(InputIndex::kActualSeqLengths)) {
        return ValueError("actual_seq_lengths", "the length of every sequence, since the cache is paged", "None");
    }
    if (arguments.Has(InputIndex::kKeyStart)) {
        return NotSupportedError("key_start", "None with a paged cache", "a tensor",
                                 "start each sequence at its first block");
    }
    if (rows < 1) {
        return ValueError("block_size", "the rows per block of the paged cache", std::to_string(rows));
    }
    if (rows % kMinPageRows != 0 || rows > kMaxPageRows) {
        return NotSupportedError("block_size", "a multiple of 16 up to 512 on an NPU", std::to_string(rows),
                                 "use a cache with block_size=128, for example");
    }
    geometry.tableWidth = table.dims[1];
    return {};
}

// Sizes of a cache in the order of its strides, and the strides of a contiguous one.
struct CacheForm {
    std::vector<int64_t> shape;
    std::string meaning;
    std::vector<int64_t> sizes;  // sequences or pages, heads, rows
    CacheStrides contiguous;
};

inline CacheForm MakeCacheForm(const Arguments& arguments, const Geometry& geometry)
{
    const std::vector<int64_t>& key = arguments.Dims(InputIndex::kKey);
    const bool paged = arguments.Paged();
    const bool flat = key.size() == 3;
    const bool rowsBeforeHeads = flat || (arguments.inputLayout == "BSND" && !paged);
    const int64_t outer = paged ? key[0] : geometry.batch;
    const int64_t heads = geometry.numKeyValueHeads;
    const int64_t rows = paged ? arguments.blockSize : key[rowsBeforeHeads ? 1 : 2];
    const int64_t dim = geometry.headDim;
    CacheForm form;
    form.sizes = {outer, heads, rows};
    if (flat) {
        form.shape = {outer, rows, heads * dim};
        form.meaning = paged ? " [blocks, block_size, Hkv*D]" : " [B, S, Hkv*D]";
    } else if (rowsBeforeHeads) {
        form.shape = {outer, rows, heads, dim};
        form.meaning = " [B, S, Hkv, D]";
    } else {
        form.shape = {outer, heads, rows, dim};
        form.meaning = paged ? " [blocks, Hkv, block_size, D]" : " [B, Hkv, S, D]";
    }
    form.contiguous = rowsBeforeHeads ? CacheStrides{heads * rows * dim, dim, heads * dim}
                                      : CacheStrides{heads * rows * dim, rows * dim, dim};
    return form;
}

inline ArgumentError ResolveStrides(const std::string& tensor, const std::vector<int64_t>& given, const CacheForm& form,
                                    int64_t headDim, ElementType type, CacheStrides& strides)
{
    const int64_t step = type == ElementType::kInt8 ? kInt8Step : kStrideStep;
    strides = form.contiguous;
    if (given.empty()) {
        return {};
    }
    const std::string name = tensor + "_strides";
    const std::string remedy = "pass " + tensor + ".contiguous()";
    if (given.size() != 3) {
        return ValueError(name, "the strides of sequence or block, head and row", ListText(given));
    }
    int64_t* const targets[] = {&strides.outer, &strides.head, &strides.row};
    for (size_t i = 0; i < given.size(); i++) {
        // a dimension of size 1 is never stepped along, and its stride may be anything
        if (form.sizes[i] == 1) {
            continue;
        }
        if (given[i] < 0 || given[i] % step != 0) {
            return ValueError(name, "multiples of " + std::to_string(step) + " elements, at least 0", ListText(given),
                              remedy);
        }
        *targets[i] = given[i];
    }
    const int64_t most = headDim + kMaxRowGapBytes / 2;
    if (strides.row < headDim || strides.row > most) {
        return ValueError(name,
                          "rows from " + std::to_string(headDim) + " to " + std::to_string(most) + " elements apart",
                          std::to_string(strides.row), remedy);
    }
    return {};
}

inline ArgumentError ResolveCapacity(const Arguments& arguments, const CacheForm& form, Geometry& geometry)
{
    const std::vector<int64_t>& key = arguments.Dims(InputIndex::kKey);
    if (form.sizes[0] < 1 || form.sizes[2] < 1) {
        return ValueError("key", "room for at least one key", ListText(key));
    }
    if (!arguments.Paged()) {
        geometry.capacity = form.sizes[2];
        return geometry.capacity <= kMaxCapacity
                   ? ArgumentError()
                   : ValueError("key", "at most " + std::to_string(kMaxCapacity) + " keys per sequence", ListText(key));
    }
    const int64_t most = kMaxCapacity / arguments.blockSize;
    if (geometry.tableWidth < 1 || geometry.tableWidth > most) {
        return ValueError("block_table",
                          "1 to " + std::to_string(most) +
                              " blocks per sequence with block_size=" + std::to_string(arguments.blockSize),
                          std::to_string(geometry.tableWidth));
    }
    geometry.capacity = geometry.tableWidth * arguments.blockSize;
    geometry.blocks = form.sizes[0];
    return {};
}

inline ArgumentError ResolveCache(const Arguments& arguments, Geometry& geometry)
{
    const TensorDescription& key = arguments.inputs[InputIndex::kKey];
    const TensorDescription& value = arguments.inputs[InputIndex::kValue];
    const ElementType type = arguments.inputs[InputIndex::kQuery].type;
    const CacheForm form = MakeCacheForm(arguments, geometry);
    if (const ArgumentError error = CheckType("key", key, {type, ElementType::kInt8})) {
        return error;
    }
    if (const ArgumentError error = CheckShape("key", key, form.shape, form.meaning)) {
        return error;
    }
    if (value.type == ElementType::kInt8 && key.type != ElementType::kInt8) {
        return NotSupportedError("value", std::string(TypeName(key.type)) + ", as key is", "int8",
                                 "quantise K alone, or both");
    }
    std::vector<ElementType> valueTypes = {type};
    if (key.type != type) {
        valueTypes.push_back(key.type);
    }
    if (const ArgumentError error = CheckType("value", value, valueTypes)) {
        return error;
    }
    if (const ArgumentError error = CheckShape("value", value, key.dims, ", like key")) {
        return error;
    }
    if (const ArgumentError error = ResolveCapacity(arguments, form, geometry)) {
        return error;
    }
    if (const ArgumentError error =
            ResolveStrides("key", arguments.keyStrides, form, geometry.headDim, key.type, geometry.key)) {
        return error;
    }
    return ResolveStrides("value", arguments.valueStrides, form, geometry.headDim, value.type, geometry.value);
}

}  // namespace toptheta
