# The target xsimd: its headers. For another architecture no xsimd package is found, and the directory of this machine's headers
# holds much else that must not be seen: the xsimd folder alone is staged in the build tree.
if(CMAKE_CROSSCOMPILING)
  find_path(FOVEA_XSIMD_INCLUDE xsimd/xsimd.hpp PATHS /usr/include REQUIRED NO_CMAKE_FIND_ROOT_PATH)
  file(COPY ${FOVEA_XSIMD_INCLUDE}/xsimd DESTINATION ${PROJECT_BINARY_DIR}/xsimd)
  add_library(xsimd INTERFACE IMPORTED)
  target_include_directories(xsimd INTERFACE ${PROJECT_BINARY_DIR}/xsimd)
else()
  find_package(xsimd REQUIRED)
endif()
