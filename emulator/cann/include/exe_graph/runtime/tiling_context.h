#pragma once

#include <type_traits>

#include "exe_graph/runtime/node_context.h"

namespace fe {
class PlatFormInfos;
}  // namespace fe

namespace gert {

// What a tiling function leaves behind.
struct TilingOutcome {
    static constexpr size_t kCapacity = 2048;  // CANN's default for the tiling data of an operator

    alignas(16) uint8_t data[kCapacity] = {};
    size_t dataBytes = 0;
    uint64_t key = 0;
    uint32_t blockDim = 0;
    uint32_t scheduleMode = 0;
    std::vector<size_t> workspaces;
};

class TilingContext : public NodeView {
public:
    TilingContext(NodeContext& node, fe::PlatFormInfos* platform, TilingOutcome& outcome)
        : NodeView(node), platform_(platform), outcome_(outcome)
    {}

    const StorageShape* GetInputShape(size_t index) const { return ShapeOf(Given(index)); }
    const StorageShape* GetOptionalInputShape(size_t index) const { return ShapeOf(Defined(index)); }
    const StorageShape* GetOutputShape(size_t index) const { return ShapeOf(Output(index)); }
    const CompileTimeTensorDesc* GetInputDesc(size_t index) const { return DescriptionOf(Given(index)); }
    const CompileTimeTensorDesc* GetOptionalInputDesc(size_t index) const { return DescriptionOf(Defined(index)); }
    const CompileTimeTensorDesc* GetOutputDesc(size_t index) const { return DescriptionOf(Output(index)); }
    fe::PlatFormInfos* GetPlatformInfo() const { return platform_; }

    template <typename T>
    T* GetTilingData()
    {
        static_assert(std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T>,
                      "the tiling data is copied to the device byte by byte");
        if (sizeof(T) > TilingOutcome::kCapacity) {
            return nullptr;
        }
        outcome_.dataBytes = sizeof(T);
        return reinterpret_cast<T*>(outcome_.data);
    }
    size_t* GetWorkspaceSizes(size_t count)
    {
        outcome_.workspaces.resize(count);
        return outcome_.workspaces.data();
    }
    ge::graphStatus SetTilingKey(uint64_t key) { return Set(outcome_.key, key); }
    ge::graphStatus SetBlockDim(uint32_t blocks) { return Set(outcome_.blockDim, blocks); }
    ge::graphStatus SetScheduleMode(uint32_t mode) { return Set(outcome_.scheduleMode, mode); }

private:
    static const StorageShape* ShapeOf(const NodeTensor* tensor)
    {
        return tensor == nullptr ? nullptr : &tensor->shape;
    }
    static const CompileTimeTensorDesc* DescriptionOf(const NodeTensor* tensor)
    {
        return tensor == nullptr ? nullptr : &tensor->description;
    }
    template <typename T>
    static ge::graphStatus Set(T& target, T value)
    {
        target = value;
        return ge::GRAPH_SUCCESS;
    }

    fe::PlatFormInfos* platform_;
    TilingOutcome& outcome_;
};

}  // namespace gert
