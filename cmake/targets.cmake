# The instruction sets: csrc/target_<name>.cpp is the only code compiled beyond what every processor has.
include(CheckCXXCompilerFlag)
include(CheckCXXSymbolExists)

# By the compiler's own word and not the machine's name: a cross-compiler's target is not this machine.
check_cxx_symbol_exists(__x86_64__ "" CELLERATE_X86_64)
check_cxx_symbol_exists(__aarch64__ "" CELLERATE_AARCH64)

# Adds csrc/target_<name>.cpp with its flags to a library and defines CELLERATE_HAVE_<NAME>=1 in all of it,
# unless there is no such file or the compiler does not know a flag.
function(cellerate_add_target library name)
  set(source ${PROJECT_SOURCE_DIR}/csrc/target_${name}.cpp)
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
  # Without vectors, -O3 unrolls these to twice their size.
  cellerate_add_target(${library} scalar -O2)
  cellerate_add_target(${library} fused -O2)
  if(CELLERATE_X86_64)
    set(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma)
    cellerate_add_target(${library} avx2 -mavx2 -mfma -mf16c)
    cellerate_add_target(${library} avx512 ${avx512})
    cellerate_add_target(${library} avx512vnni ${avx512} -mavx512vnni)
    cellerate_add_target(${library} avx512bf16 ${avx512} -mavx512vnni -mavx512bf16)
  elseif(CELLERATE_AARCH64)
    cellerate_add_target(${library} neon)
    cellerate_add_target(${library} neondot -march=armv8.2-a+dotprod)
  endif()
endfunction()
