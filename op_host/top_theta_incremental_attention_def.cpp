// Definition of the operator: inputs, attributes and outputs in the order of aclnnTopThetaIncrementalAttention and of
// the kernel's arguments.
#include "operator_arguments.h"
#include "register/op_def_registry.h"
#include "top_theta_incremental_attention_infershape.h"
#include "top_theta_incremental_attention_tiling.h"

namespace ops {

class TopThetaIncrementalAttention : public OpDef {
public:
    explicit TopThetaIncrementalAttention(const char* name) : OpDef(name)
    {
        DefineInputs();
        DefineAttributes();
        DefineOutputs();
        SetInferShape(InferShapeForTopThetaIncrementalAttention);
        SetInferDataType(InferDataTypeForTopThetaIncrementalAttention);
        AICore().SetTiling(optiling::TilingForTopThetaIncrementalAttention);
        AICore().AddConfig("ascend910b").AddConfig("ascend910_93");
    }

private:
    using DataTypes = std::vector<ge::DataType>;

    // Columns: the dtype of the query, times whether K, or K and V, are int8, times the dtype of lengths and starts. An
    // integer dtype of its own saves a cast of the lengths in every step. Scales are float32 alone: another dtype would
    // double the kernels, and a caller casts what has one number for each channel.
    enum Caches : size_t { kAsQuery, kInt8Keys, kInt8, kCaches };
    static constexpr size_t kLengthTypes = 2;
    static constexpr size_t kColumns = 2 * kCaches * kLengthTypes;

    static ge::DataType QueryType(size_t column)
    {
        return column < kCaches * kLengthTypes ? ge::DT_FLOAT16 : ge::DT_BF16;
    }
    // `from`: int8 in the columns of these caches and of those behind them.
    static DataTypes CacheTypes(Caches from)
    {
        DataTypes types;
        for (size_t column = 0; column < kColumns; column++) {
            types.push_back(column / kLengthTypes % kCaches >= from ? ge::DT_INT8 : QueryType(column));
        }
        return types;
    }
    static DataTypes QueryTypes() { return CacheTypes(kCaches); }
    static DataTypes LengthTypes()
    {
        DataTypes types;
        for (size_t column = 0; column < kColumns; column++) {
            types.push_back(column % kLengthTypes == 0 ? ge::DT_INT32 : ge::DT_INT64);
        }
        return types;
    }
    static DataTypes Always(ge::DataType type) { return DataTypes(kColumns, type); }

    static OpParamDef& Define(OpParamDef& parameter, Option option, const DataTypes& types)
    {
        return parameter.ParamType(option).DataType(types).Format(std::vector<ge::Format>(kColumns, ge::FORMAT_ND));
    }

    void DefineInput(const char* name, Option option, const DataTypes& types)
    {
        Define(Input(name), option, types).AutoContiguous();
    }

    // A strided cache is read in place: made contiguous, the whole of it would be copied in every step.
    void DefineStrided(const char* name, Option option, const DataTypes& types)
    {
        Define(Input(name), option, types).IgnoreContiguous();
    }

    void DefineInputs()
    {
        DefineInput("query", REQUIRED, QueryTypes());
        DefineStrided("key", REQUIRED, CacheTypes(kInt8Keys));
        DefineStrided("value", REQUIRED, CacheTypes(kInt8));
        DefineInput("threshold", REQUIRED, Always(ge::DT_FLOAT));
        DefineInput("actual_seq_lengths", OPTIONAL, LengthTypes());
        DefineInput("key_start", OPTIONAL, LengthTypes());
        DefineInput("block_table", OPTIONAL, Always(ge::DT_INT32));
        DefineStrided("key_antiquant_scale", OPTIONAL, Always(ge::DT_FLOAT));
        DefineStrided("value_antiquant_scale", OPTIONAL, Always(ge::DT_FLOAT));
        DefineInput("actual_query_lengths", OPTIONAL, LengthTypes());
        DefineInput("discarded_mass", OPTIONAL, Always(ge::DT_FLOAT));
        DefineInput("value_mean", OPTIONAL, Always(ge::DT_FLOAT));
        DefineInput("learnable_sink", OPTIONAL, Always(ge::DT_FLOAT));
        DefineInput("row_lse", OPTIONAL, Always(ge::DT_FLOAT));
    }

    void DefineAttributes()
    {
        const toptheta::Arguments defaults;
        Attr("num_heads").AttrType(REQUIRED).Int();
        Attr("num_key_value_heads").AttrType(REQUIRED).Int();
        Attr("scale_value").AttrType(REQUIRED).Float();
        Attr("input_layout").AttrType(OPTIONAL).String(defaults.inputLayout.c_str());
        Attr("key_antiquant_mode").AttrType(OPTIONAL).Int(defaults.keyAntiquantMode);
        Attr("value_antiquant_mode").AttrType(OPTIONAL).Int(defaults.valueAntiquantMode);
        Attr("placement").AttrType(OPTIONAL).String(defaults.placement.c_str());
        Attr("sdc").AttrType(OPTIONAL).String(defaults.sdc.c_str());
        Attr("sdc_gamma").AttrType(OPTIONAL).Float(defaults.sdcGamma);
        Attr("path").AttrType(OPTIONAL).String(defaults.path.c_str());
        Attr("block_size").AttrType(OPTIONAL).Int(defaults.blockSize);
        Attr("key_strides").AttrType(OPTIONAL).ListInt(defaults.keyStrides);
        Attr("value_strides").AttrType(OPTIONAL).ListInt(defaults.valueStrides);
        Attr("key_scale_strides").AttrType(OPTIONAL).ListInt(defaults.keyScaleStrides);
        Attr("value_scale_strides").AttrType(OPTIONAL).ListInt(defaults.valueScaleStrides);
        Attr("with_stats").AttrType(OPTIONAL).Bool(defaults.withStats);
        Attr("partial").AttrType(OPTIONAL).Bool(defaults.partial);
    }

    void DefineOutputs()
    {
        Define(Output("attention_out"), REQUIRED, QueryTypes());
        Define(Output("lse"), REQUIRED, Always(ge::DT_FLOAT));
        Define(Output("kept"), REQUIRED, Always(ge::DT_INT32));
        Define(Output("value_rows"), REQUIRED, Always(ge::DT_INT32));
        Define(Output("part_out"), REQUIRED, Always(ge::DT_FLOAT));
        Define(Output("part_maximum"), REQUIRED, Always(ge::DT_FLOAT));
        Define(Output("part_kept_mass"), REQUIRED, Always(ge::DT_FLOAT));
        Define(Output("part_discarded_mass"), REQUIRED, Always(ge::DT_FLOAT));
    }
};

OP_ADD(TopThetaIncrementalAttention);

}  // namespace ops
