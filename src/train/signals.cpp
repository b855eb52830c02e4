#include "spillway/train/signals.h"

#include <pthread.h>

#include <ctime>

namespace spillway::train {

SignalGate::SignalGate() {
  sigemptyset(&watched_);
  sigaddset(&watched_, SIGUSR1);
  sigaddset(&watched_, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &watched_, &before_);
  // A launcher may have started this process with them ignored: then they would not be kept.
  std::signal(SIGUSR1, SIG_DFL);
  std::signal(SIGUSR2, SIG_DFL);
}

SignalGate::~SignalGate() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

PendingSignals SignalGate::take() {
  PendingSignals pending;
  constexpr timespec kDoNotWait{0, 0};
  for (;;) {
    const int signal = sigtimedwait(&watched_, nullptr, &kDoNotWait);
    if (signal == SIGUSR1) {
      pending.checkpoint = true;
    } else if (signal == SIGUSR2) {
      pending.stop = true;
    } else {
      return pending;
    }
  }
}

}  // namespace spillway::train
