"""What holds for all tests."""

import signal


def pytest_configure() -> None:
    # A shell starts what runs in its background with SIGINT ignored, and so would be every process
    # that a test starts and interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
