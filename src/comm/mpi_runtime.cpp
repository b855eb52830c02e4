#include "spillway/comm/mpi_runtime.h"

#include <cstdlib>
#include <exception>
#include <string_view>

#include "mpi_check.h"
#include "spillway/core/error.h"
#include "spillway/core/log.h"

namespace spillway::comm {

void throw_mpi_error(int code, const char* call, const char* file, int line) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  throw CommError(str("MPI: ", std::string_view(text, static_cast<size_t>(length)), " (code ", code,
                      ") [", call, " at ", source_place(file, line), "]"));
}

MpiRuntime::MpiRuntime(int* argc, char*** argv) {
  int initialised = 0;
  MPI_CHECK(MPI_Initialized(&initialised));
  SPILLWAY_CHECK(initialised == 0, "MPI is initialised already; allowed: one MpiRuntime a process");
  int provided = 0;
  MPI_CHECK(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided));
  if (provided < MPI_THREAD_FUNNELED) {
    throw CommError(str("MPI gives thread level ", provided,
                        "; needed: MPI_THREAD_FUNNELED = ", MPI_THREAD_FUNNELED));
  }
}

MpiRuntime::~MpiRuntime() {
  // While an exception unwinds the other ranks may wait in a collective that this one never
  // enters: finalising would wait for them. main ends the job through abort().
  if (std::uncaught_exceptions() > 0) return;
  const int code = MPI_Finalize();
  if (code != MPI_SUCCESS) log::error("MPI_Finalize failed with code ", code);
}

int MpiRuntime::world_rank() const {
  int rank = 0;
  MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  return rank;
}

int MpiRuntime::world_size() const {
  int size = 0;
  MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size));
  return size;
}

bool MpiRuntime::launched() {
  // The launcher's own marks, the one thing read from the environment: there is no other way to
  // know before MPI_Init, which costs seconds and is not needed by a single process.
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_RANK") != nullptr;
}

void MpiRuntime::abort(int code) {
  MPI_Abort(MPI_COMM_WORLD, code);
  std::abort();  // not reached: MPI_Abort does not return
}

}  // namespace spillway::comm
