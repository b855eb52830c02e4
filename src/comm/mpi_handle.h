#pragma once
// The way from a Communicator to MPI's own handle, for what goes past the interface.

#include "mpi_check.h"

namespace spillway::comm {

/// A base of the communicators that stand on MPI.
class MpiHandle {
 public:
  virtual MPI_Comm mpi_comm() const = 0;

 protected:
  ~MpiHandle() = default;
};

}  // namespace spillway::comm
