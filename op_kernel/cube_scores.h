// Query times K rows on a cube core, for the two vector cores of its block.
//
// The cube core walks through the segments of both vector cores in rounds of some hundred rows (cube_layout.h). The K
// rows of a round arrive while those of the round before are multiplied; the scores leave for the rings of the vector
// cores (score_ring.h), which may be some rounds behind. Where both vector cores take the same keys, for query rows of
// their own, a round is copied once and multiplied for one of them after the other.
#pragma once

#include "cube_key_rows.h"
#include "cube_queries.h"
#include "score_ring.h"
#include "sequence_lengths.h"

namespace toptheta {

// The rounds of one vector core. `kTokens`: there may be several query tokens.
template <bool kTokens>
class RoundIterator {
public:
    using Segments = SegmentIterator<ValidRows<LengthTensors, kTokens>>;

    // `sampled`: the keys of a sample come before those of a segment.
    TOPTHETA_DEVICE inline RoundIterator(const Segments& segments, uint32_t roundRows, bool sampled)
        : segments_(segments), roundRows_(roundRows), sampled_(sampled)
    {}

    struct Round {
        Segment segment;
        uint32_t row = 0;
        uint32_t rows = 0;         // 0: this core has no more
        uint32_t left = 0;         // of its segment or sample, these included
        bool ofSample = false;
        uint32_t segmentNumber = 0;
        bool first = false;        // of its segment
    };

    TOPTHETA_DEVICE inline void Next(Round& round)
    {
        round.first = row_ == end_ && !ofSample_;
        if (round.first) {
            if (!segments_.Next(segment_)) {
                round.rows = 0;
                return;
            }
            number_++;
        }
        if (row_ == end_) {
            ofSample_ = round.first && sampled_;
            row_ = ofSample_ ? 0 : segment_.rowBegin;
            end_ = ofSample_ ? KeySample(segment_.unitRows).Keys() : segment_.rowEnd;
        }
        round.segment = segment_;
        round.segmentNumber = number_;
        round.ofSample = ofSample_;
        round.row = row_;
        round.left = end_ - row_;
        round.rows = NextRoundRows(round.left, roundRows_);
        row_ += round.rows;
    }

private:
    Segments segments_;
    Segment segment_ = {};
    uint32_t roundRows_;
    uint32_t row_ = 0;
    uint32_t end_ = 0;
    uint32_t number_ = 0;
    bool sampled_;
    bool ofSample_ = false;
};

template <typename Types>
class CubeScores {
public:
    using T = typename Types::Key;  // of K rows and of what they are multiplied by
    using Product = typename ProductOf<T>::Type;

    TOPTHETA_DEVICE inline void Init(AscendC::TPipe* pipe, const TilingData* tiling, const KernelTensors& tensors,
                                     GM_ADDR workspace)
    {
        tiling_ = tiling;
        columns_ = FractalColumns(tiling->headDim, sizeof(T));
        roundRows_ = RoundRowsFor(tiling->headDim, sizeof(T));
        folds_ = FoldsKeys(tiling->headDim, tiling->headBlock, tiling->key.row, sizeof(T));
        pair_ = static_cast<uint32_t>(AscendC::GetBlockIdx()) * kPairCores;
        LengthTensors integers;
        integers.Init(*tiling, tensors.lengths);
        lengths_.Init(*tiling, integers);
        for (uint32_t core = 0; core < kPairCores; core++) {
            keyRows_[core].Init(*tiling, tensors.key, tensors.blockTable);
        }
        queries_.Init(*tiling, tensors.parameters.query, workspace);
        scores_.SetGlobalBuffer(reinterpret_cast<__gm__ Product*>(workspace + tiling->ringOffset));
        pipe->InitBuffer(keys_, kPlaces * kRoundBytes);
        pipe->InitBuffer(loadedQueries_, kPlaces * QueryElements() * sizeof(T));
        pipe->InitBuffer(left_, kPlaces * QueryElements() * sizeof(T));
        pipe->InitBuffer(right_, kHalves * kRoundBytes / 2);
        pipe->InitBuffer(products_, kPlaces * kProducts * sizeof(Product));
    }

