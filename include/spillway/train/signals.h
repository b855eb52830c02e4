#pragma once

#include <csignal>

namespace spillway::train {

struct PendingSignals {
  bool checkpoint = false;  ///< SIGUSR1: checkpoint now and go on
  bool stop = false;        ///< SIGUSR2: checkpoint and end with 0
};

/// Holds SIGUSR1 and SIGUSR2 back while it lives and hands them out when asked: no handler, no
/// global state, nothing is interrupted. Construct before any thread starts.
class SignalGate {
 public:
  SignalGate();
  ~SignalGate();
  SignalGate(const SignalGate&) = delete;
  SignalGate& operator=(const SignalGate&) = delete;

  /// What has arrived since the last call.
  PendingSignals take();

 private:
  sigset_t watched_;
  sigset_t before_;
};

}  // namespace spillway::train
