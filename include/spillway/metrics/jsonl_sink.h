#pragma once

#include <string>

#include "spillway/metrics/records.h"

namespace spillway::metrics {

/// Appends records to a file, one JSON object a line, `type` first. Floats are written in the
/// shortest form that reads back equal, NaN and infinities as null, text that is no UTF-8 with
/// replacement characters, so every line is valid JSON. Lines are held back until `flush`. Used by
/// one thread (of rank 0).
class JsonlSink {
 public:
  /// Opens for appending, creating the file. DataError naming the path when that fails.
  explicit JsonlSink(const std::string& path);
  /// Flushes; a failure is logged.
  ~JsonlSink();
  JsonlSink(const JsonlSink&) = delete;
  JsonlSink& operator=(const JsonlSink&) = delete;

  /// Error when `config_json` is no JSON object.
  void write(const RunRecord& record);
  void write(const StepRecord& record);
  void write(const EpRecord& record);
  void write(const EpStepRecord& record);
  void write(const CountersRecord& record);
  void write(const ReconfigureRecord& record);
  void write(const EvalRecord& record);
  void write(const CheckpointRecord& record);
  void write(const WarningRecord& record);

  /// Hands all lines to the system (call at the end of every step). DataError naming the path when
  /// they cannot be written; the lines are then given up.
  void flush();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::string pending_;
  int fd_ = -1;
};

}  // namespace spillway::metrics