    TOPTHETA_DEVICE inline void Process()
    {
        const WorkTotal total = lengths_.Total();
        const bool sampled = tiling_->placement == kSampledSoftmax;
        Rounds first(lengths_.SegmentsOf(total, pair_), roundRows_, sampled);
        Rounds second(lengths_.SegmentsOf(total, pair_ + 1), roundRows_, sampled);
        SetFreeFlags();
        Load(first, second, 0);
        uint32_t round = 0;
        for (; AnyRows(round); round++) {
            Load(first, second, round + 1);
            if (round >= kRingRounds) {
                AscendC::CrossCoreWaitFlag(PlaceFree(round));
            }
            for (uint32_t core = 0; core < kPairCores; core += Sharers()) {
                Multiply(core, round);
            }
            AscendC::CrossCoreSetFlag<2, PIPE_FIX>(kScoresReady);
        }
        for (uint32_t left = Least(round, kRingRounds); left > 0; left--) {
            AscendC::CrossCoreWaitFlag(PlaceFree(round - left));
        }
        queries_.End();
        WaitForFreeFlags();
    }

private:
    using Rounds = RoundIterator<Types::kTokens>;
    using Round = typename Rounds::Round;

    // places in L1, L0A and L0C: two rounds or segments of each of the two vector cores
    static constexpr uint32_t kPlaces = 2 * kPairCores;
    static constexpr uint32_t kHalves = 2;  // of a round, one after the other in L0B
    static constexpr uint32_t kAsOne = RowsAsOne(sizeof(T));
    static constexpr uint32_t kProducts = kFractal * MostRoundRows(sizeof(T));
    // M_MTE1: a TPipe on a cube core takes 0 to 2 for itself
    static constexpr int32_t kHalfEvent = 3;

    TOPTHETA_DEVICE inline uint32_t QueryElements() const { return kFractal * columns_; }
    TOPTHETA_DEVICE static inline uint32_t PlaceOf(uint32_t core, uint32_t number)
    {
        return number % 2 * kPairCores + core;
    }

    TOPTHETA_DEVICE inline void SetFreeFlags()
    {
        for (uint32_t place = 0; place < kPlaces; place++) {
            SetFlag<HardEvent::MTE1_MTE2>(place);
            SetFlag<HardEvent::FIX_M>(place);
        }
        for (uint32_t half = 0; half < kHalves; half++) {
            SetFlag<HardEvent::M_MTE1>(kHalfEvent + half);
        }
    }

    TOPTHETA_DEVICE inline void WaitForFreeFlags()
    {
        for (uint32_t place = 0; place < kPlaces; place++) {
            WaitFlag<HardEvent::MTE1_MTE2>(place);
            WaitFlag<HardEvent::FIX_M>(place);
        }
        for (uint32_t half = 0; half < kHalves; half++) {
            WaitFlag<HardEvent::M_MTE1>(kHalfEvent + half);
        }
    }

    TOPTHETA_DEVICE inline bool AnyRows(uint32_t round) const
    {
        return rounds_[PlaceOf(0, round)].rows > 0 || rounds_[PlaceOf(1, round)].rows > 0;
    }

    // ---- K rows and queries to L1 ----

    TOPTHETA_DEVICE inline void Load(Rounds& first, Rounds& second, uint32_t round)
    {
        first.Next(rounds_[PlaceOf(0, round)]);
        second.Next(rounds_[PlaceOf(1, round)]);
        for (uint32_t core = 0; core < kPairCores; core += Sharers()) {
            const Round& wanted = rounds_[PlaceOf(core, round)];
            if (wanted.rows > 0) {
                LoadRound(core, PlaceOf(core, round), wanted);
            }
        }
    }

    TOPTHETA_DEVICE inline void LoadRound(uint32_t core, uint32_t place, const Round& round)
    {
        const Segment& segment = round.segment;
        WaitFlag<HardEvent::MTE1_MTE2>(place);
        if (round.first) {
            keyRows_[core].Begin(segment, lengths_.Start(segment.batch));
            if constexpr (!IsInt8<T>::kValue) {
                LoadQueries(core, round);
            }
        }
        const bool folded = IsFolded(round);
        const uint32_t tileRows = folded ? roundRows_ : HalfRows();
        for (uint32_t done = 0; done < round.rows; done += tileRows) {
            const uint32_t rows = Least(tileRows, round.rows - done);
            const LocalTensor<T> tile = KeyTile(place, done, tileRows);
            if (round.ofSample) {
                keyRows_[core].LoadSample(tile, KeySample(segment.unitRows), round.row + done, rows);
            } else {
                keyRows_[core].Load(tile, round.row + done, rows, folded ? kAsOne : 1);
            }
        }
        if (IsInt8<T>::kValue && round.first) {
            // behind the K rows, which need not wait until the vector cores have made the parts
            queries_.Await(round.segmentNumber);
            LoadQueries(core, round);
        }
        SetFlag<HardEvent::MTE2_MTE1>(place);
    }

