#pragma once

namespace spillway::comm {

/// Scope of MPI in a process: initialises at construction, finalises at destruction (skipped while
/// an exception unwinds; then `abort` ends the job). Constructed once, in main.
/// Throws CommError when MPI fails or cannot serve threads, Error when it is initialised already.
class MpiRuntime {
 public:
  MpiRuntime(int* argc, char*** argv);
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;
  int world_rank() const;
  int world_size() const;
  /// True when mpirun (or a compatible launcher) started this process.
  static bool launched();
  /// Ends every rank of the job; mpirun returns `code`. Does not return.
  [[noreturn]] void abort(int code);
};

}  // namespace spillway::comm
