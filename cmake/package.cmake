# Install rules, the CMake package and the pkg-config files. All of them find the library from where they lie themselves: an
# installed tree may be moved. The package names its system libraries plainly, so it needs no other package.
include(CMakePackageConfigHelpers)

install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY include/fovea DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
set(installed_targets fovea)
if(FOVEA_BUILD_SHARED)
  list(APPEND installed_targets fovea_shared)
endif()
install(TARGETS ${installed_targets} EXPORT foveaTargets)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fovea)
install(EXPORT foveaTargets NAMESPACE fovea:: DESTINATION ${package_dir} FILE foveaTargets.cmake)
configure_package_config_file(cmake/foveaConfig.cmake.in cmake/foveaConfig.cmake INSTALL_DESTINATION ${package_dir}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(cmake/foveaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/foveaConfig.cmake ${PROJECT_BINARY_DIR}/cmake/foveaConfigVersion.cmake
  DESTINATION ${package_dir})

# fovea.pc links the archive by its file name: -lfovea would take the shared library that lies beside it.
file(RELATIVE_PATH prefix_from_pkgconfig ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH libdir_from_prefix ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH includedir_from_prefix ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
list(TRANSFORM FOVEA_SYSTEM_LIBRARIES PREPEND -l REGEX "^[^/]" OUTPUT_VARIABLE system_libraries)
list(JOIN system_libraries " " system_libraries)
function(install_pkgconfig name libs cflags)
  configure_file(cmake/fovea.pc.in ${PROJECT_BINARY_DIR}/cmake/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/cmake/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()
install_pkgconfig(fovea "-l:libfovea.a ${system_libraries}" "")
if(FOVEA_BUILD_SHARED)
  install_pkgconfig(fovea-shared "-lfovea" " -DFOVEA_SHARED")
endif()
