// Matrix products that four warps compute together, with at least one factor in shared memory.
#pragma once

#include "device.cuh"

#ifndef CELLERATE_EMULATED

namespace cellerate::gpu {

// Four warps make a wide product together; the first one's number is a multiple of four. The product is that of
// `multiply_add`, but b is in shared memory and has all tiles of 8 rows, and it runs beside the following code: from
// `begin_wide_products` to `finish_wide_products`, a thread must not touch its sums and weights.

// Keeps the compiler from moving code that uses the sums.
template <int tiles>
CELLERATE_DEVICE void keep_in_order(float (&sums)[tiles][4]) {
  CELLERATE_UNROLL
  for (int tile = 0; tile < tiles; ++tile) {
    CELLERATE_UNROLL
    for (int part = 0; part < 4; ++part) asm volatile("" : "+f"(sums[tile][part])::"memory");
  }
}
CELLERATE_DEVICE void begin_wide_group() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
template <int tiles>
CELLERATE_DEVICE void begin_wide_products(float (&sums)[tiles][4]) {
  keep_in_order(sums);
  begin_wide_group();
}
// Ends a group of wide products; a later wait can leave the last groups running.
CELLERATE_DEVICE void end_wide_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int running>
CELLERATE_DEVICE void wait_for_wide_groups() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(running) : "memory");
}
template <int tiles>
CELLERATE_DEVICE void finish_wide_products(float (&sums)[tiles][4]) {
  end_wide_group();
  wait_for_wide_groups<0>();
  keep_in_order(sums);
}

// The address of shared memory for descriptors: its offset in the block, in units of 16 bytes. The upper byte of an
// address, which is cut off, is the block's rank in its cluster.
CELLERATE_DEVICE unsigned described_address(const void* p) { return (shared_address(p) & 0x3ffffu) >> 4; }

// The descriptor of rows of `row_bytes` in shared memory for the wide products, from byte `first` of each row on. The
// rows begin at a multiple of 8 rows, and their chunks of 16 bytes are swizzled by the bits of their address from the
// seventh on, which is the order of `in_panel` in operands.cuh.
template <int row_bytes>
CELLERATE_DEVICE unsigned long long described(const void* rows, int first) {
  static_assert(row_bytes == 64 || row_bytes == 128);
  constexpr unsigned long long kOrder = row_bytes == 128 ? 1 : 2, kEightRows = 8 * row_bytes / 16;
  const unsigned low = (1u << 16 | described_address(rows)) + static_cast<unsigned>(first) / 16;
  return kOrder << 62 | kEightRows << 32 | low;
}

// The descriptor of rows of 16-bit numbers in shared memory in the order of `in_tile` in lstm_tiles.cuh, without
// swizzling: 128 bytes from one chunk of a row to the next, 1024 from eight rows to the next eight.
CELLERATE_DEVICE unsigned long long described_tile(const void* rows) {
  constexpr unsigned long long kNextRows = 1024 / 16, kNextChunk = 128 / 16;
  return kNextRows << 32 | kNextChunk << 16 | described_address(rows);
}

#define CELLERATE_SUMS(tile) \
  "+f"(sums[tile][0]), "+f"(sums[tile][1]), "+f"(sums[tile][2]), "+f"(sums[tile][3])
#define CELLERATE_WIDE_PRODUCT(kind, end, n, of_sums, of_a, of_b, ...)                        \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" n kind " {" of_sums "}, {" of_a "}, " of_b \
               ", 1, 1, 1" end ";"                                                            \
               : __VA_ARGS__                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
