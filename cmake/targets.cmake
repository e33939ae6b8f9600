# The instruction sets: csrc/simd/target_<name>.cpp is the only code compiled beyond what every processor has.
include(CheckCXXCompilerFlag)
include(CheckCXXSymbolExists)

# By the compiler's own word and not the machine's name: a cross-compiler's target is not this machine.
check_cxx_symbol_exists(__x86_64__ "" CELLERATE_X86_64)
check_cxx_symbol_exists(__aarch64__ "" CELLERATE_AARCH64)

# Adds csrc/simd/target_<name>.cpp with its flags to a library and defines CELLERATE_HAVE_<NAME>=1 in all of it,
# unless there is no such file or the compiler does not know a flag.
function(cellerate_add_target library name)
  set(source ${PROJECT_SOURCE_DIR}/csrc/simd/target_${name}.cpp)
  string(TOUPPER ${name} upper)
  if(ARGN)
    string(JOIN " " flags ${ARGN})
    check_cxx_compiler_flag("${flags}" CELLERATE_COMPILES_${upper})
  else()
    set(CELLERATE_COMPILES_${upper} TRUE)
  endif()
  if(NOT EXISTS ${source} OR NOT CELLERATE_COMPILES_${upper})
    message(STATUS "Cellerate target ${name}: left out")
    return()
  endif()
  message(STATUS "Cellerate target ${name}: compiled ${flags}")
  set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${ARGN}")
  target_sources(${library} PRIVATE ${source})
  target_compile_definitions(${library} PUBLIC CELLERATE_HAVE_${upper}=1)
endfunction()

function(cellerate_add_targets library)
  # Their vectors are written out, so that -O2 and -O3 only unroll them to two and three times their size.
  cellerate_add_target(${library} scalar -Os)
  cellerate_add_target(${library} fused -Os)
  if(CELLERATE_X86_64)
    set(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma)
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      # GCC pads the beginnings of loops, which makes these 2 % larger and no quicker; with AVX2, 1 to 5 % quicker.
      list(APPEND avx512 -fno-align-loops -fno-align-jumps)
    endif()
    cellerate_add_target(${library} avx2 -mavx2 -mfma -mf16c)
    cellerate_add_target(${library} avx2vnni -mavx2 -mfma -mf16c -mavxvnni)
    cellerate_add_target(${library} avx512 ${avx512})
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      # Copies of functions for single values of an argument: 6 % of the size, and as quick without them in bfloat16 and
      # int8; float32 would take 1 % longer.
      list(APPEND avx512 -fno-ipa-cp-clone)
    endif()
    cellerate_add_target(${library} avx512vnni ${avx512} -mavx512vnni)
    cellerate_add_target(${library} avx512bf16 ${avx512} -mavx512vnni -mavx512bf16)
    cellerate_add_target(${library} amx ${avx512} -mavx512vnni -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8)
  elseif(CELLERATE_AARCH64)
    cellerate_add_target(${library} neon)
    cellerate_add_target(${library} neondot -march=armv8.2-a+dotprod)
  endif()
endfunction()
