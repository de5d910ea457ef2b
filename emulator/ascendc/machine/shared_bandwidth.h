// The memory that all cores share: every transfer under way gets the same rate, at most that of one pipe.
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
        double doneAt;  // on the scale of bytes that each transfer under way has got since the beginning
        int64_t block;
        int slot;
        bool operator>(const Flow& other) const { return doneAt > other.doneAt; }
    };

    SharedBandwidth(double pipeRate, double totalRate) : pipeRate_(pipeRate), totalRate_(totalRate) {}

    bool Idle() const { return flows_.empty(); }
    double NextEnd() const { return now_ + std::max(0.0, flows_.top().doneAt - moved_) / Rate(); }

    void AdvanceTo(double time) {
        if (!Idle()) moved_ += (time - now_) * Rate();
        now_ = time;
    }
    void Start(double bytes, int64_t block, int slot) { flows_.push({moved_ + bytes, block, slot}); }
    Flow TakeEnded() {
        Flow flow = flows_.top();
        flows_.pop();
        return flow;
    }

private:
    double Rate() const { return std::min(pipeRate_, totalRate_ / static_cast<double>(flows_.size())); }

    double pipeRate_;
    double totalRate_;
    double now_ = 0;
    double moved_ = 0;
    std::priority_queue<Flow, std::vector<Flow>, std::greater<Flow>> flows_;
};

}  // namespace ascendc_host
