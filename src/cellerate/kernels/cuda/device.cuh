// The kernels' interface to the hardware: matrix products of a warp, and the copies and barriers of a cluster.
//
// All PTX is here and in wide_products.cuh. tests/support/kernels/cuda_emulated.h has the same functions in plain C++,
// so that the kernels can be run and tested without a GPU.
#pragma once

#ifdef CELLERATE_EMULATED
#include "cuda_emulated.h"
#else

#define CELLERATE_DEVICE __device__ __forceinline__
#define CELLERATE_UNROLL _Pragma("unroll")

namespace cellerate::gpu {

struct Bfloat16 {
  unsigned short bits;
};
struct Float16 {
  unsigned short bits;
};
// A float of which products use the first 19 bits.
struct Tf32 {
  float value;
};

CELLERATE_DEVICE float widen(Bfloat16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
CELLERATE_DEVICE float widen(Float16 x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}
CELLERATE_DEVICE float widen(float x) { return x; }
CELLERATE_DEVICE float widen(Tf32 x) { return x.value; }
CELLERATE_DEVICE void narrow(float x, float& to) { to = x; }
CELLERATE_DEVICE void narrow(float x, Tf32& to) { to.value = x; }
CELLERATE_DEVICE void narrow(float x, Bfloat16& to) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
}
CELLERATE_DEVICE void narrow(float x, Float16& to) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(x)); }

CELLERATE_DEVICE unsigned bits_of(float x) { return __float_as_uint(x); }
CELLERATE_DEVICE float from_bits(unsigned bits) { return __uint_as_float(bits); }

// A float is the sum of two numbers of 19 bits; this gives the larger one. A NaN stays a NaN.
CELLERATE_DEVICE float upper_part(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return from_bits(bits);
}

// Keeps the compiler from moving computations with x out of a loop, where their results would occupy registers.
CELLERATE_DEVICE void keep_in_loop(unsigned& x) { asm volatile("" : "+r"(x)); }

