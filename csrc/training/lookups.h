// How LSTMs take inputs without a product for each position. Of an embedding that nothing else reads they look up the
// product of a row and their kernel, which is then computed once for each row of the table; and of what is the same at
// all steps the product is computed once for each row of the batch.
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
  std::vector<int32_t> rows;    // each once, in the order in which they are read first
  std::vector<int32_t> places;  // of each position: which of them it reads
};

// The inputs of an LSTM: what it reads at each position, and what is the same at all steps.
struct InputParts {
  struct Part {
    int32_t node;
    int64_t first, rows;  // of the kernel
  };
  // An embedding or any value; its node is -1 and it has no rows if all is the same at all steps.
  Part moving{-1, 0, 0};
  std::vector<Part> still;  // (B, rows) each
};

class Lookup {
 public:
  // Whether LSTMs look its rows up in this batch: all rows of the table, or those that a piece reads.
  bool active() const { return whole_ || distinct(); }
  bool distinct() const { return !pieces_.empty(); }
  const RowsRead& piece(int64_t n) const { return pieces_[static_cast<size_t>(n)]; }
  // The most rows that a piece reads.
  int64_t most_rows() const { return most_rows_; }

  void turn_off();
  void take_whole() { whole_ = true; }
  // Takes the rows that each piece reads, if they are at most `share` of its positions.
  // Args: ids: (B, T), each below `vocabulary`.
  void take_distinct(const int32_t* ids, int64_t rows, int64_t steps, int64_t pieces, int64_t vocabulary,
                     double share);

 private:
  bool whole_ = false;
  std::vector<RowsRead> pieces_, spare_;
  // Of each row of the table: where it stands among the rows of a piece, if it does.
  std::vector<int32_t> found_;
  int64_t most_rows_ = 0;
};

}  // namespace cellerate
