#pragma once
// MPI's return codes as exceptions. Communicators of ours return errors instead of ending the job.

// The C API only: the removed C++ bindings would need a library of their own.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace spillway::comm {

/// Throws CommError with the call, the place and MPI's own text.
[[noreturn]] void throw_mpi_error(int code, const char* call, const char* file, int line);

}  // namespace spillway::comm

#define MPI_CHECK(call)                                                             \
  do {                                                                              \
    const int mpi_check_code = (call);                                              \
    if (mpi_check_code != MPI_SUCCESS) [[unlikely]]                                 \
      ::spillway::comm::throw_mpi_error(mpi_check_code, #call, __FILE__, __LINE__); \
  } while (false)
