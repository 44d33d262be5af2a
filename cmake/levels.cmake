# levels: those that are compiled on the target's architecture. Each has files of its name in lib/kernels/isa and bench.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(levels scalar avx2 avx512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(levels scalar neon)
else()
  set(levels scalar)
endif()
