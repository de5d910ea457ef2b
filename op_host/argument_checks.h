// All checks of the arguments. The Python package has made most of them before; an aclnn caller meets them here first.
#pragma once

#include "../op_kernel/cube_layout.h"
#include "antiquant_checks.h"

namespace toptheta {

// Shape and words of a number for each query head of a sequence, and for each of its tokens if there are several.
inline OptionalTensor PerRow(uint32_t input, const char* name, const Geometry& geometry)
{
    if (geometry.queryTokens == 1) {
        return {input, name, {geometry.batch, geometry.numHeads}, " [B, Hq]", {ElementType::kFloat32}};
    }
    return {input,
            name,
            {geometry.batch, geometry.numHeads, geometry.queryTokens},
            " [B, Hq, Sq]",
            {ElementType::kFloat32}};
}

inline ArgumentError CheckThreshold(const Arguments& arguments, const Geometry& geometry)
{
    const size_t axes = arguments.Dims(InputIndex::kThreshold).size();
    OptionalTensor wanted = PerRow(InputIndex::kThreshold, "threshold", geometry);
    if (axes == 1) {
        wanted.shape = {geometry.numHeads};
        wanted.meaning = " [Hq]";
    } else if (axes != 3) {
        wanted.shape = {geometry.batch, geometry.numHeads};
        wanted.meaning = " [B, Hq]";
    }
    return CheckPresentTensor(arguments, wanted);
}

inline ArgumentError CheckLengths(const Arguments& arguments, const Geometry& geometry)
{
    const std::vector<ElementType> integers = {ElementType::kInt32, ElementType::kInt64};
    if (const ArgumentError error = CheckPresentTensor(
            arguments, {InputIndex::kActualSeqLengths, "actual_seq_lengths", {geometry.batch}, " [B]", integers})) {
        return error;
    }
    const bool hasLengths = arguments.Has(InputIndex::kActualSeqLengths);
    const std::vector<ElementType> like = {arguments.inputs[InputIndex::kActualSeqLengths].type};
    if (const ArgumentError error = CheckPresentTensor(
            arguments, {InputIndex::kKeyStart, "key_start", {geometry.batch}, " [B]", hasLengths ? like : integers})) {
        return error;
    }
    const bool hasStarts = arguments.Has(InputIndex::kKeyStart);
    const std::vector<ElementType> likeStarts = {arguments.inputs[InputIndex::kKeyStart].type};
    return CheckPresentTensor(arguments, {InputIndex::kActualQueryLengths,
                                          "actual_query_lengths",
                                          {geometry.batch},
                                          " [B]",
                                          hasLengths  ? like
                                          : hasStarts ? likeStarts
                                                      : integers});
}

// Whether thresholds are probabilities.
inline bool ComparesProbabilities(const Arguments& arguments)
{
    return arguments.placement == "post_softmax" || arguments.placement == "sampled_softmax";
}

// What several query tokens do without.
inline ArgumentError CheckTokens(const Arguments& arguments, const Geometry& geometry)
{
    if (!HasTokens(arguments, geometry)) {
        return {};
    }
    const std::string remedy = "give the tokens one by one, or use the fallback";
    if (ComparesProbabilities(arguments)) {
        return NotSupportedError("placement", "'pre_softmax' with several query tokens on an NPU",
                                 Quoted(arguments.placement), remedy);
    }
    if (arguments.partial) {
        return NotSupportedError("partial", "False with several query tokens on an NPU", "True", remedy);
    }
    if (geometry.numHeads * geometry.queryTokens > kMaxHeads) {
        return NotSupportedError("query", "at most " + std::to_string(kMaxHeads) + " heads times tokens on an NPU",
                                 ListText(arguments.Dims(InputIndex::kQuery)), "give fewer tokens at once");
    }
    if (geometry.key.row > kMostRowStride) {
        return NotSupportedError(
            "key_strides",
            "rows at most " + std::to_string(kMostRowStride) + " elements apart with several query tokens on an NPU",
            std::to_string(geometry.key.row), "pass key.contiguous()");
    }
    return {};
}

// Scales of tokens come in rows that follow one another, and the keys of a sample do not.
inline ArgumentError CheckSample(const Arguments& arguments, const Geometry&)
{
    if (arguments.placement != "sampled_softmax" || !arguments.Has(InputIndex::kKeyAntiquantScale) ||
        arguments.keyAntiquantMode == kPerChannel) {
        return {};
    }
    return NotSupportedError("key_antiquant_mode", "0 with placement='sampled_softmax' on an NPU",
                             std::to_string(arguments.keyAntiquantMode), "use placement='post_softmax'");
}

inline ArgumentError CheckModes(const Arguments& arguments)
{
    if (ComparesProbabilities(arguments) && arguments.sdc != "exact") {
        return CombinationError("sdc=" + Quoted(arguments.sdc), "needs", "placement='pre_softmax'",
                                "post-softmax the denominator is exact by construction: use sdc='exact'");
    }
    const bool hasMass = arguments.Has(InputIndex::kDiscardedMass);
    if (arguments.sdc == "offline" && !hasMass) {
        return ValueError("discarded_mass", "the calibrated estimate, since sdc='offline'", "None",
                          "or use sdc='exact'");
    }
    if (arguments.sdc != "offline" && hasMass) {
        return CombinationError("discarded_mass", "needs", "sdc='offline'", "leave it out, or use that");
    }
    if (arguments.sdc == "none" && arguments.Has(InputIndex::kValueMean)) {
        return CombinationError("value_mean", "excludes", "sdc='none', which leaves no mass to give back",
                                "use sdc='exact', or leave it out");
    }
    return {};
}

inline ArgumentError CheckPartial(const Arguments& arguments)
{
    const bool hasLse = arguments.Has(InputIndex::kRowLse);
    if (!arguments.partial) {
        return hasLse ? CombinationError("row_lse", "needs", "partial=True", "leave it out") : ArgumentError();
    }
    if (arguments.withStats) {
        return CombinationError("with_stats", "excludes", "partial=True, which returns its own quantities",
                                "leave it out");
    }
    if (arguments.sdc != "exact") {
        return CombinationError("sdc=" + Quoted(arguments.sdc), "excludes", "partial=True, which compensates nothing",
                                "give sdc to merge_partials");
    }
    if (arguments.Has(InputIndex::kValueMean)) {
        return CombinationError("value_mean", "excludes", "partial=True, which compensates nothing",
                                "give value_mean to merge_partials");
    }
    if (arguments.Has(InputIndex::kLearnableSink)) {
        return CombinationError("learnable_sink", "excludes", "partial=True, whose masses leave it out",
                                "give learnable_sink to merge_partials");
    }
    if (arguments.placement == "sampled_softmax") {
        return CombinationError("placement='sampled_softmax'", "excludes",
                                "partial=True, which has no whole row's sample",
                                "use 'post_softmax' with the row's LSE");
    }
    const bool wantsLse = arguments.placement == "post_softmax";
    if (hasLse && !wantsLse) {
        return CombinationError("row_lse", "needs", "placement='post_softmax'", "leave it out");
    }
    if (wantsLse && !hasLse) {
        return ValueError("row_lse", "the whole row's LSE [B, Hq] with placement='post_softmax'", "None");
    }
    return {};
}

inline ArgumentError CheckCompensationTensors(const Arguments& arguments, const Geometry& geometry)
{
    const std::vector<ElementType> float32 = {ElementType::kFloat32};
    if (const ArgumentError error =
            CheckPresentTensor(arguments, PerRow(InputIndex::kDiscardedMass, "discarded_mass", geometry))) {
        return error;
    }
    const bool one = geometry.queryTokens == 1;
    std::vector<int64_t> means = {geometry.batch, geometry.numKeyValueHeads, geometry.headDim};
    if (!one) {
        means.insert(means.begin() + 2, geometry.queryTokens);
    }
    const char* meaning = one ? " [B, Hkv, D]" : " [B, Hkv, Sq, D]";
    if (const ArgumentError error =
            CheckPresentTensor(arguments, {InputIndex::kValueMean, "value_mean", means, meaning, float32})) {
        return error;
    }
    const std::vector<int64_t> heads = {geometry.numHeads};
    if (const ArgumentError error =
            CheckPresentTensor(arguments, {InputIndex::kLearnableSink, "learnable_sink", heads, " [Hq]", float32})) {
        return error;
    }
    return CheckPresentTensor(arguments, PerRow(InputIndex::kRowLse, "row_lse", geometry));
}

// Outputs that the kernel will write. What it will not write may have any shape.
inline ArgumentError CheckOutputs(const Arguments& arguments, const Geometry& geometry)
{
    struct Output {
        uint32_t index;
        const char* name;
        bool used;
        std::vector<int64_t> shape;
        const char* meaning;
    };
    const std::vector<int64_t>& query = arguments.Dims(InputIndex::kQuery);
    const OptionalTensor rows = PerRow(0, "", geometry);
    const bool stats = arguments.withStats;
    const bool partial = arguments.partial;
    const Output outputs[] = {
        {OutputIndex::kAttentionOut, "attention_out", !partial, query, ", like query"},
        {OutputIndex::kLse, "lse", stats, rows.shape, rows.meaning},
        {OutputIndex::kKept, "kept", stats || partial, rows.shape, rows.meaning},
        {OutputIndex::kValueRows, "value_rows", stats, {geometry.batch, geometry.numKeyValueHeads}, " [B, Hkv]"},
        {OutputIndex::kPartOut, "part_out", partial, query, ", like query"},
        {OutputIndex::kPartMaximum, "part_maximum", partial, rows.shape, rows.meaning},
        {OutputIndex::kPartKeptMass, "part_kept_mass", partial, rows.shape, rows.meaning},
        {OutputIndex::kPartDiscardedMass, "part_discarded_mass", partial, rows.shape, rows.meaning},
    };
    for (const Output& output : outputs) {
        const ArgumentError error =
            CheckShape(output.name, arguments.outputs[output.index], output.shape, output.meaning);
        if (output.used && error) {
            return error;
        }
    }
    return {};
}

inline ArgumentError CheckAttributes(const Arguments& arguments)
{
    if (const ArgumentError error =
            CheckChoice("placement", arguments.placement, {"pre_softmax", "post_softmax", "sampled_softmax"})) {
        return error;
    }
    if (const ArgumentError error = CheckChoice("path", arguments.path, {"auto", "gather", "dense"})) {
        return error;
    }
    if (const ArgumentError error = CheckFinite("scale_value", arguments.scaleValue, false)) {
        return error;
    }
    if (const ArgumentError error = CheckChoice("sdc", arguments.sdc, {"none", "exact", "exp_threshold", "offline"})) {
        return error;
    }
    return CheckFinite("sdc_gamma", arguments.sdcGamma, true);
}

// Checks everything, in the order of the Python package, and works out the geometry on the way.
inline ArgumentError ResolveArguments(const Arguments& arguments, Geometry& geometry)
{
    if (const ArgumentError error = CheckChoice("input_layout", arguments.inputLayout, {"BNSD", "BSND", "BSH"})) {
        return error;
    }
    using Resolve = ArgumentError (*)(const Arguments&, Geometry&);
    for (const Resolve resolve : {ResolveQuery, ResolveKeyValueHeads, CheckPaging, ResolveCache, ResolveScales}) {
        if (const ArgumentError error = resolve(arguments, geometry)) {
            return error;
        }
    }
    using Check = ArgumentError (*)(const Arguments&, const Geometry&);
    for (const Check check : {CheckTokens, CheckSample, CheckThreshold, CheckLengths}) {
        if (const ArgumentError error = check(arguments, geometry)) {
            return error;
        }
    }
    for (const auto check : {CheckAttributes, CheckModes, CheckPartial}) {
        if (const ArgumentError error = check(arguments)) {
            return error;
        }
    }
    for (const Check check : {CheckCompensationTensors, CheckOutputs}) {
        if (const ArgumentError error = check(arguments, geometry)) {
            return error;
        }
    }
    return {};
}

}  // namespace toptheta
