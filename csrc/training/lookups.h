// How LSTMs avoid the product of the kernel and the input at each position. For an embedding that only LSTMs read, the
// product is computed once for each row of the table and then looked up. For inputs that are the same at all steps, the
// product is computed once for each row of the batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cellerate {

// The rows of a batch that a piece takes.
struct PieceRows {
  int64_t piece, first, count;
};
inline PieceRows rows_of_piece(int64_t rows, int64_t pieces, int64_t piece) {
  const int64_t first = rows * piece / pieces;
  return {piece, first, rows * (piece + 1) / pieces - first};
}

// The rows of a table that the positions of a piece read.
struct RowsRead {
  std::vector<int32_t> rows;    // distinct, in the order of their first use
  std::vector<int32_t> places;  // for each position, the index in `rows` of the row that it reads
};

// The inputs of an LSTM: those that change from step to step, and those that are the same at all steps.
struct InputParts {
  struct Part {
    int32_t node;
    int64_t first, rows;  // the rows of the kernel that multiply it
  };
  // Its node is -1, and it has no rows, if all inputs are the same at all steps.
  Part moving{-1, 0, 0};
  std::vector<Part> still;  // (B, rows) each
};

// Which rows of an embedding are multiplied once and looked up: all, or the distinct rows that each piece reads.
class Lookup {
 public:
  // Whether LSTMs look up rows in this batch.
  bool active() const { return whole_ || distinct(); }
  bool distinct() const { return !pieces_.empty(); }
  const RowsRead& piece(int64_t n) const { return pieces_[static_cast<size_t>(n)]; }
  // The most rows that a piece reads.
  int64_t most_rows() const { return most_rows_; }

  void turn_off();
  void take_whole() { whole_ = true; }
  // Takes the distinct rows that each piece reads, if they are at most `share` of the positions of the batch.
  // Args: ids: (B, T), each below `vocabulary`.
  void take_distinct(const int32_t* ids, int64_t rows, int64_t steps, int64_t pieces, int64_t vocabulary,
                     double share);

 private:
  bool whole_ = false;
  std::vector<RowsRead> pieces_, spare_;
  // For each row of the table, its index among the rows of the piece that read it last.
  std::vector<int32_t> found_;
  int64_t most_rows_ = 0;
};

}  // namespace cellerate