// Relative error 2^-11.
CELLERATE_DEVICE float tanh_11_bits(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 2^x and 1 / x, relative error 2^-22.
CELLERATE_DEVICE float exp2_22_bits(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
CELLERATE_DEVICE float reciprocal_22_bits(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Multiplies the one or two numbers in a word with those in another, in the form for the matrix units.
CELLERATE_DEVICE unsigned multiply_each(float, unsigned a, unsigned b) {
  return bits_of(from_bits(a) * from_bits(b));
}
CELLERATE_DEVICE unsigned multiply_each(Tf32, unsigned a, unsigned b) {
  return bits_of(upper_part(from_bits(a) * from_bits(b)));
}
CELLERATE_DEVICE unsigned multiply_each(Bfloat16, unsigned a, unsigned b) {
  unsigned product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
CELLERATE_DEVICE unsigned multiply_each(Float16, unsigned a, unsigned b) {
  unsigned product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

CELLERATE_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
CELLERATE_DEVICE int block_index() { return static_cast<int>(blockIdx.x); }
CELLERATE_DEVICE int cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
CELLERATE_DEVICE unsigned char* shared_memory() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return memory;
}
CELLERATE_DEVICE void sync_block() { __syncthreads(); }
CELLERATE_DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
CELLERATE_DEVICE float from_lane_xor(float x, int distance) {
  return __shfl_xor_sync(0xffffffffu, x, distance);
}
CELLERATE_DEVICE unsigned long long from_lane_xor(unsigned long long x, int distance) {
  return __shfl_xor_sync(0xffffffffu, x, distance);
}

// Reductions over the lanes of a warp; every lane gets the result.
CELLERATE_DEVICE unsigned largest_in_warp(unsigned x) { return __reduce_max_sync(0xffffffffu, x); }
CELLERATE_DEVICE unsigned smallest_in_warp(unsigned x) { return __reduce_min_sync(0xffffffffu, x); }
CELLERATE_DEVICE unsigned sum_in_warp(unsigned x) { return __reduce_add_sync(0xffffffffu, x); }
CELLERATE_DEVICE double sum_in_warp(double x) {
  CELLERATE_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}
// The sum over the lanes up to and including this one.
CELLERATE_DEVICE double running_sum_in_warp(double x) {
  CELLERATE_UNROLL
  for (int distance = 1; distance < 32; distance *= 2) {
    const double below = __shfl_up_sync(0xffffffffu, x, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) x += below;
  }
  return x;
}
// The value of one lane, for all lanes.
CELLERATE_DEVICE double from_lane(double x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
CELLERATE_DEVICE unsigned from_lane(unsigned x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
// One bit for each lane.
CELLERATE_DEVICE unsigned lanes_where(bool yes) { return __ballot_sync(0xffffffffu, yes); }
// Makes the writes of each lane of a warp visible to the other lanes.
CELLERATE_DEVICE void sync_warp() { __syncwarp(); }
CELLERATE_DEVICE int count_bits(unsigned x) { return __popc(x); }
CELLERATE_DEVICE int lowest_bit(unsigned x) { return __ffs(static_cast<int>(x)) - 1; }
CELLERATE_DEVICE int highest_bit(unsigned x) { return 31 - __clz(static_cast<int>(x)); }

CELLERATE_DEVICE unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
// The address in another block's shared memory that corresponds to `p` in this block's.
CELLERATE_DEVICE unsigned address_in(int block, const void* p) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(block));
  return there;
}

// Counts the bytes that copies bring. Each of its phases ends when all bytes expected in it have arrived.
struct Barrier {
  unsigned long long state;
};
//   arrivals: the number of calls of `expect_bytes`, `arrive` and `arrive_in` that a phase needs as well.
CELLERATE_DEVICE void init_barrier(Barrier& barrier, int arrivals = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals)
               : "memory");
}
// Makes the barriers that this thread has initialized visible to the blocks of the cluster; `sync_cluster` must
// follow.
CELLERATE_DEVICE void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
CELLERATE_DEVICE void expect_bytes(Barrier& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(bytes)
               : "memory");
}
// Arrives at the barrier. All earlier reads and writes of this thread come before the end of the phase.
CELLERATE_DEVICE void arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
// Arrives at another block's barrier, given as the address of this block's barrier.
CELLERATE_DEVICE void arrive_in(int block, Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in(block, &barrier)) : "memory");
}
// Waits for the end of a phase: parity 0 for the first, 1 for the second, 0 for the third. After about 20 seconds,
// longer than any step takes, it ends the kernel with an error instead of hanging the GPU. After the phase, the bytes
// of copies and stores are in this block's memory and can be read. Writes of other blocks elsewhere are not acquired,
// because that would empty the first-level cache in every step. Strictly, PTX's memory model requires an acquire for
// stores from other blocks, too; but they reach the same memory as the barrier that counts them, before they are
// counted.
CELLERATE_DEVICE void wait_for(Barrier& barrier, int parity) {
  constexpr unsigned kPatience = 20'000;  // in units of 2^20 ns
  unsigned done = 0, begun = 0;
  for (unsigned tries = 1; !done; ++tries) {
    if (tries % 4096 == 0) {
      unsigned long long now;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      const auto units = static_cast<unsigned>(now >> 20);
      if (begun == 0) begun = units;
      if (units - begun > kPatience) asm volatile("trap;");
    }
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(&barrier)), "r"(parity)
        : "memory");
  }
}
// Like wait_for, without a limit. For loops in which wide products run: an exit from such a loop would make the
// compiler wait for each product before the next. Other warps of the block must enforce the limit.
CELLERATE_DEVICE void wait_forever_for(Barrier& barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;\n}" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}
// Makes this thread's writes to shared memory visible to the copies and the wide products that a thread starts after
// `sync_block`.
CELLERATE_DEVICE void order_before_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Starts a copy from this block's shared memory into another's. `to` and `barrier` are given as addresses in this
// block and used in the other; the other block's barrier counts the bytes. Addresses and `bytes` are multiples of 16.
CELLERATE_DEVICE void copy_to_block(int block, void* to, const void* from, int bytes, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          address_in(block, to)),
      "r"(shared_address(from)), "r"(bytes), "r"(address_in(block, &barrier))
      : "memory");
}

