// The step of the LSTM layers in generation. generate.cuh includes it.
#pragma once

namespace cellerate::gpu {

template <class P>
template <int matrix, int layer, int pairs>
CELLERATE_DEVICE void GenerateBlock<P>::multiply(int now, int first_product, int first_pair, int stride,
                                                 Sums& sums) {
  float other[P::kTiles][4] = {};
  constexpr int kPairUnits = 2 * L::kProduct;
  const Panel* h = shared_.h[now] + P::panels_before(layer);
  CELLERATE_UNROLL
  for (int n = 0; n < pairs; ++n) {
    // If the parts of h are uneven, the weights beyond the last pair are zeros.
    const int pair = first_pair + n * stride < P::pairs(layer) ? first_pair + n * stride : 0;
    const int panel = pair * kPairUnits / kPanelUnits, first = pair * kPairUnits % kPanelUnits;
    unsigned parts[L::kSplit][P::kTiles][4];
    CELLERATE_UNROLL
    for (int split = 0; split < L::kSplit; ++split) {
      CELLERATE_UNROLL
      for (int tile = 0; tile < P::kTiles; ++tile) {
        load_matrices(parts[split][tile],
                      h[panel][split] +
                          in_panel<Number>(tile * 8 + here_.lane % 8, first + here_.lane / 8 * L::kChunk));
      }
    }
    weights<matrix>().multiply(first_product + 2 * n, 0, parts, sums);
    weights<matrix>().multiply(first_product + 2 * n + 1, 0, parts, L::kSplit == 2 ? sums : other);
  }
  CELLERATE_UNROLL
  for (int tile = 0; tile < P::kTiles; ++tile) {
    CELLERATE_UNROLL
    for (int part = 0; part < 4; ++part) sums[tile][part] += other[tile][part];
  }
}

template <class P>
template <int layer>
CELLERATE_DEVICE void GenerateBlock<P>::advance_layer(int step, Sums& sums) {
  const int now = step & 1, next = now ^ 1;
  const bool mine = here_.rank < P::blocks(layer);
  if constexpr (layer > 0) {
    if (mine) {
      weights<2 * layer>().read_ahead();
      multiply_layer<2 * layer>(now, sums);
      weights<2 * layer - 1>().read_ahead();
    }
    // Blocks without units of this layer wait, too, so that no block is ever two steps behind another.
    wait_for(shared_.arrived[layer - 1][next], (step >> 1) & 1);
    if (mine) multiply_layer<2 * layer - 1>(next, sums);
  }
  if (mine) {
    Gates<Number> looked_up[P::kTiles] = {};
    if constexpr (layer == 0) look_up(looked_up);
    CELLERATE_UNROLL
    for (int tile = 0; tile < P::kTiles; ++tile) advance<layer>(next, tile, sums[tile], looked_up[tile]);
    sync_block();
    send_to_blocks<P, sizeof shared_.sent[0][0]>(
        here_, shared_.h[next][P::panels_before(layer) + here_.rank * P::kBlockPanels],
        shared_.sent[next][layer], shared_.arrived[layer][next]);
  }
  if constexpr (layer + 1 < P::kLayers) {
    Sums above = {};
    advance_layer<layer + 1>(step, above);
  }
}

template <class P>
template <int layer>
CELLERATE_DEVICE void GenerateBlock<P>::advance(int next, int tile, const float (&mine)[4],
                                                const Gates<Number>& looked_up) {
  constexpr Activation kGate = P::recurrent_activation(layer), kValue = P::activation(layer);
  UnitGates z = gates_of_unit(mine, here_.lane);
  const bool known = there(layer, tile);
  CELLERATE_UNROLL
  for (int gate = 0; gate < 4; ++gate)
    z.of[gate] += layer == 0 ? widen(looked_up.of[gate]) : bias_[layer][gate];
  Gate i, f, g, o;
  all_gates<kGate, kValue, Number>(z, i, f, g, o);
  const float c = f.value * c_[layer][tile] + i.value * g.value;
  const float h = o.value * activate<kValue, Number>(c);
  if (live_ >> row(tile) & 1) {
    c_[layer][tile] = c;
    // Units beyond H stay zero, whatever the activation of zero is: weights of zero would not hide an infinity.
    h_[layer][tile] = known ? h : 0.0f;
  }
  store_split(h_[layer][tile],
              &shared_.sent[next][layer][block_unit_ / kPanelUnits][0]
                           [in_panel<Number>(row(tile), block_unit_ % kPanelUnits)],
              kNumbers);
}

}  // namespace cellerate::gpu
