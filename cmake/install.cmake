# What `cmake --install` puts where, in three components: runtime, development, tools. Each is a package, too; see
# packages.cmake.

include(CMakePackageConfigHelpers)

# Files of Debian's packages, and of no use elsewhere, but not in anyone's way either.
set(ATTREE_DOC_DIR ${CMAKE_INSTALL_DATAROOTDIR}/doc)

# The components' names begin with attree_ for the sake of projects that include this one.
install(TARGETS attree_shared EXPORT attree-shared
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT attree_runtime NAMELINK_COMPONENT attree_development)
install(TARGETS attree_static EXPORT attree-static
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT attree_development)
install(DIRECTORY include/attree DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT attree_development)

# find_package(attree). Two files of targets: the shared library needs nothing else, the static one needs SLEEF and
# OpenMP to be found again.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attree)
foreach(kind IN ITEMS shared static)
  install(EXPORT attree-${kind} NAMESPACE attree:: DESTINATION ${package_dir} COMPONENT attree_development)
endforeach()
configure_package_config_file(cmake/attree-config.cmake.in ${PROJECT_BINARY_DIR}/attree-config.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attree-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attree-config.cmake ${PROJECT_BINARY_DIR}/attree-config-version.cmake
  DESTINATION ${package_dir} COMPONENT attree_development)

# attree_mpi, in a component of its own: find_package(attree COMPONENTS mpi).
if(TARGET attree_mpi)
  install(TARGETS attree_mpi EXPORT attree-mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT attree_mpi)
  install(FILES mpi/attree_mpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT attree_mpi)
  install(EXPORT attree-mpi NAMESPACE attree:: DESTINATION ${package_dir} COMPONENT attree_mpi)
endif()

# pkg-config. The prefix is where the file is, so that the tree can be moved. SLEEF is among the libraries and not a
# required package: only who links statically needs its files.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} OR IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR})
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
  set(pc_libdir ${CMAKE_INSTALL_FULL_LIBDIR})
  set(pc_includedir ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
  file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(REGEX REPLACE "/$" "" up "${up}")
  set(pc_prefix "\${pcfiledir}/${up}")
  set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
  set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
set(pc_sleef ${SLEEF_LINK_LIBRARIES})
list(TRANSFORM pc_sleef REPLACE "^.*/lib([^/]+)[.](so|a)$" "-l\\1")
foreach(dir IN LISTS SLEEF_LIBRARY_DIRS)
  if(NOT dir IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
    list(PREPEND pc_sleef -L${dir})
  endif()
endforeach()
list(JOIN pc_sleef " " pc_sleef)
configure_file(cmake/attree.pc.in ${PROJECT_BINARY_DIR}/attree.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/attree.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT attree_development)

# Programs, which find the library beside them wherever the tree is. In /usr the loader does.
if(ATTREE_TOOLS)
  set(programs attree_tool)
  install(FILES tools/attree.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT attree_tools)
endif()
if(ATTREE_BENCHMARKS)
  list(APPEND programs attree_bench)
endif()
if(programs)
  if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} AND NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    file(RELATIVE_PATH up /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
    set_target_properties(${programs} PROPERTIES INSTALL_RPATH "\$ORIGIN/${up}")
  endif()
  install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT attree_tools)
endif()

foreach(pair IN ITEMS "runtime libattree${PROJECT_VERSION_MAJOR}" "development libattree-dev" "tools attree-tools")
  string(REPLACE " " ";" pair ${pair})
  list(GET pair 0 component)
  list(GET pair 1 package)
  install(FILES LICENSE DESTINATION ${ATTREE_DOC_DIR}/${package} COMPONENT attree_${component} RENAME copyright)
endforeach()
file(GLOB pages docs/*.md)
install(FILES README.md CHANGELOG.md DESTINATION ${ATTREE_DOC_DIR}/libattree-dev COMPONENT attree_development)
install(FILES ${pages} DESTINATION ${ATTREE_DOC_DIR}/libattree-dev/docs COMPONENT attree_development)
