// The memory that all cores share. Transfers under way get rates in proportion to those of their pipes, at most these.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

namespace ascendc_host {

class SharedBandwidth {
public:
    struct Flow {
        double doneAt;  // on the scale of bytes that a transfer of share 1 has got since the beginning
        double share;   // rate of its pipe over `pipeRate`
        int64_t core;
        int slot;
        bool operator>(const Flow& other) const { return doneAt > other.doneAt; }
    };

    SharedBandwidth(double pipeRate, double totalRate) : pipeRate_(pipeRate), totalRate_(totalRate) {}

    bool Idle() const { return flows_.empty(); }
    double NextEnd() const { return now_ + std::max(0.0, flows_.top().doneAt - moved_) / Rate(); }

    void AdvanceTo(double time)
    {
        if (!Idle()) moved_ += (time - now_) * Rate();
        now_ = time;
    }
    void Start(double bytes, double share, int64_t core, int slot)
    {
        flows_.push({moved_ + bytes / share, share, core, slot});
        shares_ += share;
    }
    Flow TakeEnded()
    {
        Flow flow = flows_.top();
        flows_.pop();
        shares_ = flows_.empty() ? 0 : shares_ - flow.share;
        return flow;
    }

private:
    double Rate() const { return std::min(pipeRate_, totalRate_ / shares_); }

    double pipeRate_;
    double totalRate_;
    double now_ = 0;
    double moved_ = 0;
    double shares_ = 0;  // of all transfers under way
    std::priority_queue<Flow, std::vector<Flow>, std::greater<Flow>> flows_;
};

}  // namespace ascendc_host
