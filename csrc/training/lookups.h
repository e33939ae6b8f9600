// How LSTMs take the rows of an embedding that nothing else reads: they look up the product of a row and their kernel,
// which is then computed once for each row and not once for each position.
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
