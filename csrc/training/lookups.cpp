#include "training/lookups.h"

#include <algorithm>

namespace cellerate {

void Lookup::turn_off() {
  whole_ = false;
  // Their memory serves the next batch.
  if (distinct()) std::swap(pieces_, spare_);
  pieces_.clear();
}

void Lookup::take_distinct(const int32_t* ids, int64_t vocabulary, const std::vector<int64_t>& begins,
                           double share) {
  found_.resize(static_cast<size_t>(vocabulary));
  spare_.resize(begins.size() - 1);
  size_t all = 0;
  most_rows_ = 0;
  for (size_t n = 0; n < spare_.size(); ++n) {
    auto& [rows, places] = spare_[n];
    rows.clear();
    places.clear();
    for (int64_t at = begins[n]; at < begins[n + 1]; ++at) {
      // What an earlier piece has left there is told by the row that stands at that place now.
      int32_t& place = found_[static_cast<size_t>(ids[at])];
      if (static_cast<size_t>(place) >= rows.size() || rows[static_cast<size_t>(place)] != ids[at]) {
        place = static_cast<int32_t>(rows.size());
        rows.push_back(ids[at]);
      }
      places.push_back(place);
    }
    all += rows.size();
    most_rows_ = std::max(most_rows_, static_cast<int64_t>(rows.size()));
  }
  if (static_cast<double>(all) <= share * static_cast<double>(begins.back() - begins.front()))
    std::swap(pieces_, spare_);
}

}  // namespace cellerate
