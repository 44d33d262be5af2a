# levels: those that are compiled on the target's architecture, by the names of their files in lib/kernels/isa and bench.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(levels scalar avx2 avx512 avx512_bf16)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(levels scalar neon)
  set(sve_levels)
  foreach(bits 128 256 512 1024 2048)
    list(APPEND sve_levels sve${bits})
    set(flags_sve${bits} -march=armv8.2-a+sve -msve-vector-bits=${bits})
  endforeach()
  # The one length beyond NEON's of a CPU with BF16 for SVE: Neoverse V1's. Each more would add half a minute of GCC's time.
  list(APPEND sve_levels sve256_bf16)
  set(flags_sve256_bf16 -march=armv8.2-a+sve+bf16 -msve-vector-bits=256)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL Clang OR CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 19)  # as in kernels.inc
    list(APPEND levels neon_bf16 ${sve_levels})
  endif()
else()
  set(levels scalar)
endif()
