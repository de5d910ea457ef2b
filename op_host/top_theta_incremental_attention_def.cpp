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

    // Columns: the dtype of the tensors times that of lengths and starts. An integer dtype of its own saves a cast of
    // the lengths in every step.
    static DataTypes CacheTypes() { return {ge::DT_FLOAT16, ge::DT_FLOAT16, ge::DT_BF16, ge::DT_BF16}; }
    static DataTypes LengthTypes() { return {ge::DT_INT32, ge::DT_INT64, ge::DT_INT32, ge::DT_INT64}; }
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
    void DefineCache(const char* name) { Define(Input(name), REQUIRED, CacheTypes()).IgnoreContiguous(); }

    void DefineInputs()
    {
        DefineInput("query", REQUIRED, CacheTypes());
        DefineCache("key");
        DefineCache("value");
        DefineInput("threshold", REQUIRED, Always(ge::DT_FLOAT));
        DefineInput("actual_seq_lengths", OPTIONAL, LengthTypes());
        DefineInput("key_start", OPTIONAL, LengthTypes());
        DefineInput("block_table", OPTIONAL, Always(ge::DT_INT32));
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
        Attr("placement").AttrType(OPTIONAL).String(defaults.placement.c_str());
        Attr("sdc").AttrType(OPTIONAL).String(defaults.sdc.c_str());
        Attr("sdc_gamma").AttrType(OPTIONAL).Float(defaults.sdcGamma);
        Attr("path").AttrType(OPTIONAL).String(defaults.path.c_str());
        Attr("block_size").AttrType(OPTIONAL).Int(defaults.blockSize);
        Attr("key_strides").AttrType(OPTIONAL).ListInt(defaults.keyStrides);
        Attr("value_strides").AttrType(OPTIONAL).ListInt(defaults.valueStrides);
        Attr("with_stats").AttrType(OPTIONAL).Bool(defaults.withStats);
        Attr("partial").AttrType(OPTIONAL).Bool(defaults.partial);
    }

    void DefineOutputs()
    {
        Define(Output("attention_out"), REQUIRED, CacheTypes());
        Define(Output("lse"), REQUIRED, Always(ge::DT_FLOAT));
        Define(Output("kept"), REQUIRED, Always(ge::DT_INT32));
        Define(Output("value_rows"), REQUIRED, Always(ge::DT_INT32));
        Define(Output("part_out"), REQUIRED, Always(ge::DT_FLOAT));
        Define(Output("part_maximum"), REQUIRED, Always(ge::DT_FLOAT));
        Define(Output("part_kept_mass"), REQUIRED, Always(ge::DT_FLOAT));
        Define(Output("part_discarded_mass"), REQUIRED, Always(ge::DT_FLOAT));
    }

    static constexpr size_t kColumns = 4;
};

OP_ADD(TopThetaIncrementalAttention);

}  // namespace ops
