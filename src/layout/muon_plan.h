// Which rank makes which matrix orthogonal with train.optimizer = "muon", and the memory for it.
//
// The matrices of a parameter are its last two axes: each expert has a gate, an up and a down projection of its own. A
// rank that owns all elements of a matrix (StateElements::owned) updates it alone. A matrix that tensor parallelism,
// slices of experts or a border of ZeRO splits is gathered to one of the ranks that own a part of it, its owner, and
// goes back as an orthogonal one; owners alternate. Without ZeRO every replica does so for itself.
#pragma once

#include <cstdint>
#include <vector>

#include "config/param_table.h"
#include "layout/byte_table.h"
#include "layout/plan.h"
#include "layout/tensor_slice.h"

namespace mw {

struct MuonShape {
  int64_t matrices = 1, n = 0, k = 0;  // that many of [n, k]
  int64_t numel() const { return n * k; }
  int64_t batch() const;  // matrices that are made orthogonal together, at most
};
MuonShape muon_shape(const ParamRow& row);

// Elements of the largest tensors that an update needs beside the states, all fp32. By them the table of bytes has
// rows.
struct MuonBuffers {
  int64_t matrices = 0, gram = 0, sums = 0;
  void widen(const ParamRow& row);  // for one more parameter; nothing unless Muon updates it
  void widen(const MuonBuffers& other);
};
constexpr const char *kMuonMatrices = "muon.matrices", *kMuonGram = "muon.gram", *kMuonSums = "muon.sums",
                     *kMuonParts = "muon.parts";
// matrices [2, n], gram [2, n], sums [n] and, where ranks exchange parts, parts [n]; none if nothing was widened.
std::vector<ByteRow> muon_rows(const MuonBuffers& buffers, const Mesh& mesh);

// Ranks are those of the stage, in the order of its group (MeshAxis::stage).
struct MuonPart {
  int rank = 0;
  ElementRange elements;  // of the rank's local tensor
};
// A split matrix. Its parts follow each other as blocks of rows; or, where `columns` is not empty, as blocks of so many
// columns, each of one or several parts.
struct MuonMatrix {
  size_t row = 0;  // of own_params
  int64_t index = 0;
  MuonShape shape;
  int owner = 0;
  std::vector<MuonPart> parts;
  std::vector<int64_t> columns;
};
// Whole matrices that lie one after the other in this rank's local tensor; at most a batch.
struct MuonRun {
  size_t row = 0;
  MuonShape shape;
  ElementRange elements;
};

struct MuonPlan {
  std::vector<MuonRun> whole;
  // Matrices that are exchanged together: no rank sends more elements than MuonBuffers::matrices, or owns matrices of
  // more. The same on all ranks of a stage.
  std::vector<std::vector<MuonMatrix>> rounds;
};
// Of the rank of `plan`. Pure.
MuonPlan plan_muon(const Plan& plan);

}  // namespace mw
