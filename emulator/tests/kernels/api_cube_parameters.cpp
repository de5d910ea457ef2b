// One call each, with the fields of its parameter structure from the tiling data.
#include "api_cube_tensors.h"

using namespace harness;

struct Fields {
    uint32_t at[8];
};

extern "C" {
__global__ __aicore__ void fields_of_nd2nz(GM_ADDR x, GM_ADDR z, GM_ADDR tiling)
{
    Tensors t(x, z);
    const Fields f = ReadFields<Fields>(tiling);
    DataCopy(t.l1, t.x, Nd2NzParams(f.at[0], f.at[1], f.at[2], f.at[3], f.at[4], f.at[5], f.at[6], f.at[7]));
}
__global__ __aicore__ void fields_of_load_data(GM_ADDR x, GM_ADDR z, GM_ADDR tiling)
{
    Tensors t(x, z);
    const Fields f = ReadFields<Fields>(tiling);
    LoadData(t.a, t.l1, LoadData2DParams(f.at[0], f.at[1], f.at[2], 0, f.at[3], false, f.at[4]));
}
__global__ __aicore__ void fields_of_mmad(GM_ADDR x, GM_ADDR z, GM_ADDR tiling)
{
    Tensors t(x, z);
    const Fields f = ReadFields<Fields>(tiling);
    Mmad(t.c, t.a, t.b, MmadParams(f.at[0], f.at[1], f.at[2], f.at[3], f.at[4] != 0, true));
}
__global__ __aicore__ void fields_of_fixpipe(GM_ADDR x, GM_ADDR z, GM_ADDR tiling)
{
    Tensors t(x, z);
    const Fields f = ReadFields<Fields>(tiling);
    FixpipeParamsV220 params(f.at[0], f.at[1], f.at[2], f.at[3], false);
    params.ndNum = f.at[4];
    params.reluEn = f.at[5] != 0;
    params.unitFlag = f.at[6];
    params.quantPre = f.at[7] != 0 ? QuantMode_t::F322F16 : QuantMode_t::NoQuant;
    Fixpipe(t.z, t.c, params);
}
}
