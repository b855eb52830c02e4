#include "spillway/train/signals.h"

#include <pthread.h>

#include <ctime>

namespace spillway::train {

SignalGate::SignalGate() {
  sigemptyset(&watched_);
  sigaddset(&watched_, SIGUSR1);
  sigaddset(&watched_, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &watched_, &mask_before_);
  // A launcher may have started this process with them ignored: then they would not be kept.
  struct sigaction keep = {};
  keep.sa_handler = SIG_DFL;
  sigaction(SIGUSR1, &keep, &usr1_before_);
  sigaction(SIGUSR2, &keep, &usr2_before_);
}

SignalGate::~SignalGate() {
  sigaction(SIGUSR1, &usr1_before_, nullptr);
  sigaction(SIGUSR2, &usr2_before_, nullptr);
  take();
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

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