// kind: the depth of a product and its types. end: the text after the signs of a and b.
#define CELLERATE_WIDE_PRODUCTS(kind, end)                                                               \
  static_assert(0 < tiles && tiles < 6);                                                                 \
  if constexpr (tiles == 1) {                                                                            \
    CELLERATE_WIDE_PRODUCT(kind, end, "8", "%0, %1, %2, %3", "%4, %5, %6, %7", "%8", CELLERATE_SUMS(0)); \
  } else if constexpr (tiles == 2) {                                                                     \
    CELLERATE_WIDE_PRODUCT(kind, end, "16", "%0, %1, %2, %3, %4, %5, %6, %7", "%8, %9, %10, %11", "%12", \
                           CELLERATE_SUMS(0), CELLERATE_SUMS(1));                                        \
  } else if constexpr (tiles == 3) {                                                                     \
    CELLERATE_WIDE_PRODUCT(kind, end, "24", "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11",          \
                           "%12, %13, %14, %15", "%16", CELLERATE_SUMS(0), CELLERATE_SUMS(1),            \
                           CELLERATE_SUMS(2));                                                           \
  } else if constexpr (tiles == 4) {                                                                     \
    CELLERATE_WIDE_PRODUCT(kind, end, "32",                                                              \
                           "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15",       \
                           "%16, %17, %18, %19", "%20", CELLERATE_SUMS(0), CELLERATE_SUMS(1),            \
                           CELLERATE_SUMS(2), CELLERATE_SUMS(3));                                        \
  } else {                                                                                               \
    CELLERATE_WIDE_PRODUCT(                                                                              \
        kind, end, "40",                                                                                 \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "          \
        "%19",                                                                                           \
        "%20, %21, %22, %23", "%24", CELLERATE_SUMS(0), CELLERATE_SUMS(1), CELLERATE_SUMS(2),            \
        CELLERATE_SUMS(3), CELLERATE_SUMS(4));                                                           \
  }

// Adds a product to the sums of 64 rows of weights, 16 in each warp.
//   a: this thread's words of the weights.
//   rows: the rows of b, contiguous and in the order of `in_panel`. first: the product's first number in each row.
template <int tiles>
CELLERATE_DEVICE void multiply_add_wide(float (&sums)[tiles][4], const unsigned (&a)[4], const Bfloat16* rows,
                                        int first) {
  const unsigned long long b = described<64>(rows, 2 * first);
  CELLERATE_WIDE_PRODUCTS("k16.f32.bf16.bf16", ", 0")
}
template <int tiles>
CELLERATE_DEVICE void multiply_add_wide(float (&sums)[tiles][4], const unsigned (&a)[4], const Float16* rows,
                                        int first) {
  const unsigned long long b = described<64>(rows, 2 * first);
  CELLERATE_WIDE_PRODUCTS("k16.f32.f16.f16", ", 0")
}
template <int tiles>
CELLERATE_DEVICE void multiply_add_wide(float (&sums)[tiles][4], const unsigned (&a)[4], const Tf32* rows,
                                        int first) {
  const unsigned long long b = described<128>(rows, 4 * first);
  CELLERATE_WIDE_PRODUCTS("k8.f32.tf32.tf32", "")
}

#define CELLERATE_OF_24                                                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23"
#define CELLERATE_OF_40 \
  CELLERATE_OF_24 ", %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
#define CELLERATE_OF_56 \
  CELLERATE_OF_40 ", %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55"
#define CELLERATE_OF_76 \
  CELLERATE_OF_56       \
  ", %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75"
#define CELLERATE_SUMS_2(tile) CELLERATE_SUMS(tile), CELLERATE_SUMS(tile + 1)
#define CELLERATE_SUMS_4(tile) CELLERATE_SUMS_2(tile), CELLERATE_SUMS_2(tile + 2)
#define CELLERATE_SUMS_6 CELLERATE_SUMS_4(0), CELLERATE_SUMS_2(4)
#define CELLERATE_SUMS_10 CELLERATE_SUMS_6, CELLERATE_SUMS_4(6)
#define CELLERATE_SUMS_14 CELLERATE_SUMS_10, CELLERATE_SUMS_4(10)
#define CELLERATE_SUMS_19 CELLERATE_SUMS_14, CELLERATE_SUMS_4(14), CELLERATE_SUMS(18)
#define CELLERATE_TILE_PRODUCT(type, n, of_sums, of_a, of_b, ...)                                     \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" of_sums "}, " of_a \
               ", " of_b ", 1, 1, 1, 0, 0;"                                                           \
               : __VA_ARGS__                                                                          \
               : "l"(described_tile(weights)), "l"(described_tile(h)))
#define CELLERATE_TILE_PRODUCTS(type)                                                      \
  static_assert(tiles == 6 || tiles == 10 || tiles == 14 || tiles == 19);                  \
  if constexpr (tiles == 6) {                                                              \
    CELLERATE_TILE_PRODUCT(type, "48", CELLERATE_OF_24, "%24", "%25", CELLERATE_SUMS_6);   \
  } else if constexpr (tiles == 10) {                                                      \
    CELLERATE_TILE_PRODUCT(type, "80", CELLERATE_OF_40, "%40", "%41", CELLERATE_SUMS_10);  \
  } else if constexpr (tiles == 14) {                                                      \
    CELLERATE_TILE_PRODUCT(type, "112", CELLERATE_OF_56, "%56", "%57", CELLERATE_SUMS_14); \
  } else {                                                                                 \
    CELLERATE_TILE_PRODUCT(type, "152", CELLERATE_OF_76, "%76", "%77", CELLERATE_SUMS_19); \
  }

// A wide product whose two factors are in shared memory: 64 rows of weights and all rows of h, with 16 numbers of each.
//   weights, h: the first of these numbers in the first row, in the order of `in_tile` in lstm_tiles.cuh.
template <int tiles>
CELLERATE_DEVICE void multiply_add_tile(float (&sums)[tiles][4], const Bfloat16* weights, const Bfloat16* h) {
  CELLERATE_TILE_PRODUCTS("bf16")
}
template <int tiles>
CELLERATE_DEVICE void multiply_add_tile(float (&sums)[tiles][4], const Float16* weights, const Float16* h) {
  CELLERATE_TILE_PRODUCTS("f16")
}

}  // namespace cellerate::gpu

#endif
