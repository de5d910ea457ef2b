#include "cross_core_flags.h"

#include "core_impl.h"
#include "defects.h"
#include "text.h"

namespace ascendc_host {

namespace {

constexpr int kInsideBlock = 2;  // mode: a cube core and the vector cores of its block

std::string FlagText(int flagId) { return "cross-core flag " + std::to_string(flagId); }

void RequireFlagId(CoreImpl& core, const char* call, int flagId, Where where)
{
    if (flagId >= 0 && flagId < kCrossCoreFlags) return;
    core.Fault(Check::kEventId, where, call, "there is no " + FlagText(flagId) + " for a kernel",
               "use the flag ids 0 to " + std::to_string(kCrossCoreFlags - 1));
}

void RequireMixed(CoreImpl& core, const char* call, Where where)
{
    core.RequireShape(where);
    if (core.machine.layout.Mixed()) return;
    core.Fault(Check::kUnsupported, where, call,
               "the blocks of this kernel have one core each, which is alone with its flag",
               "declare a kernel type with both kinds of cores, such as KERNEL_TYPE_MIX_AIC_1_2");
}

// The cores of the block at the other end of a flag: the vector cores for a cube core, and the reverse.
template <typename Visit>
void ForEachPartner(const CoreImpl& core, Visit visit)
{
    const BlockShape& shape = core.machine.layout.Shape();
    const bool cube = core.seat.kind == CoreKind::kCube;
    const int end = cube ? shape.Cores() : shape.cubes;
    for (int partner = cube ? shape.cubes : 0; partner < end; ++partner) visit(partner);
}

}  // namespace

void Core::CrossCoreSet(int mode, Pipe pipe, int flagId, Where where)
{
    if (Faulted()) return;
    RequireMixed(*impl_, "CrossCoreSetFlag", where);
    RequireFlagId(*impl_, "CrossCoreSetFlag", flagId, where);
    if (!impl_->EnterSync("CrossCoreSetFlag", where)) return;
    const int slot = SlotOf(Kind(), pipe);
    if (mode != kInsideBlock || slot == kNoSlot) {
        Fault(Check::kUnsupported, where, "CrossCoreSetFlag",
              mode != kInsideBlock ? "mode " + std::to_string(mode) + " is not part of this model"
                                   : std::string("this core has no pipe ") + PipeName(pipe),
              "use mode 2, and a pipe of the core that sets the flag");
    }
    BlockKnowledge known = impl_->knowledge.back();
    known.finished[impl_->seat.inBlock] = impl_->finished[slot];
    known.finished[impl_->seat.inBlock][slot] = impl_->issued[slot];
    known.epoch = impl_->log.Epoch();
    uint32_t& sets = impl_->crossCoreSets[flagId];
    bool tooMany = false;
    ForEachPartner(*impl_, [&](int partner) { tooMany |= sets >= known.waits[partner][flagId] + kMostPendingSets; });
    ++sets;
    impl_->machine.scheduler.Change([&] {
        ForEachPartner(*impl_, [&](int partner) {
            impl_->flagsOfBlock.From(impl_->seat.inBlock, partner, flagId).push_back({known, where});
        });
    });
    if (tooMany && impl_->checking) {
        Report(Check::kFlagSetTwice, where, "CrossCoreSetFlag",
               FlagText(flagId) + " may be set " + std::to_string(kMostPendingSets + 1) +
                   " times before the other core waits for it, and it counts to " + std::to_string(kMostPendingSets),
               "wait for a flag of the other core in between, for example for a free place in a ring");
    }
    impl_->RecordSync(RecordKind::kCrossCoreSet, slot, kScalar, flagId);
}

void Core::CrossCoreWait(int flagId, Where where)
{
    if (Faulted()) return;
    RequireMixed(*impl_, "CrossCoreWaitFlag", where);
    RequireFlagId(*impl_, "CrossCoreWaitFlag", flagId, where);
    if (!impl_->EnterSync("CrossCoreWaitFlag", where)) return;
    if (Planted(Defect::kCubeWaitsForNoFlag) && Kind() == CoreKind::kCube) return;
    BlockKnowledge known = impl_->knowledge.back();
    const auto incoming = [&](int partner) -> std::deque<FlagSetting>& {
        return impl_->flagsOfBlock.From(partner, impl_->seat.inBlock, flagId);
    };
    const auto ready = [&] {
        bool all = true;
        ForEachPartner(*impl_, [&](int partner) { all = all && !incoming(partner).empty(); });
        return all;
    };
    const auto take = [&] {
        ForEachPartner(*impl_, [&](int partner) {
            known.Join(incoming(partner).front().known);
            incoming(partner).pop_front();
        });
    };
    if (!impl_->machine.scheduler.Await(ready, take)) {
        Fault(Check::kWaitWithoutSet, where, "CrossCoreWaitFlag",
              FlagText(flagId) + " is not set as often as it is waited for; the device would hang here",
              "CrossCoreSetFlag it in the cube core, or in all vector cores of the block, as often");
    }
    ++known.waits[impl_->seat.inBlock][flagId];
    // what the other core knows of this one is true here too
    for (Clock& clock : impl_->finished) clock.Join(known.finished[impl_->seat.inBlock]);
    impl_->log.AdvanceTo(known.epoch);
    impl_->knowledge.push_back(known);
    impl_->RecordSync(RecordKind::kCrossCoreWait, kScalar, kScalar, flagId);
}

void CoreImpl::CheckUnwaitedCrossCoreFlags(FindingLog& all) const
{
    for (int receiver = 0; receiver < kMaxBlockCores; ++receiver) {
        for (int id = 0; id < kCrossCoreFlags; ++id) {
            for (const FlagSetting& set : flagsOfBlock.From(seat.inBlock, receiver, id)) {
                Finding finding;
                finding.check = Check::kFlagNeverWaited;
                finding.file = set.where.file;
                finding.line = set.where.line;
                finding.call = "CrossCoreSetFlag";
                finding.what = FlagText(id) + " is still set at the end of the kernel";
                finding.remedy =
                    "CrossCoreWaitFlag it in the other core: the documents leave open whether a device forgets it, is "
                    "left "
                    "waiting by it, or ends a wait of the next kernel with it";
                finding.block = seat.block;
                all.Add(finding);
            }
        }
    }
}

}  // namespace ascendc_host
