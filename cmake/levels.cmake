# levels: those that are compiled on the target's architecture, by the names of their files in lib/kernels/isa and bench.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(levels scalar avx2 avx512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(levels scalar neon)
  set(sve_levels sve128 sve256 sve512 sve1024 sve2048)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL Clang OR CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 19)  # as in kernels.inc
    list(APPEND levels ${sve_levels})
  endif()
else()
  set(levels scalar)
endif()
