// Checks of the scales of int8 caches.
#pragma once

#include "geometry.h"

namespace toptheta {

struct OptionalTensor {
    uint32_t input;
    const char* name;
    std::vector<int64_t> shape;
    const char* meaning;
    std::vector<ElementType> types;
};

inline ArgumentError CheckPresentTensor(const Arguments& arguments, const OptionalTensor& wanted)
{
    if (!arguments.Has(wanted.input)) {
        return {};
    }
    const TensorDescription& tensor = arguments.inputs[wanted.input];
    if (const ArgumentError error = CheckType(wanted.name, tensor, wanted.types)) {
        return error;
    }
    return CheckShape(wanted.name, tensor, wanted.shape, wanted.meaning);
}

// The arguments of one cache.
struct ScaledCache {
    std::string name;
    uint32_t cache;
    uint32_t scale;
    int64_t mode;
    const std::vector<int64_t>& strides;
};

inline ArgumentError CheckMode(const ScaledCache& given, bool paged)
{
    const std::string name = given.name + "_antiquant_mode";
    if (given.mode != kPerChannel && given.mode != kPerTokenAndHead && given.mode != kPerTokenAndHeadPaged) {
        return NotSupportedError(name, "0 (per channel), 3 (per token and head), 5 (the same paged)",
                                 std::to_string(given.mode), "quantise the cache in one of these ways");
    }
    const int64_t byRow = paged ? kPerTokenAndHeadPaged : kPerTokenAndHead;
    if (given.mode != kPerChannel && given.mode != byRow) {
        return ValueError(name, std::to_string(byRow) + " or 0, since the cache is " + (paged ? "paged" : "not paged"),
                          std::to_string(given.mode));
    }
    return {};
}

inline ArgumentError CheckPresence(const Arguments& arguments, const ScaledCache& given)
{
    const bool has = arguments.Has(given.scale);
    const ElementType type = arguments.inputs[given.cache].type;
    if (has != (type == ElementType::kInt8)) {
        const std::string name = given.name + "_antiquant_scale";
        const std::string other = "an int8 cache, and " + given.name + " is " + TypeName(type);
        return has ? CombinationError(name, "needs", other, "leave it out, or quantise the cache")
                   : ValueError(name, "the scales of an int8 cache", "None");
    }
    if (!has && given.mode != kPerChannel) {
        return ValueError(given.name + "_antiquant_mode",
                          std::string("0, since ") + given.name + " is " + TypeName(type), std::to_string(given.mode));
    }
    return {};
}

// Scales per token and head lie as the rows [sequence or block, head, row] do, neighbours side by side.
inline ArgumentError ResolveScaleStrides(const ScaledCache& given, const CacheForm& form, CacheStrides& strides)
{
    strides = {form.sizes[1] * form.sizes[2], form.sizes[2], 1};
    if (given.strides.empty()) {
        return {};
    }
    const std::string name = given.name + "_scale_strides";
    const std::string remedy = "pass " + given.name + "_antiquant_scale.contiguous()";
    if (given.strides.size() != 3) {
        return ValueError(name, "the strides of sequence or block, head and row", ListText(given.strides));
    }
    int64_t* const targets[] = {&strides.outer, &strides.head};
    for (size_t i = 0; i < 2; i++) {
        if (form.sizes[i] == 1) {
            continue;
        }
        if (given.strides[i] < 0) {
            return ValueError(name, "strides of at least 0", ListText(given.strides), remedy);
        }
        *targets[i] = given.strides[i];
    }
    if (form.sizes[2] > 1 && given.strides[2] != 1) {
        return ValueError(name, "a last stride of 1", ListText(given.strides), remedy);
    }
    return {};
}

inline ArgumentError ResolveScale(const Arguments& arguments, const ScaledCache& given, const Geometry& geometry,
                                  CacheStrides& strides)
{
    const std::string name = given.name + "_antiquant_scale";
    const std::vector<ElementType> float32 = {ElementType::kFloat32};
    if (const ArgumentError error = CheckMode(given, arguments.Paged())) {
        return error;
    }
    if (const ArgumentError error = CheckPresence(arguments, given)) {
        return error;
    }
    if (given.mode == kPerChannel) {
        const std::vector<int64_t> channels = {geometry.numKeyValueHeads, geometry.headDim};
        return CheckPresentTensor(arguments, {given.scale, name.c_str(), channels, " [Hkv, D]", float32});
    }
    const CacheForm form = MakeCacheForm(arguments, geometry);
    const char* const meaning = arguments.Paged() ? " [blocks, Hkv, block_size]" : " [B, Hkv, S]";
    if (const ArgumentError error =
            CheckPresentTensor(arguments, {given.scale, name.c_str(), form.sizes, meaning, float32})) {
        return error;
    }
    return ResolveScaleStrides(given, form, strides);
}

inline ArgumentError ResolveScales(const Arguments& arguments, Geometry& geometry)
{
    const ScaledCache key = {"key", InputIndex::kKey, InputIndex::kKeyAntiquantScale, arguments.keyAntiquantMode,
                             arguments.keyScaleStrides};
    if (const ArgumentError error = ResolveScale(arguments, key, geometry, geometry.keyScales)) {
        return error;
    }
    const ScaledCache value = {"value", InputIndex::kValue, InputIndex::kValueAntiquantScale,
                               arguments.valueAntiquantMode, arguments.valueScaleStrides};
    if (const ArgumentError error = ResolveScale(arguments, value, geometry, geometry.valueScales)) {
        return error;
    }
    const bool int8 = arguments.inputs[InputIndex::kKey].type == ElementType::kInt8;
    return int8 ? CheckHeadDimStep(geometry.headDim, kInt8Step, " with int8") : ArgumentError();
}

}  // namespace toptheta
