// The arguments of the recurrent kernels.
#pragma once

#include "lstm.cuh"

namespace cellerate::gpu {

// Rows beyond the batch and units beyond H are computed with zeros, and not written.
template <class Number>
struct ForwardArguments {
  int batch, steps, units;         // B, T and H itself
  int vocabulary;                  // V, the rows of the table, if there are ids
  MaskedOutput masked_output;      // only with a mask
  const Number* projected;         // (B, T, H, 4) x·kernel + bias; with ids the table (V, H, 4)
  const int* ids;                  // (B, T), or null
  const Words* weights;            // the recurrent kernel in the kernel's order, zeros beyond H
  const Number* h0;                // (B, H), or null: zeros
  const float* c0;                 // (B, H), or null: zeros
  const unsigned char* mask;       // (B, T), zero where masked; only with a mask
  const float* recurrent_dropout;  // (4, B, H); only with dropout
  Number* outputs;                 // (B, T, H), or null
  Number* states;       // (B, T, H) h after each step, or null if not needed or the same as outputs
  Number* gates;        // (B, T, H, 4) the gates as backward needs them, or null
  float* cells;         // (B, T, H) c after each step, with gates
  Number* last_output;  // (B, H), or null
  Number* h_T;          // (B, H)
  float* c_T;           // (B, H)
  Number* exchanged;    // memory in which blocks exchange h, or null if not needed
};

template <class Number>
struct BackwardArguments {
  int batch, steps, units;         // B, T and H itself
  MaskedOutput masked_output;      // only with a mask
  const Number* gates;             // (B, T, H, 4) as forward wrote them
  const float* cells;              // (B, T, H) as forward wrote them
  const Words* weights;            // the recurrent kernel in the kernel's order, zeros beyond H
  const float* c0;                 // (B, H), or null: zeros
  const unsigned char* mask;       // (B, T), zero where masked; only with a mask
  const float* recurrent_dropout;  // (4, B, H); only with dropout
  const Number* d_outputs;         // (B, T, H), or null for zeros, like the next three
  const Number* d_last_output;     // (B, H)
  const Number* d_h_T;             // (B, H)
  const float* d_c_T;              // (B, H)
  Number* d_projected;             // (B, T, H, 4)
  Number* d_h0;                    // (B, H)
  float* d_c0;                     // (B, H)
  Number* exchanged;               // memory in which blocks exchange the gradients of gates; only for tiles
};

}  // namespace cellerate::gpu
