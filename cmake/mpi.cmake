# attree_mpi, the library for keys spread over the ranks of MPI, and its benchmark. MPI is Open MPI or MPICH, as the
# distribution has them. AUTO leaves it out where it could not be tested: cross-compiled, or under sanitizers, which
# report MPI's own leaks.

if(ATTREE_MPI STREQUAL "AUTO" AND NOT CMAKE_CROSSCOMPILING AND NOT ATTREE_SANITIZE)
  find_package(MPI QUIET COMPONENTS C)
elseif(ATTREE_MPI AND NOT ATTREE_MPI STREQUAL "AUTO")
  find_package(MPI COMPONENTS C)
  attree_require(MPI_C_FOUND "MPI, or -DATTREE_MPI=OFF" "libopenmpi-dev openmpi-bin")
endif()
if(ATTREE_MPI AND MPI_C_FOUND)
  add_library(attree_mpi SHARED mpi/attree_mpi.c)
  target_include_directories(attree_mpi PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/mpi> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(attree_mpi PUBLIC attree_shared MPI::MPI_C PRIVATE $<BUILD_INTERFACE:attree_flags>)
  set_target_properties(attree_mpi PROPERTIES C_VISIBILITY_PRESET hidden VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR} EXPORT_NAME mpi
    INSTALL_RPATH "$ORIGIN") # it finds libattree beside itself, wherever both are installed
  add_library(attree::mpi ALIAS attree_mpi)
  add_executable(attree_mpi_bench mpi/bench_mpi.c)
  target_link_libraries(attree_mpi_bench PRIVATE attree_mpi attree_flags m)
endif()
