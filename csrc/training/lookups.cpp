#include "training/lookups.h"

#include <algorithm>

namespace cellerate {

void Lookup::turn_off() {
  whole_ = false;
  // Their memory serves the next batch.
  if (distinct()) std::swap(pieces_, spare_);
  pieces_.clear();
}

void Lookup::take_distinct(const int32_t* ids, int64_t rows, int64_t steps, int64_t pieces,
                           int64_t vocabulary, double share) {
  found_.resize(static_cast<size_t>(vocabulary));
  spare_.resize(static_cast<size_t>(pieces));
  size_t all = 0;
  most_rows_ = 0;
  for (int64_t n = 0; n < pieces; ++n) {
    const PieceRows of = rows_of_piece(rows, pieces, n);
    auto& [known, places] = spare_[static_cast<size_t>(n)];
    known.clear();
    places.clear();
    for (int64_t at = of.first * steps; at < (of.first + of.count) * steps; ++at) {
      // What an earlier piece has left there is told by the row that stands at that place now.
      int32_t& place = found_[static_cast<size_t>(ids[at])];
      if (static_cast<size_t>(place) >= known.size() || known[static_cast<size_t>(place)] != ids[at]) {
        place = static_cast<int32_t>(known.size());
        known.push_back(ids[at]);
      }
      places.push_back(place);
    }
    all += known.size();
    most_rows_ = std::max(most_rows_, static_cast<int64_t>(known.size()));
  }
  if (static_cast<double>(all) <= share * static_cast<double>(rows * steps)) std::swap(pieces_, spare_);
}

}  // namespace cellerate
