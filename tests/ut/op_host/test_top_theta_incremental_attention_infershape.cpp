// Shapes of the outputs: what was not asked for is empty. In the form of Ascend's operator repositories.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "infer_shape_case_executor.h"
#include "infer_shape_context_faker.h"

namespace {

using Ops::Transformer::AnyValue;
using Sizes = std::vector<int64_t>;

constexpr int64_t kHeads = 6, kKeyValueHeads = 2;
const Sizes kNone = {0};  // of an output that the call does not ask for

struct InferCase {
    const char* name;
    const char* layout;
    bool withStats;
    bool partial;
    Sizes query;
    std::vector<Sizes> outputs;  // attention_out, lse, kept, value_rows, and the four of a part
};

gert::InfershapeContextPara MakeContext(const InferCase& one)
{
    using Tensors = std::vector<gert::InfershapeContextPara::TensorDescription>;
    const Sizes cache = {3, kKeyValueHeads, 64, 32};
    Tensors inputs = {{{one.query, one.query}, ge::DT_FLOAT16, ge::FORMAT_ND},
                      {{cache, cache}, ge::DT_FLOAT16, ge::FORMAT_ND},
                      {{cache, cache}, ge::DT_FLOAT16, ge::FORMAT_ND},
                      {{{kHeads}, {kHeads}}, ge::DT_FLOAT, ge::FORMAT_ND}};
    inputs.resize(14, {{{}, {}}, ge::DT_UNDEFINED, ge::FORMAT_ND});  // no optional one
    const auto strides = AnyValue::CreateFrom<Sizes>({});
    return {"TopThetaIncrementalAttention",
            inputs,
            Tensors(8, {{{}, {}}, ge::DT_FLOAT, ge::FORMAT_ND}),
            {{"num_heads", AnyValue::CreateFrom<int64_t>(kHeads)},
             {"num_key_value_heads", AnyValue::CreateFrom<int64_t>(kKeyValueHeads)},
             {"scale_value", AnyValue::CreateFrom<float>(0.125F)},
             {"input_layout", AnyValue::CreateFrom<std::string>(one.layout)},
             {"key_antiquant_mode", AnyValue::CreateFrom<int64_t>(0)},
             {"value_antiquant_mode", AnyValue::CreateFrom<int64_t>(0)},
             {"placement", AnyValue::CreateFrom<std::string>("pre_softmax")},
             {"sdc", AnyValue::CreateFrom<std::string>("exact")},
             {"sdc_gamma", AnyValue::CreateFrom<float>(0.05F)},
             {"path", AnyValue::CreateFrom<std::string>("auto")},
             {"block_size", AnyValue::CreateFrom<int64_t>(0)},
             {"key_strides", strides},
             {"value_strides", strides},
             {"key_scale_strides", strides},
             {"value_scale_strides", strides},
             {"with_stats", AnyValue::CreateFrom<bool>(one.withStats)},
             {"partial", AnyValue::CreateFrom<bool>(one.partial)}}};
}

class TopThetaIncrementalAttentionInfershape : public testing::TestWithParam<InferCase> {};

TEST_P(TopThetaIncrementalAttentionInfershape, ShapesOfOutputs)
{
    ExecuteTestCase(MakeContext(GetParam()), ge::GRAPH_SUCCESS, GetParam().outputs);
}

const Sizes kBnsd = {3, 6, 1, 32}, kBsnd = {3, 1, 6, 32}, kBsh = {3, 1, 192}, kRows = {3, 6}, kUnknownRank = {-2};
const InferCase kCases[] = {
    {"Bnsd", "BNSD", false, false, kBnsd, {kBnsd, kNone, kNone, kNone, kNone, kNone, kNone, kNone}},
    {"Bsnd", "BSND", false, false, kBsnd, {kBsnd, kNone, kNone, kNone, kNone, kNone, kNone, kNone}},
    {"Bsh", "BSH", false, false, kBsh, {kBsh, kNone, kNone, kNone, kNone, kNone, kNone, kNone}},
    {"Statistics", "BNSD", true, false, kBnsd, {kBnsd, kRows, kRows, {3, 2}, kNone, kNone, kNone, kNone}},
    {"StatisticsOfTokens",
     "BSND",
     true,
     false,
     {3, 4, 6, 32},
     {{3, 4, 6, 32}, {3, 6, 4}, {3, 6, 4}, {3, 2}, kNone, kNone, kNone, kNone}},
    {"PartBnsd", "BNSD", false, true, kBnsd, {kNone, kNone, kRows, kNone, kBnsd, kRows, kRows, kRows}},
    {"PartBsh", "BSH", false, true, kBsh, {kNone, kNone, kRows, kNone, kBsh, kRows, kRows, kRows}},
    // -1 is a size and -2 a rank that a graph compiler does not know yet
    {"UnknownSize",
     "BNSD",
     true,
     false,
     {-1, 6, 1, 32},
     {{-1, 6, 1, 32}, {-1, 6}, {-1, 6}, {-1, 2}, kNone, kNone, kNone, kNone}},
    {"UnknownRank",
     "BNSD",
     true,
     false,
     kUnknownRank,
     {kUnknownRank, kUnknownRank, kUnknownRank, kUnknownRank, kNone, kNone, kNone, kNone}},
};

INSTANTIATE_TEST_SUITE_P(Calls, TopThetaIncrementalAttentionInfershape, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(TopThetaIncrementalAttentionInfershapeErrors, ScalarQuery)
{
    ExecuteTestCase(MakeContext({"", "BNSD", false, false, {}, {}}), ge::GRAPH_FAILED);
}

}  // namespace