    // Of the vector core that the round is for, and of the one that shares its keys.
    TOPTHETA_DEVICE inline void LoadQueries(uint32_t core, const Round& round)
    {
        for (uint32_t end = core + Sharers(); core < end; core++) {
            const uint32_t number = round.segmentNumber;
            queries_.Load(LoadedQuery(PlaceOf(core, number)), SegmentFor(core, round), pair_ + core);
        }
    }

    // ---- products ----

    TOPTHETA_DEVICE inline void Multiply(uint32_t core, uint32_t number)
    {
        const uint32_t place = PlaceOf(core, number);
        const Round& round = rounds_[place];
        if (round.rows == 0) {
            return;
        }
        const uint32_t end = core + Sharers();
        WaitFlag<HardEvent::MTE2_MTE1>(place);
        for (uint32_t own = core; own < end; own++) {
            WaitFlag<HardEvent::FIX_M>(PlaceOf(own, number));
        }
        for (uint32_t done = 0; done < round.rows; done += PartRows(round)) {
            MultiplyPart(core, number, round, done);
        }
        for (uint32_t own = core; own < end; own++) {
            const uint32_t products = PlaceOf(own, number);
            SetFlag<HardEvent::M_FIX>(products);
            WaitFlag<HardEvent::M_FIX>(products);
            WriteScores(own, number, round);
            SetFlag<HardEvent::FIX_M>(products);
        }
    }

    TOPTHETA_DEVICE inline void MultiplyPart(uint32_t core, uint32_t number, const Round& round, uint32_t done)
    {
        const uint32_t place = PlaceOf(core, number);
        const uint32_t end = core + Sharers();
        const uint32_t rows = Least(PartRows(round), round.rows - done);
        const uint32_t fractals = CeilDiv(rows, kFractal) * ColumnFractals();
        const int32_t half = half_;
        half_ = 1 - half_;
        LocalTensor<T> right = right_.template GetWithOffset<T>(kRoundBytes / 2 / sizeof(T), half * kRoundBytes / 2);
        WaitFlag<HardEvent::M_MTE1>(kHalfEvent + half);
        if (round.first && done == 0) {
            // the place of the query is free: the product before the last one has ended, and the segment in between
            // had at least one, so that all of the segment before that have
            for (uint32_t own = core; own < end; own++) {
                const uint32_t query = PlaceOf(own, round.segmentNumber);
                MoveFractals(Left(query), LoadedQuery(query), ColumnFractals());
            }
        }
        MoveFractals(right, KeyTile(place, done, PartRows(round)), fractals);
        if (done + rows == round.rows) {
            SetFlag<HardEvent::MTE1_MTE2>(place);
        }
        SetFlag<HardEvent::MTE1_M>(half);
        WaitFlag<HardEvent::MTE1_M>(half);
        for (uint32_t own = core; own < end; own++) {
            AscendC::MmadParams product;
            product.m = static_cast<uint16_t>(Most(RowsOfProducts(own, round), 2));
            product.n = static_cast<uint16_t>(rows);
            product.k = static_cast<uint16_t>(tiling_->headDim);
            AscendC::Mmad(Products(PlaceOf(own, number))[done * kFractal], Left(PlaceOf(own, round.segmentNumber)),
                          right, product);
        }
        SetFlag<HardEvent::M_MTE1>(kHalfEvent + half);
    }

    // The order of the fractals in L1 is the one that the cube wants.
    TOPTHETA_DEVICE inline void MoveFractals(const LocalTensor<T>& to, const LocalTensor<T>& from, uint32_t fractals)
    {
        AscendC::LoadData2DParams move;
        move.repeatTimes = static_cast<uint8_t>(fractals);
        move.srcStride = 1;
        AscendC::LoadData(to, from, move);
    }

