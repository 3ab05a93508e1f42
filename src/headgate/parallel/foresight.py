"""Foresight: rows whose keys depend on other rows, found before their events run.

Threads that share a batch must know its rows beforehand. A look-up on the rows as they stand is
certain for an event when no earlier event of the section may write what it reads. So a batch is cut
into sections of certainty: the longest stretch of events whose rows are certain runs with its slots
given, and the next one begins with the first that is not, and is looked up anew. Nothing is guessed
wrong, and nothing undone. Where stretches are short, one thread runs more and more events before
the next attempt.
"""

from __future__ import annotations

from collections.abc import Iterator

from headgate.execution.run import Run

AHEAD_EVENTS = 1024  # looked up at once: what is not certain is looked up again
STRETCH_MIN = 128  # fewer events are run by one thread, where nothing is known of their cost
ALONE_MAX = 1 << 14  # at most so many of them before the next attempt


class Foresight:
    """The sections of certainty of one batch, each found when those before it have run."""

    def __init__(self, run: Run, most: int, least: int = STRETCH_MIN) -> None:
        """`most` events are in a section, and at least `least`, but for what one thread runs."""
        self.run, self.most, self.least = run, most, least
        self.is_certain = False  # whether the rows of the last section are known
        self.sections = self.alone = 0  # how many were certain; how many events were not

    def __iter__(self) -> Iterator[range]:
        begin, alone = 0, self.least
        count = len(self.run.order)
        while begin < count:
            end = self._certain_end(begin, min(begin + self.most, count))
            self.is_certain = end - begin >= self.least or end == count > begin
            if self.is_certain:
                self.sections, alone = self.sections + 1, self.least
            else:
                end = min(begin + alone, count)
                self.alone, alone = self.alone + end - begin, min(2 * alone, ALONE_MAX)
            yield range(begin, end)
            begin = end

    def predict(self) -> int:
        """Find the rows of all events as the tables are now, for a graph that is only looked at.

        Returns into how many sections of certainty the batch would be cut.
        """
        begin, count, sections = 0, len(self.run.order), 0
        while begin < count:
            end = self._certain_end(begin, count)
            sections += 1
            begin = max(end, begin + 1)  # where the function of a key raised, there is no row
        return sections

    def _certain_end(self, begin: int, end: int) -> int:
        """The end of the longest stretch from `begin` on whose rows are certain."""
        program, frame = self.run.program, self.run.frame.address
        kernel, section = program.compiled_kernel, program.next_section()
        for first in range(begin, end, AHEAD_EVENTS):
            last = min(first + AHEAD_EVENTS, end)
            kernel.resolve(first, last, frame)
            self.run.progress[0] = -1
            try:
                stop = int(kernel.predict(first, last, section, frame))
            except Exception:
                # The function of a key raised: its event runs by the loop, which knows how to say
                # that.
                stop = int(self.run.progress[0])
                if stop < 0:  # it did not come to run: the kernel itself did not compile
                    raise
            if stop < last:
                return stop
        return end
