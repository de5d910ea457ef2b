// The interface by operator type ("aclop"): descriptors, and the one operator that npu_format_cast uses.
#include <acl/acl.h>
#include <acl/acl_op_compiler.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "error.h"
#include "stream.h"

using namespace acl_emulator;

namespace {

struct Description {
    aclDataType type;
    aclFormat format;
    std::vector<int64_t> dims;
    std::string name;
};

struct Buffer {
    void* data;
    size_t bytes;
};

struct Attributes {};

const Description& Of(const aclTensorDesc* desc) { return *reinterpret_cast<const Description*>(desc); }

const Buffer& Of(const aclDataBuffer* buffer) { return *reinterpret_cast<const Buffer*>(buffer); }

}  // namespace

extern "C" {

aclTensorDesc* aclCreateTensorDesc(aclDataType type, int rank, const int64_t* dims, aclFormat format)
{
    return reinterpret_cast<aclTensorDesc*>(new Description{type, format, {dims, dims + rank}, {}});
}

void aclDestroyTensorDesc(const aclTensorDesc* desc) { delete &Of(desc); }

aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) { return Of(desc).format; }

aclDataType aclGetTensorDescType(const aclTensorDesc* desc) { return Of(desc).type; }

size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) { return Of(desc).dims.size(); }

aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* size)
{
    if (index >= Of(desc).dims.size()) {
        return Fail(ACL_ERROR_RT_PARAM_INVALID,
                    "aclGetTensorDescDimV2: expected an index below the rank, got " + std::to_string(index));
    }
    *size = Of(desc).dims[index];
    return ACL_SUCCESS;
}

void aclSetTensorDescName(aclTensorDesc* desc, const char* name) { reinterpret_cast<Description*>(desc)->name = name; }

aclError aclSetTensorFormat(aclTensorDesc*, aclFormat) { return ACL_SUCCESS; }

aclError aclSetTensorShape(aclTensorDesc*, int, const int64_t*) { return ACL_SUCCESS; }

aclError aclSetTensorPlaceMent(aclTensorDesc*, aclMemType) { return ACL_SUCCESS; }

aclDataBuffer* aclCreateDataBuffer(void* data, size_t bytes)
{
    return reinterpret_cast<aclDataBuffer*>(new Buffer{data, bytes});
}

aclError aclDestroyDataBuffer(const aclDataBuffer* buffer)
{
    delete &Of(buffer);
    return ACL_SUCCESS;
}

aclopAttr* aclopCreateAttr() { return reinterpret_cast<aclopAttr*>(new Attributes); }

void aclopDestroyAttr(const aclopAttr* attributes) { delete reinterpret_cast<const Attributes*>(attributes); }

aclError aclopCompileAndExecute(const char* type, int inputs, const aclTensorDesc* const[],
                                const aclDataBuffer* const in[], int outputs, const aclTensorDesc* const[],
                                aclDataBuffer* const out[], const aclopAttr*, aclopEngineType, aclopCompileType,
                                const char*, aclrtStream stream)
{
    if (std::strcmp(type, "Identity") != 0 || inputs != 1 || outputs != 1) {
        return Fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
                    std::string("aclopCompileAndExecute: the emulator has no operator ") + type);
    }
    const Buffer source = Of(in[0]);
    const Buffer target = Of(out[0]);
    return Enqueue(stream, [=] {
        std::memmove(target.data, source.data, std::min(source.bytes, target.bytes));
        return std::string();
    });
}

// Options of the operator compiler, which torch_npu sets when it initialises a device.
aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }

size_t aclGetCompileoptSize(aclCompileOpt) { return 1; }

aclError aclGetCompileopt(aclCompileOpt, char* value, size_t size)
{
    if (size > 0) *value = '\0';
    return ACL_SUCCESS;
}

}  // extern "C"
