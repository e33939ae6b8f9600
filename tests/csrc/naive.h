// One LSTM layer written out in double precision, for the tests of the kernels; kernels/lstm/reference.py in C++.
//
// A second oracle, so that the sanitizers and valgrind can see every kernel run without Python. Only the activations
// tanh, sigmoid, ReLU and SiLU.
#pragma once

#include <cmath>
#include <vector>

#include "cells/lstm.h"

namespace naive {

using Vector = std::vector<double>;
using cellerate::Activation;
using cellerate::LstmInputs;
using cellerate::MaskedOutput;

// The inputs of a layer as doubles; empty where they are absent.
struct Case {
  LstmInputs sizes;  // dimensions and options alone
  Vector x, kernel, recurrent_kernel, bias, h0, c0, dropout, recurrent_dropout;
  std::vector<unsigned char> mask;

  long B() const { return sizes.batch; }
  long T() const { return sizes.steps; }
  long D() const { return sizes.inputs; }
  long H() const { return sizes.units; }
  long time_of(long step) const { return sizes.go_backwards ? T() - 1 - step : step; }
  bool masked(long b, long step) const { return !mask.empty() && !mask[b * T() + time_of(step)]; }
  double drop_x(long gate, long b, long d) const {
    return dropout.empty() ? 1.0 : dropout[(gate * B() + b) * D() + d];
  }
  double drop_h(long gate, long b, long unit) const {
    return recurrent_dropout.empty() ? 1.0 : recurrent_dropout[(gate * B() + b) * H() + unit];
  }
};

struct Results {
  Vector outputs, h_T, c_T;
};
struct Gradients {
  Vector x, kernel, recurrent_kernel, bias, h0, c0;
};

inline double value(Activation kind, double x) {
  switch (kind) {
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    default:
      return NAN;
  }
}
inline double slope(Activation kind, double x) {
  const double s = 1 / (1 + std::exp(-x));
  switch (kind) {
    case Activation::kTanh:
      return 1 - std::tanh(x) * std::tanh(x);
    case Activation::kSigmoid:
      return s * (1 - s);
    case Activation::kRelu:
      return x > 0 ? 1 : 0;
    case Activation::kSilu:
      return s * (1 + x * (1 - s));
    default:
      return NAN;
  }
}

// Forward and backward at once: the results, and the gradients for the given cotangents (empty: zeros).
inline Gradients run(const Case& in, const Vector& d_outputs, const Vector& d_h_T, const Vector& d_c_T,
                     Results& out) {
  const long B = in.B(), T = in.T(), D = in.D(), H = in.H();
  const bool sequences = in.sizes.return_sequences;
  Vector z(T * B * 4 * H), h((T + 1) * B * H), c((T + 1) * B * H);
  out.outputs.assign((sequences ? T : 1) * B * H, 0);
  for (long n = 0; n < B * H; ++n) {
    h[n] = in.h0.empty() ? 0 : in.h0[n];
    c[n] = in.c0.empty() ? 0 : in.c0[n];
  }
  const Activation act = in.sizes.activation, rec = in.sizes.recurrent_activation;
  const auto at = [&](long step, long b, long u) { return (step * B + b) * H + u; };
  const auto gate_at = [&](long step, long b, long g, long u) { return ((step * B + b) * 4 + g) * H + u; };
  // Where the output of a step goes, or -1.
  const auto output_at = [&](long step, long b, long u) {
    return sequences ? (b * T + step) * H + u : step == T - 1 ? b * H + u : -1;
  };
  std::vector<long> first(B, T);
  for (long b = 0; b < B; ++b) {
    for (long s = T - 1; s >= 0; --s) {
      if (!in.masked(b, s)) first[b] = s;
    }
  }
  // Whether the output of a masked step is zero rather than h.
  const auto zeroed = [&](long step, long b) {
    return in.masked(b, step) &&
           (in.sizes.masked_output == MaskedOutput::kZero ||
            (in.sizes.masked_output == MaskedOutput::kPreviousOutput && step < first[b]));
  };
  for (long s = 0; s < T; ++s) {
    for (long b = 0; b < B; ++b) {
      for (long g = 0; g < 4; ++g) {
        for (long u = 0; u < H; ++u) {
          double sum = in.bias.empty() ? 0 : in.bias[g * H + u];
          for (long d = 0; d < D; ++d) {
            sum +=
                in.x[(b * T + in.time_of(s)) * D + d] * in.drop_x(g, b, d) * in.kernel[(d * 4 + g) * H + u];
          }
          for (long k = 0; k < H; ++k) {
            sum += h[at(s, b, k)] * in.drop_h(g, b, k) * in.recurrent_kernel[(k * 4 + g) * H + u];
          }
          z[gate_at(s, b, g, u)] = sum;
        }
      }
      for (long u = 0; u < H; ++u) {
        const double i = value(rec, z[gate_at(s, b, 0, u)]), f = value(rec, z[gate_at(s, b, 1, u)]);
        const double g = value(act, z[gate_at(s, b, 2, u)]), o = value(rec, z[gate_at(s, b, 3, u)]);
        const bool stays = in.masked(b, s);
        c[at(s + 1, b, u)] = stays ? c[at(s, b, u)] : f * c[at(s, b, u)] + i * g;
        h[at(s + 1, b, u)] = stays ? h[at(s, b, u)] : o * value(act, c[at(s + 1, b, u)]);
        if (output_at(s, b, u) >= 0) out.outputs[output_at(s, b, u)] = zeroed(s, b) ? 0 : h[at(s + 1, b, u)];
      }
    }
  }
  out.h_T.assign(h.end() - B * H, h.end());
  out.c_T.assign(c.end() - B * H, c.end());

  Gradients d{Vector(B * T * D), Vector(D * 4 * H), Vector(H * 4 * H),
              Vector(4 * H),     Vector(B * H),     Vector(B * H)};
  Vector dh = d_h_T.empty() ? Vector(B * H) : d_h_T, dc = d_c_T.empty() ? Vector(B * H) : d_c_T;
  for (long s = T - 1; s >= 0; --s) {
    for (long b = 0; b < B; ++b) {
      for (long u = 0; u < H; ++u) {
        if (!d_outputs.empty() && output_at(s, b, u) >= 0 && !zeroed(s, b))
          dh[b * H + u] += d_outputs[output_at(s, b, u)];
      }
      if (in.masked(b, s)) continue;
      Vector dz(4 * H);
      for (long u = 0; u < H; ++u) {
        const double* zs = &z[gate_at(s, b, 0, u)];
        const double i = value(rec, zs[0]), f = value(rec, zs[H]), g = value(act, zs[2 * H]),
                     o = value(rec, zs[3 * H]);
        const double now = c[at(s + 1, b, u)];
        const double dhu = dh[b * H + u], dcu = dc[b * H + u] + dhu * o * slope(act, now);
        dz[u] = dcu * g * slope(rec, zs[0]);
        dz[H + u] = dcu * c[at(s, b, u)] * slope(rec, zs[H]);
        dz[2 * H + u] = dcu * i * slope(act, zs[2 * H]);
        dz[3 * H + u] = dhu * value(act, now) * slope(rec, zs[3 * H]);
        dc[b * H + u] = dcu * f;
        dh[b * H + u] = 0;
      }
      for (long g = 0; g < 4; ++g) {
        for (long u = 0; u < H; ++u) {
          const double grad = dz[g * H + u];
          d.bias[g * H + u] += grad;
          for (long k = 0; k < D; ++k) {
            const long x = (b * T + in.time_of(s)) * D + k, w = (k * 4 + g) * H + u;
            d.kernel[w] += in.x[x] * in.drop_x(g, b, k) * grad;
            d.x[x] += in.kernel[w] * in.drop_x(g, b, k) * grad;
          }
          for (long k = 0; k < H; ++k) {
            const long w = (k * 4 + g) * H + u;
            d.recurrent_kernel[w] += h[at(s, b, k)] * in.drop_h(g, b, k) * grad;
            dh[b * H + k] += in.recurrent_kernel[w] * in.drop_h(g, b, k) * grad;
          }
        }
      }
    }
  }
  d.h0 = dh;
  d.c0 = dc;
  return d;
}

}  // namespace naive
