# GTest::gtest and GTest::gtest_main: the installed ones, or, for another architecture, Debian's sources (package googletest).
if(CMAKE_CROSSCOMPILING)
  add_subdirectory(/usr/src/googletest ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL SYSTEM)
else()
  find_package(GTest REQUIRED)
endif()