    // [head][row], or [part][head][row], into this round's place in the ring of the vector core
    TOPTHETA_DEVICE inline void WriteScores(uint32_t core, uint32_t number, const Round& round)
    {
        const uint64_t ring = static_cast<uint64_t>(pair_ + core) * kRingRounds + number % kRingRounds;
        AscendC::FixpipeParamsV220 copy;
        // whole fractals, as documents ask; what lies behind the rows is not read
        copy.nSize = static_cast<uint16_t>(AlignUp(round.rows, kFractal));
        copy.mSize = static_cast<uint16_t>(RowsOfProducts(core, round));
        copy.srcStride = kFractal;
        copy.dstStride = roundRows_;
        copy.ndNum = 1;
        AscendC::Fixpipe<Product, Product, AscendC::CFG_ROW_MAJOR>(
            scores_[ring * RoundScores(tiling_->headDim, tiling_->headBlock, sizeof(T))],
            Products(PlaceOf(core, number)), copy);
    }

    TOPTHETA_DEVICE inline uint32_t Sharers() const { return lengths_.Sharers(); }
    // Of the two that share the keys of a round, the second one has the next head block.
    TOPTHETA_DEVICE inline Segment SegmentFor(uint32_t core, const Round& round) const
    {
        Segment segment = round.segment;
        if constexpr (Types::kTokens) {
            segment.headBlock += core % Sharers();
        }
        return segment;
    }
    TOPTHETA_DEVICE inline uint32_t RowsOfProducts(uint32_t core, const Round& round) const
    {
        return ProductRows(HeadsOf<Types::kTokens>(*tiling_, SegmentFor(core, round)).heads, sizeof(T));
    }
    TOPTHETA_DEVICE inline uint32_t ColumnFractals() const { return columns_ * sizeof(T) / kBlockBytes; }
    TOPTHETA_DEVICE inline uint32_t HalfRows() const { return roundRows_ / kHalves; }
    TOPTHETA_DEVICE inline bool IsFolded(const Round& round) const
    {
        return folds_ && !round.ofSample && FoldsRound(round.left, sizeof(T));
    }
    // Rows that lie together in L1 and are multiplied at once: a half of the round, or, if more than two rows are
    // copied as one, those that come first in them, those that come second, and so on.
    TOPTHETA_DEVICE inline uint32_t PartRows(const Round& round) const
    {
        return kAsOne > kHalves && IsFolded(round) ? roundRows_ / kAsOne : HalfRows();
    }
    // `row` is a multiple of PartRows
    TOPTHETA_DEVICE inline LocalTensor<T> KeyTile(uint32_t place, uint32_t row, uint32_t rows)
    {
        return keys_.template GetWithOffset<T>(rows * columns_, place * kRoundBytes + row * columns_ * sizeof(T));
    }
    TOPTHETA_DEVICE inline LocalTensor<T> LoadedQuery(uint32_t place)
    {
        return loadedQueries_.template GetWithOffset<T>(QueryElements(), place * QueryElements() * sizeof(T));
    }
    TOPTHETA_DEVICE inline LocalTensor<T> Left(uint32_t place)
    {
        return left_.template GetWithOffset<T>(QueryElements(), place * QueryElements() * sizeof(T));
    }
    TOPTHETA_DEVICE inline LocalTensor<Product> Products(uint32_t place)
    {
        return products_.template GetWithOffset<Product>(kProducts, place * kProducts * sizeof(Product));
    }

    const TilingData* tiling_ = nullptr;
    ValidRows<LengthTensors, Types::kTokens> lengths_;
    CubeKeyRows<T> keyRows_[kPairCores];
    CubeQueries<Types> queries_;
    GlobalTensor<Product> scores_;
    AscendC::TBuf<AscendC::TPosition::B1> keys_;
    AscendC::TBuf<AscendC::TPosition::A1> loadedQueries_;
    AscendC::TBuf<AscendC::TPosition::A2> left_;
    AscendC::TBuf<AscendC::TPosition::B2> right_;
    AscendC::TBuf<AscendC::TPosition::CO1> products_;
    Round rounds_[kPlaces];
    uint32_t columns_ = 0;
    uint32_t roundRows_ = 0;
    bool folds_ = false;
    uint32_t pair_ = 0;   // the first of the two vector cores
    int32_t half_ = 0;    // of L0B, to be filled next
};

}  // namespace toptheta
