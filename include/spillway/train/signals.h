#pragma once

#include <csignal>

namespace spillway::train {

struct PendingSignals {
  bool checkpoint = false;  ///< SIGUSR1: checkpoint now and go on
  bool stop = false;        ///< SIGUSR2: checkpoint and end with 0
};

/// Holds SIGUSR1 and SIGUSR2 back while it lives and hands them out when asked: no handler, no
/// global state, nothing is interrupted. Construct before any thread starts; the destructor drops
/// what has not been asked for and puts everything back.
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
  sigset_t mask_before_;
  struct sigaction usr1_before_;
  struct sigaction usr2_before_;
};

}  // namespace spillway::train