// Stores 8 or 16 bytes into another block's shared memory. `to` and `barrier` are given as for `copy_to_block`. Unlike
// copies, stores come from registers, so nothing has to be ordered before them; but wide products in the other block
// cannot read the stored bytes.
CELLERATE_DEVICE void store_to_block(int block, void* to, const unsigned (&words)[2], Barrier& barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
          address_in(block, to)),
      "r"(words[0]), "r"(words[1]), "r"(address_in(block, &barrier))
      : "memory");
}
CELLERATE_DEVICE void store_to_block(int block, void* to, const unsigned (&words)[4], Barrier& barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address_in(block, to)),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(address_in(block, &barrier))
      : "memory");
}

// Starts a copy from global memory into this block's shared memory; its barrier counts the bytes. Addresses and
// `bytes` are multiples of 16, here and below.
CELLERATE_DEVICE void copy_from_memory(void* to, const void* from, int bytes, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}
// Like copy_from_memory, into the first `blocks` blocks of the cluster, with this block among them; reads memory once.
// `to` and `barrier` are addresses in this block; each block's own barrier counts the bytes that it receives.
CELLERATE_DEVICE void copy_from_memory_to_blocks(int blocks, void* to, const void* from, int bytes,
                                                 Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
      "[%3], %4;" ::"r"(shared_address(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(&barrier)),
      "h"(static_cast<unsigned short>((1u << blocks) - 1))
      : "memory");
}
// Copies from this block's shared memory to global memory. On return, copies that this thread starts can read it.
CELLERATE_DEVICE void copy_to_memory(void* to, const void* from, int bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;\n"
      "cp.async.bulk.wait_group 0;\n"
      "fence.proxy.async;" ::"l"(__cvta_generic_to_global(to)),
      "r"(shared_address(from)), "r"(bytes)
      : "memory");
}

// Makes this thread's writes to global memory visible to the copies that a thread of its warp starts after
// `sync_warp`.
CELLERATE_DEVICE void order_before_copies_of_warp() { asm volatile("fence.proxy.async;" ::: "memory"); }
// Makes this thread's writes to global memory visible to the copies that another thread of the block starts after it
// has waited for a barrier at which this thread arrived.
CELLERATE_DEVICE void order_before_copies_from_memory() {
  asm volatile("fence.acq_rel.gpu;\nfence.proxy.async;" ::: "memory");
}
// Prefetches global memory into the second-level cache.
CELLERATE_DEVICE void prefetch_bytes(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)),
               "r"(bytes));
}

// Moves registers between the groups of four warps of a block; all warps of a group call this once. From then on, each
// thread of the group has `count` registers, a multiple of 8.
template <int count>
CELLERATE_DEVICE void give_registers_until() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
CELLERATE_DEVICE void take_registers_until() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// Loads 16 bytes of memory that is not written while the kernel runs. It is volatile so that every call loads: the
// address is the same in each step, so the compiler would otherwise keep the bytes in registers, which are scarce.
CELLERATE_DEVICE void load_words(unsigned (&words)[4], const void* from) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(__cvta_generic_to_global(from)));
}

// Loads four matrices of 8 rows of 16 bytes: lane n passes the address of row n % 8 of matrix n / 8, and gets from
// each matrix the n % 4-th four bytes of row n / 4.
CELLERATE_DEVICE void load_matrices(unsigned (&parts)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(parts[0]), "=r"(parts[1]), "=r"(parts[2]), "=r"(parts[3])
               : "r"(shared_address(row)));
}
// sum (16x8) += a (16xk) · b (kx8), where k numbers are 32 bytes. Each lane holds the parts of the matrices that PTX
// prescribes for mma.m16n8k16, or for m16n8k8 with floats, of which only the first 19 bits are used.
CELLERATE_DEVICE void multiply_add(float, float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
CELLERATE_DEVICE void multiply_add(Tf32, float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  multiply_add(0.0f, sum, a, b0, b1);
}
CELLERATE_DEVICE void multiply_add(Bfloat16, float (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                   unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
CELLERATE_DEVICE void multiply_add(Float16, float (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                   unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace cellerate::gpu

#endif
