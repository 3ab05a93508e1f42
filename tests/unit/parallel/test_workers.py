"""Threads that stay: all calls run at once, errors come back, and threads are used again."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from functools import partial

import pytest

from headgate.parallel.crew import IdleThreads


def test_all_calls_run_at_the_same_time_and_give_their_results_in_order() -> None:
    meeting = threading.Barrier(5, timeout=30)

    def call(number: int) -> int:
        meeting.wait()  # comes back only when all five are here
        return number

    assert IdleThreads().run([partial(call, number) for number in range(5)]) == [0, 1, 2, 3, 4]


def test_the_first_call_runs_here_and_the_others_on_threads_that_stay() -> None:
    workers = IdleThreads()
    seen = [workers.run([threading.get_ident] * 3) for _ in range(10)]
    assert {idents[0] for idents in seen} == {threading.get_ident()}
    assert len({ident for idents in seen for ident in idents}) == 3


def test_two_crews_at_once_have_threads_of_their_own() -> None:
    workers, meeting = IdleThreads(), threading.Barrier(4, timeout=30)
    others = threading.Thread(target=workers.run, args=([meeting.wait] * 2,))
    others.start()
    workers.run([meeting.wait] * 2)
    others.join(30)
    assert not others.is_alive()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_error_comes_after_all_have_ended(place: int) -> None:
    ended: list[int] = []

    def call(number: int) -> None:
        if number == place:
            raise ZeroDivisionError(number)
        ended.append(number)

    workers = IdleThreads()
    with pytest.raises(ZeroDivisionError):
        workers.run([partial(call, number) for number in range(3)])
    assert sorted(ended) == [number for number in range(3) if number != place]
    assert workers.run([lambda: "here", lambda: "there"]) == ["here", "there"]


@pytest.mark.parametrize("place", [0, 1])
def test_an_interrupt_comes_after_all_have_ended(place: int) -> None:
    """Kernels use the arrays of their batch: no thread may be left behind when it goes."""
    begun, ended = threading.Event(), threading.Event()

    def interrupting() -> None:
        begun.wait(30)
        time.sleep(0.1)  # by now the other one waits
        os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.1, ended.set).start()

    def other() -> None:
        begun.set()
        ended.wait(30)

    workers, handler = IdleThreads(), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        workers.run([interrupting, other] if place == 0 else [other, interrupting])
    assert ended.is_set()
    assert signal.getsignal(signal.SIGINT) is handler
    assert workers.run([lambda: 1, lambda: 2]) == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_handler_of_the_program_runs_once_and_after_all_have_ended(number: int) -> None:
    """It may raise, as one that stops a service does, and it stays who handles the signal."""
    ended = threading.Event()

    def stop(*_: object) -> None:
        seen.append(ended.is_set())
        raise SystemExit

    seen: list[bool] = []
    before = signal.signal(number, stop)
    try:
        with pytest.raises(SystemExit):
            IdleThreads().run([partial(signal.raise_signal, number), ended.set])
        assert seen == [True]
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)


def test_a_signal_that_nobody_handles_does_what_it_always_does() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert IdleThreads().run([partial(signal.raise_signal, signal.SIGTERM), lambda: 2]) == [
            None,
            2,
        ]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("seed", range(3))
def test_an_interrupt_at_any_moment_loses_no_call_and_runs_none_twice(seed: int) -> None:
    """The calls wait for each other, as kernels do: one that is missing would hold all up."""
    workers, dice, counts = IdleThreads(), random.Random(seed), [0, 0]

    def call(place: int) -> None:
        meeting.wait()
        counts[place] += 1

    for _ in range(100):
        meeting, runs, counts = threading.Barrier(2, timeout=30), 0, [0, 0]
        timer = threading.Timer(dice.uniform(0, 0.003), os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            while True:
                runs += 1
                workers.run([partial(call, 0), partial(call, 1)])
        except KeyboardInterrupt:
            pass
        timer.join()
        # The interrupt may have come just before the run that was counted, or at its end.
        assert counts[0] == counts[1] and runs - 1 <= counts[0] <= runs


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    from headgate.parallel.crew import workers

    workers.run([os.getpid] * 3)
    child = os.fork()
    if child == 0:
        is_right = workers.run([os.getpid] * 3) == [os.getpid()] * 3
        os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0
